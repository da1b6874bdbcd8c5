"""The findings of a report: setting, fastest, highest τ, exactness; and its warnings.

One template, `head: what, value [interval]`; values are written as in the tables. A speedup whose
interval holds 1 is called not shown, and controls and lossy methods are left out of the contest.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd

from eagle_lab.columns import CURVES, SUMMARY, pick
from eagle_lab.reports.acceptance import calibration, expected_calibration_error
from eagle_lab.reports.figures import assumptions
from eagle_lab.reports.frames import conditions, has_values, label_rows, says_false, span
from eagle_lab.reports.load import TAU, Profile, Run, Sweep, acceptance_columns
from eagle_lab.reports.sweeps import best_setting, grids, rivals

CONTROLS = ("vanilla", "self_speculation", "hf_generate")
REPLAYED = "Replayed from recorded answers: acceptance only, equality was not checked"
_MEASURES = {column.key: column for column in pick(SUMMARY, "speedup", "tau_micro")}


def setting(rows: pd.DataFrame, config: dict[str, Any], provenance: dict[str, Any]) -> str:
    """`Measured: n = 16 questions, T = 0, batch 1; target smollm2_135m; float32 on cpu (AMD)`."""
    target = config.get("target") or {}
    name = target.get("name") or target.get("kind")
    device = provenance.get("device") or config.get("device")
    processor = provenance.get("device_name")
    dtype = provenance.get("dtype") or config.get("dtype")
    parts = [conditions(rows)]
    if num_infeasible := int(rows["infeasible"].sum()):
        num_settings = (rows["method"] != "vanilla").sum()
        parts.append(f"{num_settings} settings, {num_infeasible} infeasible")
    if name:
        parts.append(f"target {name}")
    if device:
        parts.append(f"{dtype or ''} on {device}{f' ({processor})' if processor else ''}")
    return f"Measured: {'; '.join(filter(None, parts))}"


def contestants(rows: pd.DataFrame) -> pd.DataFrame:
    """The feasible rows that may win: lossless methods, controls aside."""
    kept = ~rows["method"].isin(CONTROLS) & ~says_false(rows["lossless"]) & ~rows["infeasible"]
    return rows[kept].reset_index(drop=True)


def best_of(rows: pd.DataFrame, by: str, head: str) -> Iterator[str]:
    """The row with the highest `by` ("speedup" or "tau_micro"), and how far it stands out."""
    rows = contestants(rows)
    best = best_setting(rows, by)
    if best is None:
        return
    values = [
        f"{column.title} {text}" for key, column in _MEASURES.items() if (text := column.text(best))
    ]
    parts = [best["label"], *(values if by == "speedup" else values[::-1])]
    if by == "speedup" and best["speedup"] <= 1:
        parts.append("no faster than vanilla")
    elif by == "speedup" and not best["speedup_low"] > 1:
        parts.append("not shown to be faster than vanilla")
    overlap = len(rivals(rows, best, by))
    if overlap:
        parts.append(f"overlaps with {overlap} of {rows[by].count() - 1} others")
    yield f"{head}: {', '.join(parts)}"


def exactness(rows: pd.DataFrame, divergences: pd.DataFrame) -> Iterator[str]:
    """Whether greedy output is vanilla's, and whose is not."""
    rates = rows[rows["method"] != "vanilla"].dropna(subset=["greedy_match_rate"])
    if rates.empty:
        return
    ties = int((divergences["verdict"] == "tie").sum()) if "verdict" in divergences else 0
    short = rates[rates["greedy_match_rate"] < 1]
    found = [f"{row.label} {1 - row.greedy_match_rate:.1%}" for row in short.itertuples()]
    differing = f"turns that differ from vanilla: {', '.join(found)}"
    verdict = differing if found else "every method equals vanilla on every turn"
    yield f"Exactness: {verdict}; ties: {ties}"


def calibrated(generations: pd.DataFrame, seed: int) -> Iterator[str]:
    """How far each drafter's confidence is from acceptance."""
    for label, bins in calibration(generations, seed=seed).groupby("label", sort=False):
        error, count = expected_calibration_error(bins), bins["num_trials"].sum()
        yield f"Expected calibration error: {label}, {error:.4f} over {count:,} draft tokens"


