"""Opening results: a run folder becomes a `Run`, the root of a sweep becomes a `Sweep`.

    run = load_run("runs/bench/2026-11-30_10-00-00")
    run.summary[["method", "tau_micro", "speedup"]]

An unfinished run opens with whatever it holds (`run.finished` is False). Knows the files of a
results folder; never imports torch.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from eagle_lab.errors import UserError
from eagle_lab.files import partial_path, write_text
from eagle_lab.reports.frames import label_rows, main_rows, summarize_generations, tidy

MARKS = ("config.yaml", "provenance.json")
SUMMARY = "summary.csv"
SIZES = ("batch_size", "context")
TAU = "val_tau"
TYPES: dict[str, Any] = {"dtype": {"drafter": str}, "low_memory": False}
_KNOWN_BY_JOBS = {"device", "device_name", "torch_threads"}
"""What the root of a sweep, which loads no model, cannot tell of its own."""


@dataclass(frozen=True)
class Profile:
    """The tables of a profile run.

    Attributes:
        passes: one row per pass of `target` or `draft` (cost_curves.csv), with its relative cost
            and its share of the machine's limits (summary.csv) where they are known.
        overhead: one row per method and batch size (overhead.csv).
        predictions: predicted beside measured speedups (predictions.csv).
        crossover: speedups predicted from assumed acceptance by batch size (crossover.csv).
        limits: what the machine reached at most, units per second.
    """

    passes: pd.DataFrame
    overhead: pd.DataFrame
    predictions: pd.DataFrame
    crossover: pd.DataFrame
    limits: dict[str, float]

    def of(self, model_pass: str) -> pd.DataFrame:
        """The passes of one model, by batch size, context and tokens."""
        rows = self.passes[self.passes["model_pass"] == model_pass]
        return rows.sort_values([*SIZES, "num_tokens"], ignore_index=True)

    def first(self, model_pass: str) -> pd.DataFrame:
        """Its passes at the smallest batch size and context."""
        rows = self.of(model_pass)
        return rows[(rows[list(SIZES)] == rows[list(SIZES)].iloc[0]).all(axis=1)]


@dataclass(frozen=True)
class Run:
    """What one run folder holds.

    Attributes:
        path: the folder.
        finished: False for a run that was stopped, or is still going.
        generations: one row per method, question, turn and repeat (`generations.jsonl`).
        summary: one row per method and setting, with `label` and `infeasible` (`summary.csv`; of an
            unfinished run what its generations tell).
        by_category: one row per method, setting and category (`summary_by_category.csv`).
        divergences: first differences from vanilla's greedy output, ties included.
        training: one row per validation of a train run (`step`, losses, acceptance by depth).
        profile: cost curves and what belongs to them, of a profile run.
        totals: `summary.json`.
        provenance: `provenance.json`.
        config: `config.yaml`, resolved.
    """

    path: Path
    finished: bool
    generations: pd.DataFrame = field(default_factory=pd.DataFrame)
    summary: pd.DataFrame = field(default_factory=pd.DataFrame)
    by_category: pd.DataFrame = field(default_factory=pd.DataFrame)
    divergences: pd.DataFrame = field(default_factory=pd.DataFrame)
    training: pd.DataFrame = field(default_factory=pd.DataFrame)
    profile: Profile | None = None
    totals: dict[str, Any] = field(default_factory=dict)
    provenance: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)

    @property
    def main(self) -> pd.DataFrame:
        """The feasible rows at the smallest batch size, labelled: what figures compare."""
        return main_rows(self.summary)

    @property
    def seed(self) -> int:
        """The run's seed, 0 if it is not recorded."""
        return int(self.provenance.get("seed") or self.config.get("seed") or 0)

    @property
    def timed(self) -> bool:
        """True if any row holds a speed."""
        return not self.summary.empty and bool(self.summary["tokens_per_second"].notna().any())


@dataclass(frozen=True)
class Sweep:
    """What the jobs below a sweep's root hold.

    Attributes:
        path: the root.
        table: one row per job, method and setting; `infeasible` rows have no measures.
        missing: jobs without a summary: failed, or not finished yet.
        ended: False while jobs may still be to come.
        provenance: of the root, and what only its first job knows, such as the target.
        config: of the root, or of its first job.
    """

    path: Path
    table: pd.DataFrame
    missing: list[str]
    ended: bool = True
    provenance: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)

    @property
    def finished(self) -> bool:
        """True if every job has its summary and none is to come."""
        return self.ended and not self.missing

    @property
    def timed(self) -> bool:
        """True if any row holds a speedup."""
        return bool(self.table["speedup"].notna().any())


