"""What a bench found: rows of summary.csv and summary_by_category.csv, and the proof of equality.

Made from rows of generations.jsonl; writes no file. Cells that do not apply are None.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from eagle_lab.bench import statistics
from eagle_lab.bench.formula import formula_rows
from eagle_lab.bench.matching import TIE_GAP, MatchReport, match_rows, measure_noise, teacher_of
from eagle_lab.bench.settings import BenchSettings
from eagle_lab.bench.statistics import (
    FloatArray,
    QuestionSums,
    Row,
    cut_cycles,
    judged_lengths,
    num_disturbed,
    question_weights,
    ratio_interval,
    relative_interval,
    robust_seconds,
    timed_batches,
    turn_key,
)
from eagle_lab.columns import CATEGORIES, SUMMARY, csv_names
from eagle_lab.methods.build import VANILLA, Key, Method, identity, key_of
from eagle_lab.targets.target import Target

COLUMNS = csv_names(SUMMARY)
CATEGORY_COLUMNS = csv_names(CATEGORIES)


@dataclass(frozen=True)
class Conditions:
    """What all rows of a bench share."""

    batch_size: int
    temperature: float
    seed: int


def summarize(
    method: Method,
    rows: Sequence[Row],
    vanilla: Sequence[Row],
    conditions: Conditions,
    *,
    match: MatchReport | None = None,
) -> Row:
    """One row of summary.csv.

    Args:
        rows: the method's rows; unused if it is infeasible.
        vanilla: vanilla's rows on the same questions, turns and repeats.
        match: how its greedy output compares with vanilla's, where that was asked.

    Raises:
        ValueError: if the two cover different turns, or a row's counts contradict each other.
    """
    summary: Row = dict.fromkeys(COLUMNS)
    summary |= {
        "method": method.name,
        "drafter": method.drafter,
        "drafter_matches_target": method.drafter_matches_target,
        "batch_size": conditions.batch_size,
        "temperature": conditions.temperature,
        **method.sizes,
        "settings": identity(method.settings),
        "status": "infeasible" if method.infeasible else "ok",
        "reason": method.infeasible,
        "lossless": method.lossless,
    }
    if method.infeasible:
        return summary
    return summary | {
        **measures(rows, vanilla, conditions.seed),
        **timing_columns(rows),
        "num_turns": len(rows),
        "drafted_per_cycle": _ratio(
            sum(row["num_drafted"] for row in rows),
            sum(len(row["emitted_lengths"]) for row in rows),
        ),
        "peak_memory_mb": max(
            (row["peak_memory_mb"] for row in rows if row["peak_memory_mb"] is not None),
            default=None,
        ),
        "speedup_robust": _robust_speedup(rows, vanilla),
        **({} if match is None else match.rates()),
    }


def summarize_categories(
    method: Method, rows: Sequence[Row], vanilla: Sequence[Row], conditions: Conditions
) -> list[Row]:
    """Rows of summary_by_category.csv, one per category, in the order of the questions."""
    if method.infeasible:
        return []
    return [
        dict.fromkeys(CATEGORY_COLUMNS)
        | {
            "method": method.name,
            "category": category,
            **method.sizes,
            "settings": identity(method.settings),
            **measures(
                [row for row in rows if row["category"] == category],
                [row for row in vanilla if row["category"] == category],
                conditions.seed,
            ),
        }
        for category in dict.fromkeys(row["category"] for row in rows)
    ]


def measures(rows: Sequence[Row], vanilla: Sequence[Row], seed: int) -> Row:
    """Counts, tau and speedup with their intervals, over the questions of `rows`."""
    if sorted(map(turn_key, rows), key=str) != sorted(map(turn_key, vanilla), key=str):
        raise ValueError(
            f"{rows[0]['method'] if rows else 'a method'} and vanilla answered other turns"
        )
    question_ids = list(dict.fromkeys(row["question_id"] for row in vanilla))
    ours, theirs = QuestionSums.of(rows, question_ids), QuestionSums.of(vanilla, question_ids)
    weights = question_weights(len(question_ids), seed=seed)
    micro_low, micro_high = ratio_interval(weights, ours.num_decoded, ours.num_cycles)
    macro_low, macro_high = ratio_interval(weights, ours.tau_sum, ours.num_taus)
    return {
        "num_questions": len(question_ids),
        "num_tokens": int(ours.num_tokens.sum()),
        "num_cycles": int(ours.num_cycles.sum()),
        "tau_micro": _ratio(ours.num_decoded.sum(), ours.num_cycles.sum()),
        "tau_micro_low": micro_low,
        "tau_micro_high": micro_high,
        "tau_macro": _ratio(ours.tau_sum.sum(), ours.num_taus.sum()),
        "tau_macro_low": macro_low,
        "tau_macro_high": macro_high,
        **_speedup(ours, theirs, weights),
    }


def _speedup(ours: QuestionSums, vanilla: QuestionSums, weights: FloatArray) -> Row:
    """Vanilla's wall time per emitted token over the method's, paired by question."""
    per_token = _ratio(ours.wall_s.sum(), ours.num_tokens.sum())
    baseline = _ratio(vanilla.wall_s.sum(), vanilla.num_tokens.sum())
    if per_token is None or baseline is None:
        return {"speedup": None, "speedup_low": None, "speedup_high": None}
    low, high = relative_interval(
        weights, (vanilla.wall_s, vanilla.num_tokens), (ours.wall_s, ours.num_tokens)
    )
    return {"speedup": baseline / per_token, "speedup_low": low, "speedup_high": high}


def _robust_speedup(rows: Sequence[Row], vanilla: Sequence[Row]) -> float | None:
    """The speedup with every prefill and cycle at its median: what single stalls cannot move."""
    if not (timed_batches(rows) and timed_batches(vanilla)):
        return None
    return _ratio(robust_seconds(vanilla), robust_seconds(rows))


def timing_columns(rows: Sequence[Row]) -> Row:
    """Rates, the split of a cycle, and latencies; empty if nothing was timed."""
    batches = timed_batches(rows)
    if not batches:
        return {}
    total = {name: sum(batch[name] for batch in batches) for name in batches[0]}
    num_tokens = sum(len(row["tokens"]) for row in rows)
    split = {
        "draft_ms": total["draft_s"],
        "verify_ms": total["verify_s"],
        "overhead_ms": total["decode_s"] - total["draft_s"] - total["verify_s"],
    }
    return {
        "tokens_per_second": _ratio(num_tokens, total["wall_s"]),
        "decode_tokens_per_second": _ratio(num_tokens - len(rows), total["decode_s"]),
        **{name: _ratio(1e3 * seconds, total["num_cycles"]) for name, seconds in split.items()},
        "num_disturbed": num_disturbed(rows),
        "ttft_ms": 1e3 * float(np.mean([row["prefill_s"] for row in rows])),
        **_latencies(rows),
    }


def _latencies(rows: Sequence[Row]) -> Row:
    """Percentiles of the inter-token latency: every token waited its cycle's time / its tokens."""
    waits = [
        np.repeat(np.divide(row["cycle_s"], row["emitted_lengths"]), row["emitted_lengths"])
        for row in rows
        if row["emitted_lengths"]
    ]
    if not waits:
        return {}
    p50, p95, p99 = 1e3 * np.percentile(np.concatenate(waits), [50, 95, 99])
    return {"itl_p50_ms": float(p50), "itl_p95_ms": float(p95), "itl_p99_ms": float(p99)}


