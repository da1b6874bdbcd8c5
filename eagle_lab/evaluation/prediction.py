"""Speedups that cost curves and measured acceptance predict, beside what a bench measured.

The two are measured apart: acceptance in the bench, costs in the profile. Where they agree, the
speedup is understood; where they do not, something costs time that no pass accounts for. Knows no
files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eagle_lab.errors import UserError
from eagle_lab.evaluation.arithmetic import tau_of_conditional
from eagle_lab.evaluation.cost_model import CostModel
from eagle_lab.evaluation.method import VANILLA

PREDICTION_COLUMNS = (
    *("method", "depth", "width", "num_nodes", "tau_micro", "predicted_speedup"),
    *("decode_speedup", "speedup", "speedup_low", "speedup_high", "best"),
)
CHAIN, TREE = "chain", "tree"
UNPREDICTED = ("hybrid",)
"""Methods with a drafter whose cycles have no one size: a tree here, a copied branch there."""
Row = dict[str, Any]


@dataclass(frozen=True)
class BenchFacts:
    """What a finished bench measured.

    Attributes:
        methods: rows of its summary.
        acceptance: per method and setting, as in its summary.json.
        batch_size: turns decoded side by side.
        mean_context: tokens before a cycle, on average over turns.
    """

    methods: Sequence[Mapping[str, Any]]
    acceptance: Sequence[Mapping[str, Any]]
    batch_size: int
    mean_context: float

    @property
    def drafting(self) -> list[Mapping[str, Any]]:
        """The rows of methods that draft with a trained drafter alone and could run."""
        return [
            row
            for row in self.methods
            if row["drafter_matches_target"] is not None
            and row["tau_micro"] is not None
            and row["method"] not in UNPREDICTED
        ]

    def check(self, batch_sizes: Sequence[int], num_tokens: Sequence[int]) -> None:
        """Raise `UserError` unless costs measured so would cover the bench."""
        if not self.drafting:
            raise UserError("profile.run: the bench has no method with a drafter to predict")
        if self.batch_size not in batch_sizes:
            raise UserError(
                f"profile.run: the bench ran at batch size {self.batch_size}, "
                f"profile.batch_sizes={list(batch_sizes)} does not hold it"
            )
        widest = 1 + max(row["num_nodes"] for row in self.drafting)
        if widest > max(num_tokens):
            raise UserError(
                f"profile.run: the bench verified {widest} tokens in a pass, "
                f"profile.num_tokens={list(num_tokens)} does not reach them"
            )


def predict(
    bench: BenchFacts, curves: Sequence[Mapping[str, Any]], overhead_ms: Mapping[str, float]
) -> list[Row]:
    """Predicted and measured speedups: every drafting row of the bench, and the best chain length.

    Args:
        curves: rows of cost_curves.csv; of its contexts the nearest to the bench's counts.
        overhead_ms: per method and cycle, vanilla among them; a method without its own gets the
            largest.

    Returns:
        Rows of `PREDICTION_COLUMNS`. `best` marks the best predicted chain and tree.
        `decode_speedup` leaves prefill out as the prediction does, `speedup` is end to end.
    """
    contexts = {int(row["context"]) for row in curves}
    context = min(contexts, key=lambda one: abs(one - bench.mean_context))

    def costs_of(method: str) -> CostModel:
        return CostModel.from_rows(
            curves,
            batch_size=bench.batch_size,
            context=context,
            overhead_ms=overhead_ms.get(method, max(overhead_ms.values())),
            plain_overhead_ms=overhead_ms[VANILLA],
        )

    vanilla = next(row for row in bench.methods if row["method"] == VANILLA)
    rows = [_row(method, vanilla, costs_of(method["method"])) for method in bench.drafting]
    rows += _best_chain(bench, rows, costs_of)
    for kind in (CHAIN, TREE):
        candidates = [row for row in rows if _kind(row) == kind]
        if candidates:
            max(candidates, key=lambda row: row["predicted_speedup"])["best"] = kind
    return rows


def _kind(row: Mapping[str, Any]) -> str:
    return CHAIN if row["num_nodes"] == row["depth"] else TREE


def _row(method: Mapping[str, Any], vanilla: Mapping[str, Any], costs: CostModel) -> Row:
    row: Row = dict.fromkeys(PREDICTION_COLUMNS)
    row |= {name: method[name] for name in PREDICTION_COLUMNS if name in method}
    # A fixed tree has no one width: its levels hold num_nodes / depth nodes on average
    width = method["width"] or method["num_nodes"] / method["depth"]
    sizes = (method["depth"], width, method["num_nodes"])
    row["predicted_speedup"] = costs.speedup(method["tau_micro"], *sizes)
    rates = (method["decode_tokens_per_second"], vanilla["decode_tokens_per_second"])
    if all(rates):
        row["decode_speedup"] = rates[0] / rates[1]
    return row


def _best_chain(bench: BenchFacts, rows: Sequence[Row], costs_of: Any) -> list[Row]:
    """The length that the n-alphas of the longest chain favour, unless the bench has that row.

    Length 0 says that no chain pays.
    """
    chains = [row for row in rows if _kind(row) == CHAIN]
    if not chains:
        return []
    longest = max(chains, key=lambda row: row["depth"])
    conditional = next(
        entry["conditional"]
        for entry in bench.acceptance
        if (entry["method"], entry["depth"]) == (longest["method"], longest["depth"])
    )
    rates = [0.0 if rate is None else rate for rate in conditional]
    length, speedup = costs_of(longest["method"]).best_chain(rates)
    if any(row["depth"] == length for row in chains):
        return []
    row: Row = dict.fromkeys(PREDICTION_COLUMNS)
    tau = tau_of_conditional(rates[:length])
    sizes = {"depth": length, "num_nodes": length, "tau_micro": tau}
    return [row | sizes | {"method": longest["method"], "predicted_speedup": speedup}]
