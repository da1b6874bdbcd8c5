"""Opening results: a run folder becomes a `Run`, the root of a sweep becomes a `Sweep`.

    run = load_run("runs/bench/2026-11-30_10-00-00")
    run.summary[["method", "tau_macro", "speedup"]]

An unfinished run opens with whatever it holds (`run.finished` is False). Knows file names and
columns of a results folder; writes nothing, never imports torch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from eagle_lab.errors import UserError
from eagle_lab.reports.collect import collect_jobs, job_folders, unfinished_jobs
from eagle_lab.reports.divergences import find_divergences
from eagle_lab.reports.folders import (
    existing,
    is_finished,
    read_json,
    read_yaml,
    run_folder,
)
from eagle_lab.reports.frames import label_rows, main_rows, read_rows, read_table, tidy
from eagle_lab.reports.partial import summarize_generations
from eagle_lab.reports.profile import Profile, read_profile
from eagle_lab.reports.training import read_training

KNOWN_BY_JOBS = {"device", "device_name", "torch_threads"}
"""What the root of a sweep, which loads no model, cannot tell of its own."""


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
    generations: pd.DataFrame
    summary: pd.DataFrame
    by_category: pd.DataFrame
    divergences: pd.DataFrame
    training: pd.DataFrame
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
    generations = read_rows(existing(folder, "generations.jsonl"))
    summary = read_table(existing(folder, "summary.csv"))
    if "method" not in summary:  # a training's summary.csv holds its validations
        summary = pd.DataFrame()
    training = read_training(folder)
    if summary.empty and not generations.empty:
        asked = read_yaml(folder / "config.yaml").get("eval") or {}
        summary = tidy(summarize_generations(generations, asked))
    totals = read_json(existing(folder, "summary.json"))
    profile = read_profile(folder, totals)
    if summary.empty and training.empty and profile is None:
        raise UserError(
            f"{folder} holds no results yet: no rows in generations.jsonl or summary.csv, no "
            "training curve, no cost curves. Let the run go on, then report again"
        )
    provenance = read_json(existing(folder, "provenance.json"))
    by_category = read_table(existing(folder, "summary_by_category.csv"))
    return Run(
        path=folder,
        finished=is_finished(folder, provenance),
        generations=generations,
        summary=label_rows(summary) if not summary.empty else summary,
        by_category=by_category,
        divergences=find_divergences(folder, totals, generations),
        training=training,
        profile=profile,
        totals=totals,
        provenance=provenance,
        config=read_yaml(folder / "config.yaml"),
    )


def load_sweep(root: str | Path) -> Sweep:
    """Read the jobs below the root of a multirun, or a sweep that was one process.

    Raises:
        UserError: if it is no run folder, or no job has a summary yet.
    """
    folder = run_folder(root)
    places = [folder, *job_folders(folder)]
    table = tidy(collect_jobs(folder))
    if "method" not in table:
        raise UserError(f"the jobs of {folder} are no benches; report on one of them by its folder")
    table["job"] = table["job"].fillna("")
    provenance = read_json(existing(folder, "provenance.json"))
    first = _first(read_json(existing(place, "provenance.json")) for place in places[1:])
    return Sweep(
        path=folder,
        table=table,
        missing=unfinished_jobs(folder),
        ended=bool(provenance.get("end")) or not provenance,
        provenance=first | provenance | {name: first[name] for name in KNOWN_BY_JOBS & set(first)},
        config=_first(read_yaml(place / "config.yaml") for place in places),
    )


def _first(candidates: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The first that is not empty."""
    return next((candidate for candidate in candidates if candidate), {})
