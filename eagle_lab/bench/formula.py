"""Leviathan's formula beside a bench: what acceptance alone predicts for chains of a fixed length.

All lengths of one method share one acceptance rate alpha, pooled over their cycles. From it, and
from what a draft and a verify pass cost in steps of plain decoding, follow the expected tokens per
cycle (Leviathan et al. 2211.17192, equation 1) and the expected speedup (theorem 3.8, with the
verify pass's own cost). The formula gives every drafted token the same chance; where measurements
leave it, the chance depends on the place in the draft.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from eagle_lab.bench.statistics import (
    FloatArray,
    Interval,
    QuestionSums,
    Row,
    expected_speedup,
    expected_tokens_per_cycle,
    judged_lengths,
    question_weights,
    ratio_interval,
    relative_interval,
)
from eagle_lab.methods.build import VANILLA, Key, key_of


def formula_rows(summary: Sequence[Row], rows: Sequence[Row], seed: int) -> list[Row]:
    """Predicted and measured numbers of every chain of a fixed length, vanilla's aside.

    Args:
        summary: rows of summary.csv, vanilla's among them.
        rows: all rows of generations.jsonl.
        seed: of the bootstrap.

    Returns:
        method, depth, width, num_nodes, settings; num_draft_tokens; acceptance (of this length),
        tau_micro and decode_speedup, each with a 95 % interval; predicted_tau_micro and
        predicted_decode_speedup. Speedups leave prefill out, as the formula does, and are None
        where nothing was timed.
    """
    question_ids = list(dict.fromkeys(row["question_id"] for row in rows))
    weights = question_weights(len(question_ids), seed=seed) if question_ids else np.ones((1, 0))
    plain = next(line for line in summary if line["method"] == VANILLA)
    counts = {
        _key(line): _Counts.of([row for row in rows if key_of(row) == _key(line)], question_ids)
        for line in summary
        if line["method"] == VANILLA or _is_fixed_chain(line)
    }
    found = []
    for line in filter(_is_fixed_chain, summary):
        own = [count for key, count in counts.items() if key[0] == line["method"]]
        judged = sum(count.judged.sum() for count in own)
        if judged:
            alpha = sum(count.accepted.sum() for count in own) / judged
            measured = _measured(counts[_key(line)], counts[_key(plain)], weights)
            found.append(_identity(line) | measured | _predicted(alpha, line, plain))
    return found


def _key(line: Row) -> Key:
    """The key of a row of summary.csv."""
    return line["method"], line["settings"]


def _is_fixed_chain(line: Mapping[str, Any]) -> bool:
    """Whether every draft was one branch of the same length."""
    depth, drafted = line["depth"], line["drafted_per_cycle"]
    return bool(depth and drafted) and depth == line["num_nodes"] and np.isclose(drafted, depth)


def _identity(line: Mapping[str, Any]) -> Row:
    names = ("method", "depth", "width", "num_nodes", "settings")
    return {name: line[name] for name in names} | {"num_draft_tokens": line["depth"]}


@dataclass(frozen=True)
class _Counts:
    """Of one method and setting by question: drafts judged and accepted, and its sums."""

    judged: FloatArray
    accepted: FloatArray
    sums: QuestionSums

    @classmethod
    def of(cls, rows: Sequence[Row], question_ids: Sequence[str | int]) -> _Counts:
        place = {question_id: index for index, question_id in enumerate(question_ids)}
        judged, accepted = np.zeros(len(place)), np.zeros(len(place))
        for row in rows:
            index = place[row["question_id"]]
            lengths = row["accepted_lengths"], row["emitted_lengths"]
            accepted[index] += sum(row["accepted_lengths"])
            # Nothing is judged after a chain's end, whatever rows without a record leave open
            judged[index] += sum(
                min(length, row["depth"] or 0)
                for length in judged_lengths(row.get("judged_lengths"), *lengths)
            )
        return cls(judged, accepted, QuestionSums.of(rows, question_ids))


def _measured(ours: _Counts, plain: _Counts, weights: FloatArray) -> Row:
    sums, base = ours.sums, plain.sums
    speedup: Row = dict.fromkeys(("decode_speedup", "decode_speedup_low", "decode_speedup_high"))
    if np.isfinite([sums.decode_s, base.decode_s]).all():
        times = (base.decode_s, base.num_decoded), (sums.decode_s, sums.num_decoded)
        (plain_s, plain_tokens), (own_s, bonus_tokens) = times
        ratio = (plain_s.sum() / plain_tokens.sum()) / (own_s.sum() / bonus_tokens.sum())
        speedup = _named("decode_speedup", ratio, relative_interval(weights, *times))
    return (
        _ratio("acceptance", ours.accepted, ours.judged, weights)
        | _ratio("tau_micro", sums.num_decoded, sums.num_cycles, weights)
        | speedup
    )


def _ratio(name: str, above: FloatArray, below: FloatArray, weights: FloatArray) -> Row:
    return _named(name, above.sum() / below.sum(), ratio_interval(weights, above, below))


def _named(name: str, value: float, interval: Interval) -> Row:
    return {name: float(value), f"{name}_low": interval.low, f"{name}_high": interval.high}


def _predicted(alpha: float, line: Mapping[str, Any], plain: Mapping[str, Any]) -> Row:
    """What the formula makes of alpha and of the costs of this length's passes."""
    length = line["depth"]
    speedup = None
    if line["draft_ms"] is not None and plain["verify_ms"]:
        step = plain["verify_ms"]
        verify = line["verify_ms"] / step
        draft = line["draft_ms"] / step / length
        speedup = expected_speedup(alpha, length, draft, lambda num_tokens: verify)
    return {
        "alpha": float(alpha),
        "predicted_tau_micro": expected_tokens_per_cycle(alpha, length),
        "predicted_decode_speedup": speedup,
    }
