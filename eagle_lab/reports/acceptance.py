"""Acceptance by depth, accepted lengths and tau, from the cycles in `generations.jsonl`.

One cycle accepts `accepted` drafted tokens and emits `accepted + 1` tokens, the target's own
included. Behind its last accepted token nothing was judged if the draft ended there, and nothing
is known if the text did (a cycle `cut` by its end or by the length limit emits no token of its
own). A cycle counts as a success at depths 1..accepted and as a failure at most at the next one.

Conditional acceptance at depth n leaves out both: what is no trial is no rejection. It is n-alpha
of the EAGLE papers (2401.15077, section 4.3) where the draft is a chain. Cumulative acceptance is
the chance that a cycle accepts n tokens, so a draft that ended counts there, and cut cycles alone
are left out. Where every draft is as deep as the table, it is the running product of the other.

    accepted 2, 0, 4, all judged beyond:  depth      1    2    3    4
                                          trials     3    2    2    1
                                          successes  2    2    1    1
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from eagle_lab.bench.statistics import (
    MIN_QUESTIONS,
    column_intervals,
    cut_cycles,
    depth_counts,
    judged_lengths,
    question_weights,
    ratio,
    resampled_ratio,
    running_product,
)

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
    """One row per cycle: label, question_id, accepted, emitted, judged, cut."""
    return pd.DataFrame(
        list(_cycle_rows(generations)),
        columns=["label", "question_id", "accepted", "emitted", "judged", "cut"],
    )


def _cycle_rows(generations: pd.DataFrame) -> Iterator[tuple[str, str, int, int, int, bool]]:
    for _, row in generations.iterrows():
        accepted, emitted = row["accepted_lengths"], emitted_lengths(row)
        judged = judged_lengths(row.get("judged_lengths"), accepted, emitted)
        identity = row["label"], str(row["question_id"])
        columns = (accepted, emitted, judged, cut_cycles(accepted, emitted))
        for kept, new, tried, cut in zip(*columns, strict=True):
            yield *identity, int(kept), new, int(tried), cut


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
    trials, successes = count_by_question(rows, rows["judged"], num_depths)
    reached = int((trials.sum(axis=0) > 0).sum())
    trials, successes = trials[:, :reached], successes[:, :reached]
    possible, _ = count_by_question(rows, rows["accepted"] + ~rows["cut"].astype(bool), reached)
    low, high = intervals(successes, trials, seed)
    cumulative_low, cumulative_high = intervals(successes, possible, seed, running=True)
    return pd.DataFrame(
        {
            "label": label,
            "depth": np.arange(1, reached + 1),
            "trials": trials.sum(axis=0).astype(int),
            "accepted": successes.sum(axis=0).astype(int),
            "conditional": ratio(successes.sum(axis=0), trials.sum(axis=0)),
            "conditional_low": low,
            "conditional_high": high,
            "cumulative": running_product(ratio(successes.sum(axis=0), possible.sum(axis=0))),
            "cumulative_low": cumulative_low,
            "cumulative_high": cumulative_high,
        }
    )


def count_by_question(
    rows: pd.DataFrame, judged: pd.Series, num_depths: int
) -> tuple[Floats, Floats]:
    """Trials and successes `[questions, depths]` of one label's cycles that `judged` so much."""
    question = pd.factorize(rows["question_id"])[0]
    by_cycle = depth_counts(rows["accepted"].to_numpy(), judged.to_numpy(), num_depths)
    trials, successes = np.zeros((2, int(question.max()) + 1, num_depths))
    np.add.at(trials, question, by_cycle[0])
    np.add.at(successes, question, by_cycle[1])
    return trials, successes


def intervals(
    successes: Floats, trials: Floats, seed: int, *, running: bool = False
) -> tuple[Floats, Floats]:
    """95 % intervals of the rates (or their running products) of `[questions, columns]`.

    NaN where fewer than `MIN_QUESTIONS` questions have a trial; of a running product, in its first
    column, since its later ones are shares of all of these trials.
    """
    rates = resampled_ratio(question_weights(len(trials), seed=seed), successes, trials)
    num_questions = np.count_nonzero(trials, axis=0)
    if running:  # a depth that a resample never reaches has accepted nothing there
        rates, num_questions = running_product(np.nan_to_num(rates)), num_questions[:1]
    few = num_questions < MIN_QUESTIONS
    low, high = column_intervals(rates)
    return np.where(few, np.nan, low), np.where(few, np.nan, high)


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
