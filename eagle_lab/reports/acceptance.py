"""Acceptance by depth, accepted lengths and tau, from the cycles in `generations.jsonl`.

One cycle accepts `accepted` drafted tokens and emits `accepted + 1` tokens, the target's own
included. A cycle cut by the end of the text or by the length limit emits no token of its own: what
would have followed its last accepted draft is unknown. Such a cycle counts as a success at depths
1..accepted and as no trial at all beyond (right-censored).

    accepted 2, 0, 4, all whole:  depth      1    2    3    4
                                  trials     3    2    2    1
                                  successes  2    2    1    1

Conditional acceptance at depth n is n-alpha of the EAGLE papers (2401.15077, section 4.3) where the
draft is a chain; cumulative acceptance is its running product.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd
from numpy.typing import NDArray

NUM_RESAMPLES = 2000
Floats = NDArray[np.float64]


def emitted_lengths(row: pd.Series) -> list[int]:
    """Tokens emitted per cycle of one generation.

    Where the file does not hold them they follow from the token count: the prefill gives the first
    token, every cycle but the last gives accepted + 1, the last one gives what is left.
    """
    kept = row.get("emitted_lengths")
    if isinstance(kept, list):
        return [int(value) for value in kept]
    accepted = row["accepted_lengths"]
    if not accepted:
        return []
    before = [int(value) + 1 for value in accepted[:-1]]
    return [*before, len(row["tokens"]) - 1 - sum(before)]


def cycles(generations: pd.DataFrame) -> pd.DataFrame:
    """One row per cycle: label, question_id, accepted, emitted, cut (True where censored)."""
    return pd.DataFrame(
        list(_cycle_rows(generations)),
        columns=["label", "question_id", "accepted", "emitted", "cut"],
    )


def _cycle_rows(generations: pd.DataFrame) -> Iterator[tuple[str, str, int, int, bool]]:
    for _, row in generations.iterrows():
        emitted = emitted_lengths(row)
        for accepted, tokens in zip(row["accepted_lengths"], emitted, strict=True):
            yield row["label"], str(row["question_id"]), int(accepted), tokens, tokens <= accepted


def acceptance_by_depth(
    cycle_rows: pd.DataFrame, depths: dict[str, int] | None = None, *, seed: int = 0
) -> pd.DataFrame:
    """Conditional and cumulative acceptance per label and depth, with 95 % intervals.

    Args:
        cycle_rows: what `cycles` gives.
        depths: levels that a label's drafts have, if known; the deepest acceptance seen counts too.
        seed: of the bootstrap, which resamples questions.

    Returns:
        Columns label, depth, trials, accepted, and (conditional, cumulative) each plain, `_low`
        and `_high`. Depths that no cycle reached are left out.
    """
    frames = [
        _label_acceptance(label, rows, (depths or {}).get(str(label)), seed)
        for label, rows in cycle_rows.groupby("label", sort=False)
    ]
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()


def _label_acceptance(
    label: object, rows: pd.DataFrame, deepest: int | None, seed: int
) -> pd.DataFrame:
    num_depths = max(int(rows["accepted"].max()), deepest or 0)
    trials, successes = count_by_question(rows, num_depths)
    reached = int((trials.sum(axis=0) > 0).sum())
    trials, successes = trials[:, :reached], successes[:, :reached]
    conditional = ratio(successes.sum(axis=0), trials.sum(axis=0))
    weights = resample_weights(len(trials), seed)
    resampled = ratio(weights @ successes, weights @ trials)  # [resamples, depths]
    low, high = interval(resampled, len(trials))
    # A depth that a resample never reaches has accepted nothing there.
    running = np.asarray(np.cumprod(np.nan_to_num(resampled), axis=1), dtype=np.float64)
    cumulative_low, cumulative_high = interval(running, len(trials))
    return pd.DataFrame(
        {
            "label": label,
            "depth": np.arange(1, reached + 1),
            "trials": trials.sum(axis=0).astype(int),
            "accepted": successes.sum(axis=0).astype(int),
            "conditional": conditional,
            "conditional_low": low,
            "conditional_high": high,
            "cumulative": np.cumprod(conditional),
            "cumulative_low": cumulative_low,
            "cumulative_high": cumulative_high,
        }
    )


def count_by_question(rows: pd.DataFrame, num_depths: int) -> tuple[Floats, Floats]:
    """Trials and successes `[questions, depths]` of one label's cycles."""
    question = pd.factorize(rows["question_id"])[0]
    depth = np.arange(1, num_depths + 1)
    accepted = rows["accepted"].to_numpy()[:, None]
    success = accepted >= depth
    trial = success | ((accepted == depth - 1) & ~rows["cut"].to_numpy(dtype=bool)[:, None])
    trials = np.zeros((int(question.max()) + 1, num_depths))
    successes = np.zeros_like(trials)
    np.add.at(trials, question, trial)
    np.add.at(successes, question, success)
    return trials, successes


def resample_weights(num_questions: int, seed: int) -> Floats:
    """How often each question is drawn in each bootstrap resample: `[resamples, questions]`."""
    random = np.random.default_rng(seed)
    equal = np.full(num_questions, 1 / num_questions)
    return random.multinomial(num_questions, equal, size=NUM_RESAMPLES).astype(float)


def interval(samples: Floats, num_questions: int) -> tuple[Floats, Floats]:
    """2.5 and 97.5 percentiles over axis 0 of `[resamples, columns]`.

    NaN where there is no value, and everywhere with fewer than two questions.
    """
    bounds = np.full((2, samples.shape[1]), np.nan)
    if num_questions < 2:
        return bounds[0], bounds[1]
    for column in range(samples.shape[1]):
        values = samples[:, column][~np.isnan(samples[:, column])]
        if values.size:
            bounds[:, column] = np.percentile(values, [2.5, 97.5])
    return bounds[0], bounds[1]


def ratio(numerator: Floats, denominator: Floats) -> Floats:
    """numerator / denominator, NaN where that is 0."""
    return np.divide(
        numerator, denominator, out=np.full_like(numerator, np.nan), where=denominator > 0
    )


def accepted_histogram(cycle_rows: pd.DataFrame) -> pd.DataFrame:
    """Share of cycles by number of accepted draft tokens: label, accepted, cycles, share."""
    if cycle_rows.empty:
        return pd.DataFrame(columns=["label", "accepted", "cycles", "share"])
    counted = cycle_rows.groupby(["label", "accepted"], sort=False).size().rename("cycles")
    frame = counted.reset_index()
    frame["share"] = frame["cycles"] / frame.groupby("label")["cycles"].transform("sum")
    order = {label: rank for rank, label in enumerate(cycle_rows["label"].unique())}
    return frame.sort_values(
        ["label", "accepted"],
        key=lambda column: column.map(order) if column.name == "label" else column,
        ignore_index=True,
    )


def tokens_per_cycle(generations: pd.DataFrame, cycle_rows: pd.DataFrame) -> pd.DataFrame:
    """Means per cycle and label: drafted (empty where unrecorded), accepted and emitted tokens."""
    if cycle_rows.empty:
        return pd.DataFrame(columns=["label", "drafted", "accepted", "emitted"])
    grouped = cycle_rows.groupby("label", sort=False)
    frame = grouped[["accepted", "emitted"]].mean().reset_index()
    if "num_drafted" in generations:
        drafted = generations.groupby("label", sort=False)["num_drafted"].sum(min_count=1)
        frame["drafted"] = (frame["label"].map(drafted) / grouped.size().to_numpy()).to_numpy()
    else:
        frame["drafted"] = np.nan
    return frame[["label", "drafted", "accepted", "emitted"]]
