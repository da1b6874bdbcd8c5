"""From a finished run to published numbers: a claim's measured.csv, a drafter's evaluation.

A run's line belongs to a claim if expected.csv has a line with its settings, the target aside.
claim.yaml names the table that is read off a bench:

    summary       a row per method and setting of a bench or sweep; validations of a training
    categories    the same by category of the questions, and over all of them
    acceptance    conditional acceptance of the drafted tokens by their place
    calibration   acceptance by the drafter's confidence
    formula       chains of a fixed length beside Leviathan's formula

Peak memory is left out on a CPU, where it is the process's so far and says nothing about a method.
The run's folder name is its name in the claim's files; measuring again replaces its lines, other
runs' lines stay. No host, no account and no absolute path is published.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import pandas as pd

from eagle_lab.columns import SUMMARY, csv_names, pick
from eagle_lab.errors import UserError
from eagle_lab.files import write_text
from eagle_lab.reports.acceptance import acceptance_by_depth, calibration, cycles
from eagle_lab.reports.claims.claim import MEASURED_COLUMNS, SETTINGS, Claim, with_settings
from eagle_lab.reports.claims.compare import NUMBER, places
from eagle_lab.reports.frames import with_labels, with_ties
from eagle_lab.reports.load import TAU, Run, Sweep, is_sweep, load_run, load_sweep

PUBLISHED = (
    *("task", "status", "start", "end", "command", "git_commit", "git_dirty"),
    *("device", "device_name", "torch_threads", "dtype", "threads", "seed"),
    *("prompts", "prompts_sha256", "target", "target_fingerprint"),
)
EVALUATED = pick(
    SUMMARY,
    *("method", "depth", "width", "num_nodes", "settings", "num_questions", "num_tokens"),
    *("num_cycles", "tau_micro", "tau_macro", "speedup", "greedy_match_rate"),
)
"""What a drafter's card keeps of a bench."""
# A path that leaves the working folder: `/a/b`, `~/a`, `../a`, at the start or after `=`, `[`, …
_PATH = re.compile(r"""(?<![^\s=,\[{('"])(?:\.\.|~[^\s/]*)?/[^\s,\]})'"]*""")


def add_run(claim: Claim, path: str | Path) -> int:
    """Put what the run at `path` measured into the claim's folder.

    Args:
        claim: whose measured.csv and provenance.json grow; its `runs` may give settings that the
            run's files do not hold.
        path: folder of a finished bench, sweep or train run.

    Returns:
        How many lines measured.csv has from this run.

    Raises:
        UserError: the run is unfinished, or none of its lines belongs to the claim.
    """
    results = load_sweep(path) if is_sweep(path) else load_run(path)
    _require_finished(results)
    run = results.path.resolve().name
    rows = measured_rows(claim, results)
    kept = claim.measured[claim.measured["run"] != run]
    table = pd.concat([kept, rows.assign(run=run)], ignore_index=True).dropna(axis=1, how="all")
    columns = [name for name in MEASURED_COLUMNS if name in table]
    provenance = {**claim.provenance, run: publishable(results.provenance)}
    text = json.dumps(provenance, indent=2, ensure_ascii=False) + "\n"
    write_text(claim.folder / "provenance.json", text)
    text = table[columns].to_csv(index=False, float_format=NUMBER)
    write_text(claim.folder / "measured.csv", text)
    return len(rows)


def _require_finished(results: Run | Sweep) -> None:
    if not results.finished:
        raise UserError(f"{results.path} is unfinished; start its command again, which resumes it")


def measured_rows(claim: Claim, results: Run | Sweep) -> pd.DataFrame:
    """The lines of a run that belong to `claim`; raises like `add_run`."""
    rows = _rows(claim.table, results)
    if results.provenance.get("device") == "cpu":
        rows = rows.drop(columns="peak_memory_mb", errors="ignore")
    rows["target"] = results.provenance.get("target")
    if "benchmark" not in rows:
        rows["benchmark"] = _benchmark(results)
    rows = with_settings(rows.assign(**claim.runs.get(results.path.resolve().name, {})))
    belongs = places(claim, rows).notna()
    if not belongs.any():
        raise UserError(
            f"no line of {results.path} belongs to claim {claim.name}: it measured "
            f"{_values(rows)}; the claim is about {_values(claim.expected)}"
        )
    return rows.loc[belongs, [name for name in MEASURED_COLUMNS if name in rows]]


def _benchmark(results: Run | Sweep) -> str:
    return Path(str(results.provenance.get("prompts"))).stem


def _values(rows: pd.DataFrame) -> str:
    """`benchmark bench80; method vanilla, eagle_chain; T 0` of some lines."""
    names = ("benchmark", "method", "temperature", "num_training_tokens")
    known = {SETTINGS[name].title: rows[name].dropna().unique() for name in names}
    return "; ".join(
        f"{title} {', '.join(map(str, values))}" for title, values in known.items() if len(values)
    )


def _rows(table: str, results: Run | Sweep) -> pd.DataFrame:
    if isinstance(results, Sweep):
        return _summary_rows(results.table)
    if results.summary.empty:
        return _training_rows(results)
    if table == "acceptance":
        return _acceptance_rows(results)
    if table == "calibration":
        generations = with_labels(results.generations, results.main)
        return _with_method(results, calibration(generations, seed=results.seed))
    if table == "categories":
        conditions = results.summary.iloc[0][["temperature", "batch_size"]].to_dict()
        parts = [results.by_category.assign(**conditions), results.summary.assign(category="all")]
        return _summary_rows(pd.concat(parts, ignore_index=True))
    rows = _summary_rows(with_ties(results.summary, results.divergences))
    return _formula_rows(results, rows) if table == "formula" else rows


