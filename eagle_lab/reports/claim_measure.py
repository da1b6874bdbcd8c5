"""From a finished run to the measured.csv and provenance.json of a claim.

A run's line belongs to a claim if expected.csv has a line with its settings, the target aside.
What is read off the run follows from the columns of expected.csv: with `draft_position` acceptance
by depth, with `confidence_from` calibration, with `num_draft_tokens` chains beside Leviathan's
formula, with `category` the summary by category, otherwise the summary of a bench or sweep, or the
validations of a training. Peak memory is left out on a CPU, where it is the process's so far and
says nothing about a method. The run's folder name is its name in both files; measuring again
replaces its lines, other runs' lines stay.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from eagle_lab.errors import UserError, choose
from eagle_lab.files import write_text
from eagle_lab.reports.acceptance import acceptance_by_depth, cycles
from eagle_lab.reports.calibration import calibration
from eagle_lab.reports.claim import Claim
from eagle_lab.reports.claim_columns import MEASURED_COLUMNS, NUMBER, SETTINGS, TEXT, with_settings
from eagle_lab.reports.claim_provenance import publishable
from eagle_lab.reports.claim_table import places
from eagle_lab.reports.divergences import with_ties
from eagle_lab.reports.folders import is_sweep
from eagle_lab.reports.frames import label_generations
from eagle_lab.reports.load import Run, Sweep, load_run, load_sweep
from eagle_lab.reports.training import tau_column

HELD_OUT = "held_out"
"""Benchmark of a training's validations: answers kept out of training."""
ALL = "all"
"""Category of what was measured over the questions of every category."""


def add_run(claim: Claim, path: str | Path, settings: Mapping[str, Any] | None = None) -> int:
    """Put what the run at `path` measured into the claim's folder.

    Args:
        claim: whose measured.csv and provenance.json grow.
        path: folder of a finished bench, sweep or train run.
        settings: settings that the run's files do not hold, as `{"num_training_tokens": 100000}`.

    Returns:
        How many lines measured.csv has from this run.

    Raises:
        UserError: the run is unfinished, none of its lines belongs to the claim, or a setting is
            unknown.
    """
    results = load_sweep(path) if is_sweep(path) else load_run(path)
    if not results.finished:
        raise UserError(
            f"{path} is unfinished; start its command again, it goes on where it stopped"
        )
    name = results.path.resolve().name
    rows = measured_rows(claim, results, settings or {})
    return write_rows(claim, name, rows, publishable(results.provenance))


def write_rows(claim: Claim, run: str, rows: pd.DataFrame, provenance: dict[str, Any]) -> int:
    """Replace the lines of `run` in measured.csv and its entry in provenance.json."""
    kept = claim.measured[claim.measured["run"] != run]
    table = pd.concat([kept, rows.assign(run=run)], ignore_index=True).dropna(axis=1, how="all")
    columns = [name for name in MEASURED_COLUMNS if name in table]
    entries = {**claim.provenance, run: provenance}
    text = json.dumps(entries, indent=2, ensure_ascii=False) + "\n"
    write_text(claim.folder / "provenance.json", text)
    write_text(
        claim.folder / "measured.csv", table[columns].to_csv(index=False, float_format=NUMBER)
    )
    return len(rows)


def measured_rows(claim: Claim, results: Run | Sweep, settings: Mapping[str, Any]) -> pd.DataFrame:
    """The lines of a run that belong to `claim`; raises like `add_run`."""
    rows = _rows(claim, results)
    if results.provenance.get("device") == "cpu":
        rows = rows.drop(columns="peak_memory_mb", errors="ignore")
    own = {"target": results.provenance.get("target")}
    if "benchmark" not in rows:
        own["benchmark"] = Path(str(results.provenance.get("prompts"))).stem
    for name, value in {**own, **settings}.items():
        choose(name, SETTINGS, "setting of report.settings")
        rows[name] = value if name in TEXT else _number(name, value)
    rows = with_settings(rows)
    belongs = places(claim, rows).notna()
    if not belongs.any():
        raise UserError(
            f"no line of {results.path} belongs to claim {claim.name}: it measured "
            f"{_said(rows)}; the claim is about {_said(claim.expected)}"
        )
    return rows.loc[belongs, [name for name in MEASURED_COLUMNS if name in rows]]


