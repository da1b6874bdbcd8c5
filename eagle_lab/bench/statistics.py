"""Numbers from rows of generations.jsonl, and the arithmetic of speculative decoding (float64).

Knows the keys of the rows; no model, no file and no configuration.

    cycle      one draft and one target pass; the last one counts, with the tokens it really emitted
    tokens     what was emitted: the prefill's first token and EOS included, nothing after EOS
    tau        tokens after the first one / cycles (vanilla is exactly 1)
    seconds    a row's share of its batch's time, by the tokens it emitted: rows of one batch share
               a clock, so intervals of speed are on the narrow side at batch sizes above 1
    intervals  95 %, paired bootstrap over questions, with everything that was measured on each:
               the turns of one question are not independent. All statistics of a run use the same
               resamples

Percentile intervals of few questions are too narrow: of a mean of normal values they hold the
truth in 50 % of cases with 2 questions, 74 % with 3, 83 % with 5, 92 % with 16, 95 % with 80. What
rests on fewer than `MIN_QUESTIONS` questions gets none.

"Leviathan" is "Fast Inference from Transformers via Speculative Decoding" (2211.17192), "EAGLE"
2401.15077. Costs are in units of one plain decoding step of the target.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.float64]
VerifyCost = Callable[[int], float]
"""Cost of one target pass over that many tokens, v(n), with v(1) = 1."""


def expected_tokens_per_cycle(acceptance_rate: float, num_draft_tokens: int) -> float:
    """Expected tokens one cycle emits, the bonus token included (Leviathan, equation 1).

    (1 - alpha^(gamma + 1)) / (1 - alpha) for a chain of gamma tokens whose acceptances are
    independent and equally likely. alpha 0.7, gamma 4 gives 2.7731.
    """
    if not 0.0 <= acceptance_rate <= 1.0 or num_draft_tokens < 0:
        raise ValueError(f"impossible: {acceptance_rate=}, {num_draft_tokens=}")
    if acceptance_rate == 1.0:
        return float(num_draft_tokens + 1)
    return float((1 - acceptance_rate ** (num_draft_tokens + 1)) / (1 - acceptance_rate))


def expected_speedup(
    acceptance_rate: float,
    num_draft_tokens: int,
    draft_cost: float,
    verify_cost: VerifyCost | None = None,
) -> float:
    """Expected speedup over plain decoding (Leviathan, theorem 3.8).

    The textbook takes a target pass to cost one step however many tokens it holds:
    E / (gamma c + 1). With `verify_cost`, the measured curve of the machine, it is
    E / (gamma c + v(gamma + 1)).

    Args:
        draft_cost: c, the cost of one draft step.
        verify_cost: v(n); None is the textbook's v = 1.
    """
    if draft_cost < 0:
        raise ValueError(f"draft_cost must not be negative, got {draft_cost}")
    verify = 1.0 if verify_cost is None else float(verify_cost(num_draft_tokens + 1))
    tokens = expected_tokens_per_cycle(acceptance_rate, num_draft_tokens)
    return tokens / (num_draft_tokens * draft_cost + verify)


def tau_of_conditional(conditional: ArrayLike) -> float:
    """Tokens per cycle of a chain with these n-alphas: 1 + the sum of their running products.

    An n-alpha of NaN (never reached) adds nothing.
    """
    rates = np.nan_to_num(np.asarray(conditional, dtype=np.float64), nan=0.0)
    return float(1.0 + np.cumprod(rates).sum())


def depth_counts(
    accepted: ArrayLike, judged: ArrayLike, num_depths: int
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Trials and successes `[cycles, num_depths]` of the drafted tokens of a run.

    Args:
        accepted: drafted tokens accepted in each cycle.
        judged: tokens judged in each cycle: the accepted ones, and the rejected one if there is
            one. Where the draft ended after the accepted tokens, or the text did, the next token
            was never on trial: it leaves the count instead of being a rejection.

    Three cycles accept 2, 0 and 1; the last one's draft had but one token:

        depth      1    2    3
        trials     3    1    1
        successes  2    1    0
    """
    levels = np.arange(1, num_depths + 1)
    return np.asarray(judged)[:, None] >= levels, np.asarray(accepted)[:, None] >= levels


