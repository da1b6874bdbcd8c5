"""What a bench found: its summary tables and the proof of equality, from its rows.

Knows no files; the tasks write what stands here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from eagle_lab.evaluation import arithmetic
from eagle_lab.evaluation.formula import formula_rows
from eagle_lab.evaluation.matching import TIE_GAP, match_rows, measure_noise, teacher_of
from eagle_lab.evaluation.method import VANILLA, Method, key_of
from eagle_lab.evaluation.metrics import Conditions, summarise, summarise_categories
from eagle_lab.evaluation.plan import BenchSettings
from eagle_lab.evaluation.sums import Row, cut_cycles, judged_lengths
from eagle_lab.models.target import Target


@dataclass(frozen=True)
class BenchResults:
    """Tables of a bench, rows as dictionaries.

    Attributes:
        summary: one row per method and setting (`metrics.COLUMNS`).
        by_category: one row per method, setting and category (`metrics.CATEGORY_COLUMNS`).
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
    """Summarise the rows of a bench; at temperature 0 also hold them against vanilla's,
    unless that is what they replayed."""
    conditions = Conditions(settings.batch_size, settings.sampling.temperature, settings.seed)
    by_method = {
        method.key: [row for row in rows if key_of(row) == method.key] for method in methods
    }
    vanilla = next(by_method[method.key] for method in methods if method.name == VANILLA)
    rates: dict[tuple[object, ...], float] = {}
    divergences: list[Row] = []
    noise = None
    if settings.sampling.greedy and not settings.replay:  # a replay is equal by construction
        noise = measure_noise(target, vanilla)
        teacher = teacher_of(target)
        for method in methods:
            if method.infeasible is None and not method.lossy:
                report = match_rows(by_method[method.key], vanilla, teacher)
                rates[method.key] = report.rate
                divergences += report.divergences
    summary = [
        summarise(
            method,
            by_method[method.key],
            vanilla,
            conditions,
            greedy_match_rate=rates.get(method.key),
        )
        for method in methods
    ]
    return BenchResults(
        summary=summary,
        by_category=[
            row
            for method in methods
            for row in summarise_categories(method, by_method[method.key], vanilla, conditions)
        ],
        divergences=divergences,
        noise=noise,
        acceptance=[
            {"method": method.name, **method.settings}
            | acceptance(by_method[method.key], method.depth)
            for method in methods
            if method.infeasible is None
        ],
        formula=formula_rows(summary, rows, settings.seed),
    )


def acceptance(rows: Sequence[Row], depth: int | None) -> dict[str, Any]:
    """Acceptance by depth and the histogram of accepted lengths, for summary.json."""
    accepted = [length for row in rows for length in row["accepted_lengths"]]
    judged = [
        length
        for row in rows
        for length in judged_lengths(
            row.get("judged_lengths"), row["accepted_lengths"], row["emitted_lengths"]
        )
    ]
    cut = [
        ended
        for row in rows
        for ended in cut_cycles(row["accepted_lengths"], row["emitted_lengths"])
    ]
    if depth is not None:  # a hybrid's copies are longer than its tree is deep
        depth = max([depth, *accepted])
    conditional = arithmetic.conditional_from_lengths(accepted, judged, depth=depth)
    cumulative = arithmetic.cumulative_from_lengths(accepted, cut, depth=depth)
    return {
        "conditional": [None if np.isnan(rate) else float(rate) for rate in conditional],
        "cumulative": [None if np.isnan(rate) else float(rate) for rate in cumulative],
        "histogram": np.bincount(np.asarray(accepted, dtype=np.int64)).tolist(),
    }