def trained(training: pd.DataFrame) -> str:
    """The best validation of a training, and the first."""
    depths, by = acceptance_columns(training), TAU if TAU in training else "val_acceptance_1"
    best, first = training.loc[training[by].idxmax()], training.iloc[0]
    chain = f", expected τ of a chain {best[TAU]:.2f}" if by == TAU else ""
    return (
        f"Best of {len(training)} validations: step {best['step']:,.0f}{chain}, first draft token "
        f"accepted {best[depths[0]]:.1%} (at step {first['step']:,.0f}: {first[depths[0]]:.1%})"
    )


def profiled(profile: Profile) -> Iterator[str]:
    """What one token costs, where time goes outside the models, and which settings pay."""
    median, plain = pick(CURVES, "median_ms", "plain_median_ms")
    one = profile.first("target").iloc[0]
    layers = f", {plain.text(one)} with plain layers" if plain.text(one) else ""
    yield f"Target pass over {one['num_tokens']:g} token: {median.text(one)} ms{layers}"
    if not profile.overhead.empty:
        share = profile.overhead["overhead_ms"] / profile.overhead["cycle_ms"]
        yield f"Outside the models: {share.min():.1%} to {share.max():.1%} of a cycle"
    if "best" in profile.predictions:
        for row in profile.predictions.dropna(subset=["best"]).itertuples():
            pays = f"{row.method}, depth {row.depth:g}, {row.predicted_speedup:.2f}×"
            yield f"Best predicted {row.best}: {pays if row.predicted_speedup > 1 else 'none pays'}"
    if not profile.crossover.empty:
        context = profile.crossover["context"].min()
        for name, rows in assumptions(profile.crossover.query("context == @context")):
            paying = rows.loc[rows["predicted_speedup"] > 1, "batch_size"]
            pays = f"pays at batch {span(paying)}" if len(paying) else "pays at no batch size"
            yield f"Context {context:g}, {name}: {pays}"


def warnings_of(results: Run | Sweep) -> Iterator[str]:
    """What a reader has to know before any number."""
    rows = results.summary if isinstance(results, Run) else results.table
    if not results.finished:
        yield "Unfinished: the same command goes on where it stopped"
    if isinstance(results, Sweep) and results.missing:
        yield f"Jobs without a summary: {', '.join(results.missing)}"
    if rows.empty:
        return
    rows = label_rows(rows)
    if results.provenance.get("resumed") and results.timed:
        yield f"Times of several processes: resumed {len(results.provenance['resumed'])} times"
    disturbed = rows[rows["num_disturbed"] > 0]
    if (results.config.get("eval") or {}).get("replay"):
        yield REPLAYED
    for text, found in (
        ("Disturbed cycles (num_disturbed), so see speedup_robust", disturbed),
        ("Drafter of another target", rows[says_false(rows["drafter_matches_target"])]),
        ("Lossy, so out of the contest", rows[says_false(rows["lossless"])]),
    ):
        if len(found):
            yield f"{text}: {', '.join(dict.fromkeys(found['label']))}"


def drift(table: pd.DataFrame) -> Iterator[str]:
    """How vanilla's speed varied between the jobs of a sweep."""
    alike = len(table[["batch_size", "temperature"]].drop_duplicates()) == 1
    speeds = table.loc[table["method"] == "vanilla", "decode_tokens_per_second"].dropna()
    if alike and "job" in table and table["job"].nunique() > 1 and len(speeds):
        yield f"Vanilla in the jobs: {span(speeds.round(1))} tokens/s"


def contest(table: pd.DataFrame, rows: pd.DataFrame) -> Iterator[str]:
    """Fastest and highest τ of `rows`, and of every grid of tree sizes in `table`."""
    parts = {f" of {grid.title}": grid.rows for grid in grids(table)}
    if not parts or len(contestants(rows)) > 1:
        parts = {"": rows, **parts}
    for name, part in parts.items():
        labelled = label_rows(part)
        if has_values(labelled, "tau_micro"):
            yield from best_of(labelled, "speedup", f"Fastest{name}")
            yield from best_of(labelled, "tau_micro", f"Highest τ{name}")