def _ratio(above: float, below: float) -> float | None:
    """above / below; None where that is unknown."""
    value = above / below if below else float("nan")
    return float(value) if np.isfinite(value) else None


@dataclass(frozen=True)
class BenchResults:
    """Tables of a bench, rows as dictionaries.

    Attributes:
        summary: one row per method and setting (`columns.SUMMARY`).
        by_category: one row per method, setting and category (`columns.CATEGORIES`).
        divergences: first divergences from vanilla, ties included
            (`matching.DIVERGENCE_COLUMNS`).
        noise: how much the target's logits depend on the size of a pass; None when sampling
            or replaying.
        acceptance: per method and setting, acceptance by depth and accepted lengths.
        formula: chains of a fixed length beside what Leviathan's formula predicts for them.
    """

    summary: list[Row]
    by_category: list[Row]
    divergences: list[Row]
    noise: dict[str, float | int] | None
    acceptance: list[Row]
    formula: list[Row]

    def as_json(self) -> dict[str, Any]:
        """The contents of summary.json."""
        return {
            "methods": self.summary,
            "divergences": self.divergences,
            "num_ties": sum(row["verdict"] == "tie" for row in self.divergences),
            "num_mismatches": sum(row["verdict"] == "mismatch" for row in self.divergences),
            "tie_gap": TIE_GAP,
            "logit_noise": self.noise,
            "acceptance": self.acceptance,
            "formula": self.formula,
        }