def _summary_rows(table: pd.DataFrame) -> pd.DataFrame:
    """One line per feasible row of a summary; `tau` is the mean over turns."""
    names = {"tau_macro": "tau", "tau_macro_low": "tau_low", "tau_macro_high": "tau_high"}
    return table[~table["infeasible"]].rename(columns=names).reset_index(drop=True)


def _formula_rows(run: Run, summary: pd.DataFrame) -> pd.DataFrame:
    """One line per chain of a fixed length, beside what the formula makes of the run."""
    rows = pd.DataFrame(run.totals.get("formula") or [])
    if rows.empty:
        raise UserError(
            f"{run.path} has no chain of a fixed length, such as the method speculative, for the "
            "formula"
        )
    keys = ["method", "depth", "num_nodes"]
    both = [name for name in rows if name in summary and name not in keys]
    return summary.drop(columns=both).merge(rows, on=keys)


def _acceptance_rows(run: Run) -> pd.DataFrame:
    """n-α: one line per method and drafted token, counted from 0 as the papers do."""
    generations = with_labels(run.generations, run.main)
    found = acceptance_by_depth(cycles(generations), seed=run.seed)
    names = {f"conditional{end}": f"acceptance{end}" for end in ("", "_low", "_high")}
    found = found.drop(columns="accepted").rename(columns={**names, "trials": "num_trials"})
    found["draft_position"] = found.pop("depth") - 1
    return _with_method(run, found)


def _with_method(run: Run, rows: pd.DataFrame) -> pd.DataFrame:
    """`rows` with the settings of the methods that their labels name."""
    settings = [name for name in SETTINGS if name in run.main and name not in rows]
    return rows.merge(run.main[["label", *settings]], on="label", how="left")


def _training_rows(run: Run) -> pd.DataFrame:
    """One line per validation: the expected τ of chains on held-out answers, against time."""
    if TAU not in run.training:
        raise UserError(f"{run.path} has no column of expected τ, so it measures nothing here")
    of_draft_model = run.provenance.get("task") == "train_draft"
    return pd.DataFrame(
        {
            "benchmark": "held_out",
            "method": "speculative" if of_draft_model else "eagle_chain",
            "training_minutes": run.training["minutes"].round(2),
            "val_tau": run.training[TAU],
        }
    )


def evaluation_of(path: str | Path, digest: str) -> dict[str, Any]:
    """What the bench at `path` measured of the drafter whose weights have this digest.

    Returns:
        An evaluation as `drafters.card.add_evaluation` takes it.

    Raises:
        UserError: an unfinished run, or one that did not draft with these weights.
    """
    run = load_run(path)
    _require_finished(run)
    drafters: Mapping[str, str] = run.provenance.get("drafters") or {}
    own = [name for name, found in drafters.items() if found == digest]
    rows = run.main[run.main["drafter"].isin(own)] if "drafter" in run.main else run.main.head(0)
    if rows.empty:
        raise UserError(
            f"{path} measured nothing of this drafter: none of the drafters it used "
            f"({', '.join(drafters) or 'none'}) has its weights"
        )
    settings, origin = run.config.get("eval") or {}, publishable(run.provenance)
    known = ("command", "git_commit", "device_name", "torch_threads", "dtype", "start")
    columns = [name for name in ("label", *csv_names(EVALUATED)) if name in rows]
    numbers = rows[columns].astype(object).to_dict("records")
    return {
        "benchmark": _benchmark(run),
        "temperature": float(rows["temperature"].iloc[0]),
        "batch_size": int(rows["batch_size"].iloc[0]),
        **{key: settings.get(key) for key in ("turns", "max_new_tokens", "replay")},
        "rows": without_paths(
            [{key: value for key, value in row.items() if pd.notna(value)} for row in numbers]
        ),
        "provenance": {name: origin.get(name) for name in known},
    }


def publishable(provenance: dict[str, Any]) -> dict[str, Any]:
    """The parts of a provenance.json that say how to repeat a run, with paths made relative."""
    kept = {name: provenance[name] for name in PUBLISHED if name in provenance}
    machine = provenance.get("machine") or {}
    kept["machine"] = {name: machine[name] for name in ("cpu", "num_cpus") if name in machine}
    kept["versions"] = provenance.get("versions") or {}
    if provenance.get("resumed"):  # not all of its results are of the commit it began at
        kept["resumed"] = [
            {name: start[name] for name in ("start", "git_commit", "git_dirty") if name in start}
            for start in provenance["resumed"]
        ]
    return {name: without_paths(item) for name, item in kept.items()}


def without_paths(value: Any) -> Any:
    """`value` with every outside path in its texts cut to its part from `runs` on, or its name.

    `/home/me/runs/train/drafter` becomes `runs/train/drafter`, `../data/mt_bench.jsonl`
    becomes `mt_bench.jsonl`, `/usr/bin/python3` becomes `python3`.
    """
    if isinstance(value, dict):
        return {name: without_paths(item) for name, item in value.items()}
    if isinstance(value, list):
        return [without_paths(item) for item in value]
    return _PATH.sub(_cut, value) if isinstance(value, str) else value


def _cut(match: re.Match[str]) -> str:
    parts = PurePosixPath(match.group()).parts
    return "/".join(parts[parts.index("runs") :]) if "runs" in parts else parts[-1].strip("/")