def conditional_from_lengths(
    accepted: Sequence[int], judged: Sequence[int], *, depth: int | None = None
) -> FloatArray:
    """EAGLE's n-alpha: chance of the n-th draft token, given that all before it are accepted.

    Element 0 is the paper's 0-alpha. From the accepted and judged lengths of a run, see
    `depth_counts`.

    Args:
        depth: how many n to return; by default the longest accepted length.

    Returns:
        `[depth]`, NaN where no cycle came that far.
    """
    num_depths = max(accepted, default=0) if depth is None else depth
    if not len(accepted):
        return np.full(num_depths, np.nan)
    trials, successes = depth_counts(accepted, judged, num_depths)
    num_tried, rates = trials.sum(axis=0), np.full(num_depths, np.nan)
    return np.divide(successes.sum(axis=0), num_tried, out=rates, where=num_tried > 0)


def cumulative_from_lengths(
    accepted: Sequence[int], cut: Sequence[bool], *, depth: int | None = None
) -> FloatArray:
    """Chance that a cycle accepts at least n drafted tokens, n = 1 … depth.

    A draft that ended before the n-th token accepted fewer; a cycle that the end of the text `cut`
    might have accepted more, so it leaves the count there (the product-limit estimate).

    Returns:
        `[depth]`, NaN where all cycles that came that far were cut before.
    """
    reached = [kept + (not ended) for kept, ended in zip(accepted, cut, strict=True)]
    return running_product(conditional_from_lengths(accepted, reached, depth=depth))


def running_product(rates: ArrayLike) -> FloatArray:
    """Products of the first n of `rates` along the last axis; 0 after a 0, NaN after a NaN."""
    values = np.asarray(rates, dtype=np.float64)
    ended = np.logical_or.accumulate(values == 0, axis=-1)
    return np.where(ended, 0.0, np.cumprod(values, axis=-1))


class Interval(NamedTuple):
    """Both ends of an interval; None where it cannot be told."""

    low: float | None
    high: float | None


NO_INTERVAL = Interval(None, None)
MIN_QUESTIONS = 5
"""Questions that an interval rests on at least: those with a part in the lower sum of its ratio."""


def question_weights(num_questions: int, *, num_resamples: int = 10_000, seed: int) -> FloatArray:
    """How often each question is drawn in each resample, `[num_resamples, num_questions]`.

    A row sums to `num_questions`: the counts of drawing that many with replacement.
    """
    if num_questions < 1:
        raise ValueError("a bootstrap needs at least one question")
    generator = np.random.default_rng(seed)
    shares = np.full(num_questions, 1.0 / num_questions)
    return generator.multinomial(num_questions, shares, size=num_resamples).astype(np.float64)


def resampled_ratio(
    weights: FloatArray, numerator: ArrayLike, denominator: ArrayLike
) -> FloatArray:
    """Ratio of sums in each resample, `[num_resamples]`; NaN where the lower sum is 0.

    Args:
        weights: from `question_weights`, `[num_resamples, num_questions]`.
        numerator, denominator: one sum per question, `[num_questions]`; or several,
            `[num_questions, columns]`, for ratios `[num_resamples, columns]`.
    """
    above = weights @ np.asarray(numerator, dtype=np.float64)
    return ratio(above, weights @ np.asarray(denominator, dtype=np.float64))


def ratio(numerator: FloatArray, denominator: FloatArray) -> FloatArray:
    """numerator / denominator, NaN where that is 0."""
    unknown = np.full_like(numerator, np.nan)
    return np.divide(numerator, denominator, out=unknown, where=denominator != 0)


def percentile_interval(values: FloatArray, *, level: float = 0.95) -> Interval:
    """Middle `level` share of the resampled values (Efron's percentile interval)."""
    known = values[np.isfinite(values)]
    if not len(known):
        return NO_INTERVAL
    tail = 50.0 * (1.0 - level)
    low, high = np.percentile(known, [tail, 100.0 - tail])
    return Interval(float(low), float(high))


