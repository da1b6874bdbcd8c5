"""Acceptance by depth, accepted lengths, calibration, from the cycles in `generations.jsonl`.

One cycle accepts `accepted` drafted tokens and emits `accepted + 1` tokens, the bonus token
included. After its last accepted token nothing was judged if the draft ended there, and nothing
is known if the text did (a cycle `cut` by its end or by the length limit emits no bonus token). A
cycle counts as a success at depths 1..accepted and as a failure at most at the next one.

Conditional acceptance at depth n leaves out both: what is no trial is no rejection. It is n-alpha
of the EAGLE papers (2401.15077, section 4.3) where the draft is a chain. Cumulative acceptance is
the chance that a cycle accepts n tokens, so a draft that ended counts there, and cut cycles alone
are left out. Where every draft is as deep as the table, it is the running product of the other.

    accepted 2, 0, 4, all judged beyond:  depth      1    2    3    4
                                          trials     3    2    2    1
                                          successes  2    2    1    1
"""

from __future__ import annotations

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
from eagle_lab.errors import UserError

Floats = NDArray[np.float64]


def cycles(generations: pd.DataFrame) -> pd.DataFrame:
    """One row per cycle: label, question_id, accepted, emitted, judged, cut."""
    rows: list[tuple[object, ...]] = []
    for _, row in generations.iterrows():
        accepted, emitted = row["accepted_lengths"], row["emitted_lengths"]
        judged = judged_lengths(row.get("judged_lengths"), accepted, emitted)
        columns = zip(accepted, emitted, judged, cut_cycles(accepted, emitted), strict=True)
        rows += [(row["label"], str(row["question_id"]), *cycle) for cycle in columns]
    names = ["label", "question_id", "accepted", "emitted", "judged", "cut"]
    return pd.DataFrame(rows, columns=names)


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
    counted = (
        cycle_rows.groupby(["label", "accepted"], sort=False).size().reset_index(name="cycles")
    )
    shares = counted["cycles"] / counted.groupby("label")["cycles"].transform("sum")
    return counted.assign(share=shares)


def tokens_per_cycle(generations: pd.DataFrame, cycle_rows: pd.DataFrame) -> pd.DataFrame:
    """Means per cycle and label: drafted (NaN where unrecorded), accepted and emitted tokens."""
    grouped = cycle_rows.groupby("label", sort=False)
    frame = grouped[["accepted", "emitted"]].mean().reset_index()
    drafted = pd.Series(dtype=float)
    if "num_drafted" in generations:
        drafted = generations.groupby("label")["num_drafted"].sum(min_count=1) / grouped.size()
    frame.insert(1, "drafted", frame["label"].map(drafted))
    return frame


NUM_BINS = 20
"""Of equal width over [0, 1]; a bin holds its lower edge, the last one 1 too."""


def calibration(generations: pd.DataFrame, *, seed: int = 0) -> pd.DataFrame:
    """Acceptance by the drafter's confidence, one row per label and bin that holds a judged token.

    Confidence is the probability that the drafter gave a token after its parent. A bench with
    `eval.record_confidence=true` notes it for every drafted token the target judged: those whose
    parent was accepted. EAGLE-2 (2406.16858) builds its trees on confidence close to acceptance.

    Args:
        generations: rows with `label`, `draft_confidences` and `draft_accepted`.
        seed: of the bootstrap, which resamples questions.

    Returns:
        Columns label, confidence_from, confidence_to, num_trials, mean_confidence, acceptance,
        acceptance_low and acceptance_high (95 %). A calibrated drafter's acceptance is the mean
        confidence of the bin, which a bin that fills unevenly has away from its middle.

    Raises:
        UserError: no row has confidences.
    """
    if not has_confidences(generations):
        raise UserError(
            "the run noted no confidences; run it with eval.record_confidence=true "
            "eval.timing=false and a method that has them, such as eagle_dynamic"
        )
    rows = generations[generations["draft_confidences"].notna()]
    frames = [
        _label_calibration(str(label), part, seed)
        for label, part in rows.groupby("label", sort=False)
    ]
    return pd.concat(frames, ignore_index=True)


def has_confidences(generations: pd.DataFrame) -> bool:
    """Whether any row noted its drafter's confidences."""
    return "draft_confidences" in generations and generations["draft_confidences"].notna().any()


def expected_calibration_error(bins: pd.DataFrame) -> float:
    """Mean distance of acceptance from confidence over the judged tokens, by bins of `calibration`.

    Expected calibration error (Guo et al. 1706.04599, equation 3), of one label's bins.
    """
    distance = (bins["acceptance"] - bins["mean_confidence"]).abs()
    return float(np.average(distance, weights=bins["num_trials"]))


def _label_calibration(label: str, rows: pd.DataFrame, seed: int) -> pd.DataFrame:
    question = pd.factorize(rows["question_id"].astype(str))[0]
    trials, accepted, confidence = np.zeros((3, int(question.max()) + 1, NUM_BINS))
    columns = (question, rows["draft_confidences"], rows["draft_accepted"])
    for place, confidences, outcomes in zip(*columns, strict=True):
        given = np.asarray(confidences, dtype=np.float64)
        # 0.15 / 0.05 is 2.999…: the edge belongs to the bin above it
        bins = np.minimum(np.floor(given * NUM_BINS + 1e-9).astype(int), NUM_BINS - 1)
        np.add.at(trials[place], bins, 1)
        np.add.at(confidence[place], bins, given)
        np.add.at(accepted[place], bins, np.asarray(outcomes, dtype=np.float64))
    low, high = intervals(accepted, trials, seed)
    edges = np.round(np.linspace(0, 1, NUM_BINS + 1), 6)
    frame = pd.DataFrame(
        {
            "label": label,
            "confidence_from": edges[:-1],
            "confidence_to": edges[1:],
            "num_trials": trials.sum(axis=0).astype(int),
            "mean_confidence": ratio(confidence.sum(axis=0), trials.sum(axis=0)),
            "acceptance": ratio(accepted.sum(axis=0), trials.sum(axis=0)),
            "acceptance_low": low,
            "acceptance_high": high,
        }
    )
    return frame[frame["num_trials"] > 0]