def evaluate(
    target: Target, methods: Sequence[Method], rows: Sequence[Row], settings: BenchSettings
) -> BenchResults:
    """Summarize the rows of a bench; at temperature 0 also hold them against vanilla's,
    unless that is what they replayed."""
    conditions = Conditions(settings.batch_size, settings.sampling.temperature, settings.seed)
    by_method = {
        method.key: [row for row in rows if key_of(row) == method.key] for method in methods
    }
    vanilla = next(by_method[method.key] for method in methods if method.name == VANILLA)
    matches: dict[Key, MatchReport] = {}
    divergences: list[Row] = []
    noise = None
    if settings.sampling.greedy and not settings.replay:  # a replay is equal by construction
        noise = measure_noise(target, vanilla)
        teacher = teacher_of(target)
        for method in methods:
            if method.infeasible is None and method.lossless:
                matches[method.key] = match_rows(by_method[method.key], vanilla, teacher)
                divergences += matches[method.key].divergences
    summary = [
        summarize(m, by_method[m.key], vanilla, conditions, match=matches.get(m.key))
        for m in methods
    ]
    return BenchResults(
        summary=summary,
        by_category=[
            row
            for method in methods
            for row in summarize_categories(method, by_method[method.key], vanilla, conditions)
        ],
        divergences=divergences,
        noise=noise,
        acceptance=[
            {"method": method.name, **method.sizes, "settings": identity(method.settings)}
            | acceptance(by_method[method.key], method.depth)
            for method in methods
            if method.infeasible is None
        ],
        formula=formula_rows(summary, rows, settings.seed),
    )


def acceptance(rows: Sequence[Row], depth: int | None) -> dict[str, Any]:
    """Acceptance by depth and the histogram of accepted lengths, for summary.json."""
    accepted: list[int] = []
    judged: list[int] = []
    cut: list[bool] = []
    for row in rows:
        lengths = row["accepted_lengths"], row["emitted_lengths"]
        accepted += lengths[0]
        judged += judged_lengths(row.get("judged_lengths"), *lengths)
        cut += cut_cycles(*lengths)
    if depth is not None:  # a hybrid's copies are longer than its tree is deep
        depth = max([depth, *accepted])
    conditional = statistics.conditional_from_lengths(accepted, judged, depth=depth)
    cumulative = statistics.cumulative_from_lengths(accepted, cut, depth=depth)
    return {
        "conditional": [None if np.isnan(rate) else float(rate) for rate in conditional],
        "cumulative": [None if np.isnan(rate) else float(rate) for rate in cumulative],
        "histogram": np.bincount(np.asarray(accepted, dtype=np.int64)).tolist(),
    }