def column_intervals(values: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Both ends of the 95 % interval of each column of `[num_resamples, columns]`, else NaN."""
    ends = [percentile_interval(column) for column in values.T]
    low, high = np.array(ends, dtype=np.float64).reshape(-1, 2).T  # None becomes NaN
    return low, high


def ratio_interval(weights: FloatArray, numerator: ArrayLike, denominator: ArrayLike) -> Interval:
    """95 % interval of a ratio of sums; none where it rests on fewer than `MIN_QUESTIONS`."""
    if np.count_nonzero(denominator) < MIN_QUESTIONS:
        return NO_INTERVAL
    return percentile_interval(resampled_ratio(weights, numerator, denominator))


def relative_interval(
    weights: FloatArray, own: tuple[ArrayLike, ArrayLike], base: tuple[ArrayLike, ArrayLike]
) -> Interval:
    """95 % interval of one ratio of sums over another, both of the same resampled questions.

    None where either rests on fewer than `MIN_QUESTIONS`.

    Args:
        own, base: (numerator, denominator), one sum per question each.
    """
    if min(np.count_nonzero(own[1]), np.count_nonzero(base[1])) < MIN_QUESTIONS:
        return NO_INTERVAL
    ours, theirs = resampled_ratio(weights, *own), resampled_ratio(weights, *base)
    return percentile_interval(ratio(ours, theirs))


Row = dict[str, Any]


@dataclass(frozen=True)
class QuestionSums:
    """Sums over the turns and repeats of each question, each `[num_questions]`.

    `tau_sum / num_taus` is the mean tau over turns; a turn that the prefill's token ended has
    no cycle and no tau. Seconds are NaN where nothing was timed.
    """

    num_turns: FloatArray
    num_tokens: FloatArray
    num_cycles: FloatArray
    tau_sum: FloatArray
    num_taus: FloatArray
    wall_s: FloatArray
    decode_s: FloatArray

    @classmethod
    def of(cls, rows: Sequence[Row], question_ids: Sequence[str | int]) -> QuestionSums:
        """Add up `rows`, all of one method, in the order of `question_ids`."""
        place = {question_id: index for index, question_id in enumerate(question_ids)}
        sums = np.zeros((7, len(place)))
        for row, wall_s, decode_s in zip(rows, *batch_shares(rows), strict=True):
            check_counts(row)
            tau = tau_of(row)
            counts = (1, len(row["tokens"]), len(row["emitted_lengths"]))
            values = (*counts, tau or 0.0, tau is not None, wall_s, decode_s)
            sums[:, place[row["question_id"]]] += values
        return cls(*sums)

    @property
    def num_decoded(self) -> FloatArray:
        """Tokens that cycles emitted: all but the first of each turn."""
        return self.num_tokens - self.num_turns


def tau_of(row: Row) -> float | None:
    """Tokens per cycle of one turn; None if the prefill's token already ended it."""
    emitted = row["emitted_lengths"]
    return sum(emitted) / len(emitted) if emitted else None


def judged_lengths(recorded: object, accepted: Sequence[int], emitted: Sequence[int]) -> list[int]:
    """Drafted tokens judged in each cycle: `recorded`, the row's own, if it is a list.

    Rows of older files have none. Their drafts are taken to have continued after the accepted
    tokens wherever the text did, which makes a rejection of every draft that ended there.
    """
    if isinstance(recorded, list):
        return recorded
    cut = cut_cycles(accepted, emitted)
    return [kept + (not ended) for kept, ended in zip(accepted, cut, strict=True)]


def cut_cycles(accepted: Sequence[int], emitted: Sequence[int]) -> list[bool]:
    """Which cycles the end of the text or the length limit cut: no bonus token."""
    return [new <= kept for kept, new in zip(accepted, emitted, strict=True)]


def check_counts(row: Row) -> None:
    """Raise ValueError unless a row's tokens are those its prefill and its cycles emitted.

    A cycle emits its accepted tokens and the bonus token, or, cut by EOS or the length
    limit, its accepted tokens alone.
    """
    emitted, accepted = row["emitted_lengths"], row["accepted_lengths"]
    cycles_agree = len(emitted) == len(accepted) and all(
        new in (kept, kept + 1) and new > 0 for new, kept in zip(emitted, accepted, strict=True)
    )
    if not cycles_agree or len(row["tokens"]) != 1 + sum(emitted):
        raise ValueError(
            f"{row['method']}, question {row['question_id']}, turn {row['turn']}: "
            f"{len(row['tokens'])} tokens do not fit cycles that emitted {emitted} and "
            f"accepted {accepted}"
        )


def batch_shares(rows: Sequence[Row]) -> tuple[FloatArray, FloatArray]:
    """Wall and decode seconds of each row: its share, by tokens, of its batch's; NaN untimed."""
    wall, decode = np.full(len(rows), np.nan), np.full(len(rows), np.nan)
    for members in _batches(rows):
        if rows[members[0]]["decode_s"] is None:
            continue
        seconds = batch_seconds([rows[index] for index in members])
        tokens = np.array([len(rows[index]["tokens"]) for index in members], dtype=np.float64)
        wall[members] = tokens / tokens.sum() * seconds["wall_s"]
        decode[members] = tokens / tokens.sum() * seconds["decode_s"]
    return wall, decode


def batch_seconds(rows: Sequence[Row]) -> dict[str, float]:
    """Seconds and cycles of one batch: those of its slowest row, which the others waited for.

    A peer's split into drafting and verifying is unknown: NaN, or None in rows read from a file.
    """
    split_known = all(row["draft_s"] is not None for row in rows)
    return {
        "wall_s": max(row["prefill_s"] + row["decode_s"] for row in rows),
        "prefill_s": max(row["prefill_s"] for row in rows),
        "decode_s": max(row["decode_s"] for row in rows),
        "draft_s": max(row["draft_s"] for row in rows) if split_known else np.nan,
        "verify_s": max(row["verify_s"] for row in rows) if split_known else np.nan,
        "num_cycles": max(len(row["emitted_lengths"]) for row in rows),
    }


def timed_batches(rows: Sequence[Row]) -> list[dict[str, float]]:
    """`batch_seconds` of every batch that was timed."""
    return [
        batch_seconds([rows[index] for index in members])
        for members in _batches(rows)
        if rows[members[0]]["decode_s"] is not None
    ]


DISTURBED = 10.0
"""A cycle that takes longer than this many times the median was held up by something else."""


def disturbed(cycles: ArrayLike, others: ArrayLike = ()) -> int:
    """How many of `cycles`, in seconds, are disturbed; the median is theirs and the `others`'."""
    seconds = np.asarray(cycles, dtype=np.float64)
    everything = np.concatenate([seconds, np.asarray(others, dtype=np.float64)])
    return int((seconds > DISTURBED * np.median(everything)).sum()) if len(seconds) else 0


def cycle_seconds(rows: Sequence[Row]) -> FloatArray:
    """Seconds of all cycles of a method's timed batches, each batch's from its longest row."""
    longest = [
        max((rows[index]["cycle_s"] for index in members), key=len)
        for members in _batches(rows)
        if rows[members[0]]["decode_s"] is not None
    ]
    return np.concatenate([np.zeros(0), *longest])


def robust_seconds(rows: Sequence[Row]) -> float:
    """Wall seconds per token of a method, every prefill and cycle taken at its median."""
    batches, cycles = timed_batches(rows), cycle_seconds(rows)
    seconds = len(batches) * np.median([batch["prefill_s"] for batch in batches])
    seconds += len(cycles) * np.median(cycles) if len(cycles) else 0.0
    return float(seconds / sum(len(row["tokens"]) for row in rows))


def num_disturbed(rows: Sequence[Row]) -> int:
    """Disturbed cycles of a method, those included that a second measurement replaced."""
    replaced = (max(rows[i].get("num_replaced") or 0 for i in batch) for batch in _batches(rows))
    return disturbed(cycle_seconds(rows)) + sum(replaced)


def _batches(rows: Sequence[Row]) -> list[list[int]]:
    """Indices of the rows that were decoded together; all rows are of one method."""
    batches: defaultdict[tuple[int, int, int], list[int]] = defaultdict(list)
    for index, row in enumerate(rows):
        batches[row["repeat"], row["turn"], row["batch"]].append(index)
    return list(batches.values())


def turn_key(row: Row) -> tuple[str | int, int, int]:
    """What a turn is paired by: (question, turn, repeat)."""
    return (row["question_id"], row["turn"], row["repeat"])
