"""The jobs of a sweep as one table: the summaries of the numbered folders below its root.

Reads and writes CSV files only; a job without a summary (failed, or not there yet) is left out
and named by `unfinished_jobs`.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from eagle_lab.errors import UserError
from eagle_lab.files import write_text

SUMMARY, SWEEP = "summary.csv", "sweep.csv"


def job_folders(root: str | Path) -> list[Path]:
    """The numbered folders below `root`, by number."""
    folders = [path for path in Path(root).iterdir() if path.is_dir() and path.name.isdigit()]
    return sorted(folders, key=lambda path: int(path.name))


def unfinished_jobs(root: str | Path) -> list[str]:
    """Names of the job folders that hold no summary."""
    return [folder.name for folder in job_folders(root) if not _summary_of(folder)]


def collect_jobs(root: str | Path) -> pd.DataFrame:
    """One row per job, method and setting: `job` (the folder's name) and a summary's columns.

    Cells are text, as they stand in the files; empty ones are NaN. A sweep done in one process
    has no job folders; its own summary is taken, with empty `job`.

    Raises:
        UserError: if there is no summary at all.
    """
    folders = [folder for folder in job_folders(root) if _summary_of(folder)]
    sources = [(folder.name, folder) for folder in folders] or [("", Path(root))]
    frames = [
        pd.read_csv(folder / SUMMARY, dtype=str).assign(job=name)
        for name, folder in sources
        if _summary_of(folder)
    ]
    if not frames:
        raise UserError(f"nothing to collect: {root} and its job folders hold no {SUMMARY}")
    table = pd.concat(frames, ignore_index=True)
    return table[["job", *(name for name in table if name != "job")]]


def write_sweep(root: str | Path) -> Path:
    """Collect the jobs below `root` into its sweep.csv; raises like `collect_jobs`."""
    path = Path(root) / SWEEP
    write_text(path, collect_jobs(root).to_csv(index=False))
    return path


def _summary_of(folder: Path) -> bool:
    path = folder / SUMMARY
    return path.is_file() and path.stat().st_size > 0
