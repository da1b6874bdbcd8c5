"""The findings of a run in sentences, each with its interval and its n.

Says no more than the numbers do: a speedup whose interval holds 1 is called unproven, and control
or lossy methods never win.
"""

from __future__ import annotations

import pandas as pd

from eagle_lab.bench.statistics import MIN_QUESTIONS
from eagle_lab.reports.calibration import (
    NUM_BINS,
    calibration,
    expected_calibration_error,
    has_confidences,
)
from eagle_lab.reports.frames import label_generations
from eagle_lab.reports.load import Run
from eagle_lab.reports.profile_report import profile_sentences
from eagle_lab.reports.sweep_sentences import best_words
from eagle_lab.reports.sweeps import grids, headline_rows, rivals
from eagle_lab.reports.training import acceptance_columns, tau_column
from eagle_lab.reports.words import (
    counted,
    interval_words,
    known,
    replay_finding,
    setting_words,
    span,
    value_words,
)

CONTROLS = ("vanilla", "self_speculation", "hf_generate")


def run_sentences(run: Run) -> list[str]:
    """What a bench found: setting, winner by speed, winner by τ, exactness, warnings.

    Of a training: its best validation; of a profile: what passes cost.
    """
    if run.profile is not None:
        return profile_sentences(run.profile, run.config, run.provenance)
    if run.summary.empty:
        return [_trained(run)]
    rows = headline_rows(run.main)
    found = grids(run.summary)
    tree_sizes = [best_words(grid, by) for grid in found for by in ("speedup", "tau_macro")]
    return [
        said
        for said in (
            _measured_on(run, rows),
            replay_finding(run.config),
            fastest(rows),
            *(tree_sizes or [_longest(rows)]),
            _exactness(rows, run.divergences),
            *_calibrated(run, rows),
            _strangers(rows),
            _lossy(rows),
        )
        if said
    ]


def _trained(run: Run) -> str:
    columns, tau = acceptance_columns(run.training), tau_column(run.training)
    rows = run.training.reset_index(drop=True)
    best = rows.loc[int(rows[tau or columns[0]].argmax())]
    first = rows.loc[0]
    chain = f"expected τ of a chain {best[tau]:.2f}, " if tau else ""
    return (
        f"Best of {len(rows)} validations at step {best['step']:,.0f}: {chain}first draft token "
        f"accepted {best[columns[0]]:.1%} (at the first validation, step {first['step']:,.0f}: "
        f"{first[columns[0]]:.1%})."
    )


def _measured_on(run: Run, rows: pd.DataFrame) -> str:
    where = setting_words(run.config, run.provenance)
    asked = known(rows, "num_questions")
    size = counted(rows["num_questions"].max(), "question") if asked else ""
    tokens = f"{rows['num_tokens'].sum():,.0f} tokens emitted by {counted(len(rows), 'setting')}"
    conditions = [
        f"{name}{span(rows[column])}"
        for column, name in (("temperature", "T = "), ("batch_size", "batch size "))
        if known(rows, column)
    ]
    return f"Measured: {', '.join(part for part in (size, tokens, *conditions, where) if part)}."


def _contestants(rows: pd.DataFrame) -> pd.DataFrame:
    lossy = rows["method"].str.contains("lossy")
    return rows[~rows["method"].isin(CONTROLS) & ~lossy]


def fastest(rows: pd.DataFrame) -> str:
    """The fastest of `rows`, and which of the others come near; nothing for untimed rows."""
    timed = _contestants(rows).dropna(subset=["speedup"]).reset_index(drop=True)
    if timed.empty:
        return ""
    best = timed.loc[int(timed["speedup"].argmax())]
    speed = f"{best['speedup']:.2f}× vanilla's speed{interval_words(best, 'speedup')}"
    tau = "" if pd.isna(best["tau_macro"]) else f", with τ = {value_words(best, 'tau_macro')}"
    if best["speedup"] <= 1:
        return f"No method is faster than vanilla; the nearest is {best['label']}, {speed}{tau}."
    said = f"{best['label']} is the fastest: {speed}{tau}"
    if pd.isna(best["speedup_low"]):
        return f"{said}; with fewer than {MIN_QUESTIONS} questions there is no interval."
    if best["speedup_low"] <= 1:
        return f"{said}; the interval holds 1, so a speedup is not shown."
    close = ", ".join(rivals(timed, best, "speedup")["label"])
    return f"{said}." + (f" The intervals of {close} reach into it." if close else "")


def _longest(rows: pd.DataFrame) -> str:
    measured = _contestants(rows).dropna(subset=["tau_macro"]).reset_index(drop=True)
    if len(measured) < 2:
        return ""
    best = measured.loc[int(measured["tau_macro"].argmax())]
    if pd.notna(best["speedup"]) and best["speedup"] == measured["speedup"].max():
        return f"{best['label']} also has the longest acceptance."
    said = f"{best['label']} has the longest acceptance: τ = {value_words(best, 'tau_macro')}"
    if pd.notna(best["speedup"]):
        said += f", at {best['speedup']:.2f}× vanilla's speed{interval_words(best, 'speedup')}"
    return f"{said}."


def _exactness(rows: pd.DataFrame, divergences: pd.DataFrame) -> str:
    rates = rows[rows["method"] != "vanilla"].dropna(subset=["greedy_match_rate"])
    if rates.empty:
        return ""
    short = rates[rates["greedy_match_rate"] < 1]
    ties = int((divergences["verdict"] == "tie").sum()) if "verdict" in divergences else 0
    listed = f" {counted(ties, 'tie')} listed below." if ties else ""
    if short.empty:
        return f"Every method's greedy output equals vanilla's on every turn.{listed}"
    worst = ", ".join(
        f"{row.label} on {1 - row.greedy_match_rate:.1%}" for row in short.itertuples()
    )
    return f"Not exact: greedy output differs from vanilla's for {worst} of turns.{listed}"


def _calibrated(run: Run, rows: pd.DataFrame) -> list[str]:
    """How far each drafter's confidence is from acceptance, where the run noted confidences."""
    generations = label_generations(run.generations, rows)
    if not has_confidences(generations).any():
        return []
    return [
        f"Expected calibration error of {label}: {expected_calibration_error(bins):.4f} over "
        f"{bins['num_trials'].sum():,.0f} judged draft tokens, {NUM_BINS} bins of confidence."
        for label, bins in calibration(generations, seed=run.seed).groupby("label", sort=False)
    ]


def _strangers(rows: pd.DataFrame) -> str:
    foreign = rows["drafter_matches_target"].astype(str).str.lower().isin({"false", "0", "0.0"})
    names = ", ".join(rows["label"][foreign]) if foreign.any() else ""
    return f"The drafter was trained for another target: {names}." if names else ""


def _lossy(rows: pd.DataFrame) -> str:
    names = ", ".join(rows["label"][rows["method"].str.contains("lossy")])
    return f"Lossy by design, so out of the comparison: {names}." if names else ""
