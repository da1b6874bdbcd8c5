"""Finding the files of a run: which folder is one, whether it is finished, its plain files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from eagle_lab.errors import UserError
from eagle_lab.reports.collect import job_folders

MARKS = ("config.yaml", "provenance.json")


def run_folder(path: str | Path) -> Path:
    """`path` as a folder that a run wrote.

    Raises:
        UserError: if it does not exist or holds none of a run's files.
    """
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise UserError(f"no folder '{folder}'{_runs_beside(folder)}")
    jobs = job_folders(folder)
    if not any(existing(place, name) for place in (folder, *jobs) for name in MARKS):
        raise UserError(
            f"'{folder}' is no run folder: it has neither {' nor '.join(MARKS)}. "
            f"Name the output_dir of a run, or the root of a sweep; runs in it: {_runs_in(folder)}"
        )
    return folder


def _runs_beside(folder: Path) -> str:
    """What to say about the place where `folder` is missing."""
    if not folder.parent.is_dir():
        return f"; nor is there '{folder.parent}'"
    return f"; runs in '{folder.parent}': {_runs_in(folder.parent)}"


def _runs_in(folder: Path) -> str:
    """Names of the five newest run folders in `folder`."""
    runs = [path.parent for path in folder.glob(f"*/{MARKS[0]}")]
    newest = sorted(runs, key=lambda run: run.stat().st_mtime, reverse=True)[:5]
    return ", ".join(run.name for run in newest) or "none"


def is_finished(folder: Path, provenance: dict[str, Any]) -> bool:
    """True if the run noted its end and left no growing file behind."""
    return bool(provenance.get("end")) and not (folder / "generations.jsonl.partial").exists()


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML mapping; an absent file is an empty one."""
    if not path.is_file():
        return {}
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    return content if isinstance(content, dict) else {}


def is_sweep(path: str | Path) -> bool:
    """True for the root of a multirun: numbered jobs lie below it.

    Raises:
        UserError: if `path` is no run folder at all.
    """
    folder = run_folder(path)
    return any(existing(job, name) for job in job_folders(folder) for name in MARKS)


def existing(folder: Path, name: str) -> Path | None:
    """The file `name` of a run, or its unfinished `name.partial`, or None."""
    for candidate in (folder / name, folder / f"{name}.partial"):
        if candidate.is_file():
            return candidate
    return None


def read_json(path: Path | None) -> dict[str, Any]:
    """A JSON object; an absent file is an empty one.

    Raises:
        UserError: if the file holds something else.
    """
    if path is None or not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path} is not valid JSON ({error}); remove it or run again") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} holds no JSON object")
    return content
