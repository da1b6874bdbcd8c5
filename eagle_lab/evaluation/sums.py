"""Counting rows of generations.jsonl: tokens, cycles, tau and time, added up by question.

Knows the keys of the rows, not where they come from. What is counted:

    tokens     what was emitted: the prefill's first token and EOS included, nothing behind EOS
               or the length limit
    cycles     draft-and-verify passes; the last one counts, with the tokens it really emitted
    tau        tokens behind the first one / cycles (vanilla is exactly 1)
    seconds    a row's share of its batch's time, by the tokens it emitted

At batch size 1 a row's time is its own. The rows of a larger batch share one clock; intervals
that draw questions then take them for separate measurements, so intervals of speed come out on
the narrow side.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Row = dict[str, Any]
FloatArray = NDArray[np.float64]


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

    Rows of older files have none. Their drafts are taken to have gone on behind the accepted
    tokens wherever the text did, which makes a rejection of every draft that ended there.
    """
    if isinstance(recorded, list):
        return recorded
    cut = cut_cycles(accepted, emitted)
    return [kept + (not ended) for kept, ended in zip(accepted, cut, strict=True)]


def cut_cycles(accepted: Sequence[int], emitted: Sequence[int]) -> list[bool]:
    """Which cycles the end of the text or the length limit cut: no token of the target's own."""
    return [new <= kept for kept, new in zip(accepted, emitted, strict=True)]


def check_counts(row: Row) -> None:
    """Raise ValueError unless a row's tokens are those its prefill and its cycles emitted.

    A cycle emits its accepted tokens and the target's own one, or, cut by EOS or the length
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


def _batches(rows: Sequence[Row]) -> list[list[int]]:
    """Indices of the rows that were decoded together; all rows are of one method."""
    batches: defaultdict[tuple[int, int, int], list[int]] = defaultdict(list)
    for index, row in enumerate(rows):
        batches[row["repeat"], row["turn"], row["batch"]].append(index)
    return list(batches.values())