def _number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise UserError(f"report.settings.{name}={value}; it must be a number") from error


def _rows(claim: Claim, results: Run | Sweep) -> pd.DataFrame:
    if isinstance(results, Run):
        if claim.expected["draft_position"].notna().any():
            return _acceptance_rows(results)
        if claim.expected["confidence_from"].notna().any():
            return _confidence_rows(results)
        if claim.expected["num_draft_tokens"].notna().any():
            return _formula_rows(results)
        if claim.expected["category"].notna().any():
            return _category_rows(results)
        if results.summary.empty:
            return _training_rows(results)
        return _summary_rows(with_ties(results.summary, results.divergences))
    return _summary_rows(results.table)


def _summary_rows(table: pd.DataFrame) -> pd.DataFrame:
    """One line per feasible row of a summary; τ is the mean over turns."""
    names = {"tau_macro": "tau", "tau_macro_low": "tau_low", "tau_macro_high": "tau_high"}
    return table[~table["infeasible"]].rename(columns=names).reset_index(drop=True)


def _formula_rows(run: Run) -> pd.DataFrame:
    """One line per chain of a fixed length, beside what the formula makes of the run."""
    rows = pd.DataFrame(run.totals.get("formula") or [])
    if rows.empty:
        raise UserError(
            f"{run.path} has no chain of a fixed length, such as the method speculative, for the "
            "formula"
        )
    keys = ["method", "depth", "num_nodes"]
    summary = _summary_rows(with_ties(run.summary, run.divergences))
    added = [name for name in rows if name not in summary]
    return summary.merge(rows[[*keys, *added]], on=keys)


def _category_rows(run: Run) -> pd.DataFrame:
    """One line per method and category of the questions, and one over all of them."""
    conditions = {name: run.summary[name].iloc[0] for name in ("temperature", "batch_size")}
    parts = run.by_category.assign(**conditions)
    return _summary_rows(pd.concat([parts, run.summary.assign(category=ALL)], ignore_index=True))


def _acceptance_rows(run: Run) -> pd.DataFrame:
    """n-α: one line per method and drafted token, counted from 0 as the papers do."""
    generations = label_generations(run.generations, run.main)
    found = acceptance_by_depth(cycles(generations), seed=run.seed)
    names = {f"conditional{end}": f"acceptance{end}" for end in ("", "_low", "_high")}
    found = found.drop(columns="accepted").rename(columns={**names, "trials": "num_trials"})
    found["draft_position"] = found.pop("depth") - 1
    return _with_method(run, found)


def _confidence_rows(run: Run) -> pd.DataFrame:
    """One line per method and bin of the drafter's confidence."""
    generations = label_generations(run.generations, run.main)
    return _with_method(run, calibration(generations, seed=run.seed))


def _with_method(run: Run, rows: pd.DataFrame) -> pd.DataFrame:
    """`rows` with the settings of the methods that their labels name."""
    settings = [name for name in SETTINGS if name in run.main and name not in rows]
    return rows.merge(run.main[["label", *settings]], on="label", how="left")


def _training_rows(run: Run) -> pd.DataFrame:
    """One line per validation: the expected τ of chains on held-out answers, against time."""
    tau, task = tau_column(run.training), run.provenance.get("task")
    if tau is None:
        raise UserError(f"{run.path} has no column of expected τ, so it measures nothing here")
    return pd.DataFrame(
        {
            "benchmark": HELD_OUT,
            # A draft model's chains are another method's
            "method": "speculative" if task == "train_draft" else "eagle_chain",
            "training_minutes": run.training["minutes"].round(2),
            "val_tau": run.training[tau],
        }
    )


def _said(rows: pd.DataFrame) -> str:
    """The benchmarks, methods and temperatures of some lines, in words."""
    parts = []
    for name in ("benchmark", "method", "temperature", "num_training_tokens"):
        values = rows[name].dropna().unique()
        parts += [f"{SETTINGS[name]} {', '.join(f'{value}' for value in values)}"] * bool(
            len(values)
        )
    return "; ".join(parts)