def load_run(path: str | Path) -> Run:
    """Read a run folder.

    Raises:
        UserError: if it is no run folder, or holds no results at all.
    """
    folder = run_folder(path)
    whole = folder / "generations.jsonl"
    growing = partial_path(whole)
    generations = _read_rows(whole if whole.is_file() else growing)
    table = _read_csv(folder / SUMMARY, **TYPES)
    summary = tidy(table) if "method" in table else pd.DataFrame()
    training = _training(table)
    config = _read_yaml(folder / "config.yaml")
    if summary.empty and not generations.empty:
        summary = tidy(summarize_generations(generations, config.get("eval") or {}))
    totals = read_json(folder / "summary.json")
    profile = _read_profile(folder, table, totals)
    if summary.empty and training.empty and profile is None:
        raise UserError(
            f"{folder} holds no results yet: no rows in generations.jsonl or {SUMMARY}, no "
            "training curve, no cost curves. Let the run go on, then report again"
        )
    provenance = read_json(folder / "provenance.json")
    by_category = _read_csv(folder / "summary_by_category.csv", **TYPES)
    return Run(
        path=folder,
        finished=bool(provenance.get("end")) and not growing.exists(),
        generations=generations,
        summary=label_rows(summary) if not summary.empty else summary,
        by_category=tidy(by_category) if not by_category.empty else by_category,
        divergences=_read_csv(folder / "divergences.csv"),
        training=training,
        profile=profile,
        totals=totals,
        provenance=provenance,
        config=config,
    )


def load_sweep(root: str | Path) -> Sweep:
    """Read the jobs below the root of a multirun, or a sweep that was one process.

    Raises:
        UserError: if it is no run folder, or no job has a summary yet.
    """
    folder = run_folder(root)
    places = [folder, *job_folders(folder)]
    table = tidy(collect_jobs(folder))
    if table["method"].isna().all():
        raise UserError(f"the jobs of {folder} are no benches; report on one of them by its folder")
    provenance = read_json(folder / "provenance.json")
    first = _first(read_json(place / "provenance.json") for place in places[1:])
    return Sweep(
        path=folder,
        table=table,
        missing=unfinished_jobs(folder),
        ended=bool(provenance.get("end")) or not provenance,
        provenance=first | provenance | {name: first[name] for name in _KNOWN_BY_JOBS & set(first)},
        config=_first(_read_yaml(place / "config.yaml") for place in places),
    )


