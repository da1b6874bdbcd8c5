"""Where speculation stops paying: the speedup that cost curves predict, batch size by batch size.

More rows make a pass over one token do more arithmetic, until drafted tokens are no longer verified
for nothing. Acceptance is assumed, not measured: a chain whose tokens are each accepted with the
same chance, and a tree that emits so many tokens per cycle. Knows no model and measures nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eagle_lab.errors import UserError
from eagle_lab.evaluation.arithmetic import tau_of_conditional
from eagle_lab.evaluation.cost_model import CostModel

CROSSOVER_COLUMNS = (
    *("drafting", "batch_size", "context", "acceptance", "depth", "width", "num_nodes", "tau"),
    "predicted_speedup",
)
CHAIN, TREE = "chain", "tree"
Row = dict[str, Any]


@dataclass(frozen=True)
class Assumed:
    """What drafting is assumed to achieve.

    Attributes:
        acceptance: chances that a token of a chain is accepted, one row of results for each.
        longest: longest chain considered.
        tree_taus: tokens that a cycle with the tree emits, one row of results for each.
        depth, width, num_nodes: of that tree.

    Raises:
        UserError: a chance outside [0, 1], or more tokens per cycle than the tree has levels.
    """

    acceptance: Sequence[float] = (0.6, 0.7, 0.8)
    longest: int = 7
    tree_taus: Sequence[float] = ()
    depth: int = 6
    width: int = 10
    num_nodes: int = 59

    def __post_init__(self) -> None:
        if not all(0 <= rate <= 1 for rate in self.acceptance):
            raise UserError(f"profile.acceptance={list(self.acceptance)}; each is from 0 to 1")
        if not all(1 <= tau <= self.depth + 1 for tau in self.tree_taus):
            raise UserError(
                f"profile.tree_taus={list(self.tree_taus)}; a tree of {self.depth} levels emits "
                f"1 to {self.depth + 1} tokens per cycle"
            )


def crossover(curves: Iterable[Mapping[str, Any]], assumed: Assumed) -> list[Row]:
    """Rows of `CROSSOVER_COLUMNS` for every batch size and context of `curves`.

    A chain has the length that pays best there; depth 0 says that none pays, speedup 1. Costs
    outside the passes of the two models are not counted. A tree is left out where the curves do
    not reach its size.

    Args:
        curves: rows of cost_curves.csv.
        assumed: acceptance.
    """
    curves = list(curves)
    places = sorted({(int(row["batch_size"]), int(row["context"])) for row in curves})
    rows: list[Row] = []
    for batch_size, context in places:
        costs = CostModel.from_rows(curves, batch_size=batch_size, context=context)
        found = [_chain(costs, rate, assumed.longest) for rate in assumed.acceptance]
        if costs.target.num_tokens[-1] > assumed.num_nodes:
            found += [_tree(costs, tau, assumed) for tau in assumed.tree_taus]
        rows += [{"batch_size": batch_size, "context": context} | row for row in found]
    return [{name: row.get(name) for name in CROSSOVER_COLUMNS} for row in rows]


def _chain(costs: CostModel, rate: float, longest: int) -> Row:
    longest = min(longest, costs.target.num_tokens[-1] - 1)
    length, speedup = costs.best_chain([rate] * longest)
    return {
        "drafting": CHAIN,
        "acceptance": rate,
        "depth": length,
        "width": 1,
        "num_nodes": length,
        "tau": tau_of_conditional([rate] * length),
        "predicted_speedup": speedup,
    }


def _tree(costs: CostModel, tau: float, assumed: Assumed) -> Row:
    sizes = {"depth": assumed.depth, "width": assumed.width, "num_nodes": assumed.num_nodes}
    speedup = costs.speedup(tau, **sizes)
    return {"drafting": TREE, **sizes, "tau": tau, "predicted_speedup": speedup}