def _first(candidates: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The first that is not empty."""
    return next((candidate for candidate in candidates if candidate), {})


def run_folder(path: str | Path) -> Path:
    """`path` as a folder that a run wrote.

    Raises:
        UserError: if it does not exist or holds none of a run's files.
    """
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise UserError(
            f"no folder '{folder}'; runs in '{folder.parent}': {_runs_in(folder.parent)}"
        )
    if not any(_is_run(place) for place in (folder, *job_folders(folder))):
        raise UserError(
            f"'{folder}' is no run folder: it has neither {' nor '.join(MARKS)}. "
            f"Name the output_dir of a run, or the root of a sweep; runs in it: {_runs_in(folder)}"
        )
    return folder


def _is_run(folder: Path) -> bool:
    return any((folder / name).is_file() for name in MARKS)


def _runs_in(folder: Path) -> str:
    """Names of the five newest run folders in `folder`."""
    runs = [path.parent for path in folder.glob(f"*/{MARKS[0]}")]
    newest = sorted(runs, key=lambda run: run.stat().st_mtime, reverse=True)[:5]
    return ", ".join(run.name for run in newest) or "none"


def is_sweep(path: str | Path) -> bool:
    """True for the root of a multirun: numbered jobs lie below it.

    Raises:
        UserError: if `path` is no run folder at all.
    """
    return any(_is_run(job) for job in job_folders(run_folder(path)))


def job_folders(root: str | Path) -> list[Path]:
    """The numbered folders below `root`, by number."""
    folders = [path for path in Path(root).iterdir() if path.is_dir() and path.name.isdigit()]
    return sorted(folders, key=lambda path: int(path.name))


def unfinished_jobs(root: str | Path) -> list[str]:
    """Names of the job folders that hold no summary."""
    return [folder.name for folder in job_folders(root) if not _has_summary(folder)]


def collect_jobs(root: str | Path) -> pd.DataFrame:
    """One row per job, method and setting: `job` (the folder's name) and a summary's columns.

    Cells are text, as they stand in the files; empty ones are NaN. A sweep done in one process
    has no job folders; its own summary is taken, with empty `job`.

    Raises:
        UserError: if there is no summary at all.
    """
    folders = {folder.name: folder for folder in job_folders(root)} or {"": Path(root)}
    tables = {
        name: pd.read_csv(folder / SUMMARY, dtype=str)
        for name, folder in folders.items()
        if _has_summary(folder)
    }
    if not tables:
        raise UserError(f"nothing to collect: {root} and its job folders hold no {SUMMARY}")
    return pd.concat(tables, names=["job"]).reset_index("job").reset_index(drop=True)


def write_sweep(root: str | Path) -> Path:
    """Collect the jobs below `root` into its sweep.csv; raises like `collect_jobs`."""
    path = Path(root) / "sweep.csv"
    write_text(path, collect_jobs(root).to_csv(index=False))
    return path


def _has_summary(folder: Path) -> bool:
    path = folder / SUMMARY
    return path.is_file() and path.stat().st_size > 0


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object; an absent file is an empty one.

    Raises:
        UserError: if the file holds something else.
    """
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path} is not valid JSON ({error}); remove it or run again") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} holds no JSON object")
    return content


def _read_yaml(path: Path) -> dict[str, Any]:
    content = yaml.safe_load(path.read_text(encoding="utf-8")) if path.is_file() else None
    return content if isinstance(content, dict) else {}


def _read_rows(path: Path) -> pd.DataFrame:
    """JSON lines as a frame, one row per line; a torn last line of unfinished work is left out.

    Raises:
        UserError: if any other line is broken, naming it.
    """
    rows: list[dict[str, Any]] = []
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            rows.append(json.loads(line))
        except ValueError as error:
            if number == len(lines) and path.suffix == ".partial":
                break
            raise UserError(f"{path}, line {number} is not valid JSON: {error}") from error
    for row in rows:
        if isinstance(row.get("settings"), dict):  # as summary.csv has it
            row["settings"] = json.dumps(row["settings"], sort_keys=True, ensure_ascii=False)
    return pd.DataFrame(rows)


def _read_csv(path: Path, **options: Any) -> pd.DataFrame:
    """A table; empty if the file is absent or empty."""
    has_text = path.is_file() and path.stat().st_size > 0
    return pd.read_csv(path, **options) if has_text else pd.DataFrame()


def _read_profile(folder: Path, work: pd.DataFrame, totals: dict[str, Any]) -> Profile | None:
    """The profile in `folder`, whose summary.csv is `work`; None if it holds no cost curves."""
    passes = _read_csv(folder / "cost_curves.csv")
    if passes.empty:
        return None
    if "relative_cost" in work:
        keys = ["model_pass", *SIZES, "num_tokens"]
        added = [name for name in work if name not in passes]
        passes = passes.merge(work[[*keys, *added]], on=keys, how="left")
    names = ("overhead", "predictions", "crossover")
    others = {name: _read_csv(folder / f"{name}.csv") for name in names}
    return Profile(passes, limits=totals.get("ceilings") or {}, **others)


def _training(table: pd.DataFrame) -> pd.DataFrame:
    """The validations of a training, by step, if `table` is the summary of one."""
    if "val_acceptance_1" not in table:
        return pd.DataFrame()
    return table.dropna(subset=["val_acceptance_1"]).sort_values("step", ignore_index=True)


def acceptance_columns(training: pd.DataFrame) -> list[str]:
    """Columns of held-out conditional acceptance, in the order of their depth."""
    depths = training.columns.str.extract(r"^val_acceptance_(\d+)$")[0].dropna().astype(int)
    return [f"val_acceptance_{depth}" for depth in sorted(depths)]
