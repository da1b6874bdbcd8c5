"""Expected speedup from measured pass costs and acceptance: what a setting should bring here.

A cycle of depth d and width w costs one target pass over 1 + num_nodes tokens, one draft pass
over the pairs accepted in the cycle before (it yields level 1), d - 1 draft passes over w nodes,
and the loop's own overhead. Costs come from cost_curves.csv; knows no model and measures nothing.
With CUDA graphs a whole tree of a drafter is one graph, whose passes follow each other without
a launch between them: the sum of single passes, each a launch of its own, then says too much.

    rows = read_curves("runs/profile/cost_curves.csv")
    CostModel.from_rows(rows, batch_size=1, context=128).best_chain([0.6, 0.5, 0.5])

Where speculation stops paying: the speedup that cost curves predict, batch size by batch size.

More rows make a pass over one token do more arithmetic, until drafted tokens are no longer verified
for nothing. Acceptance is assumed, not measured: a chain whose tokens are each accepted with the
same chance, and a tree that emits so many tokens per cycle. Knows no model and measures nothing.

Speedups that cost curves and measured acceptance predict, beside what a bench measured.

The two are measured apart: acceptance in the bench, costs in the profile. Where they agree, the
speedup is understood; where they do not, something costs time that no pass accounts for. Knows no
files.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from eagle_lab.bench.statistics import tau_of_conditional
from eagle_lab.columns import CROSSOVER, PREDICTIONS, csv_names
from eagle_lab.errors import UserError
from eagle_lab.methods.build import VANILLA


@dataclass(frozen=True)
class CostCurve:
    """Milliseconds of one pass by its number of tokens, straight lines between measurements.

    Attributes:
        num_tokens: ascending, from 1.
        milliseconds: as many.
    """

    num_tokens: tuple[int, ...]
    milliseconds: tuple[float, ...]

    def __call__(self, num_tokens: float) -> float:
        """Cost of a pass over `num_tokens`; UserError beyond the largest measured one."""
        if not self.num_tokens[0] <= num_tokens <= self.num_tokens[-1]:
            raise UserError(
                f"no cost is known for a pass over {num_tokens:g} tokens; measured: "
                f"{self.num_tokens[0]} to {self.num_tokens[-1]}"
            )
        return float(np.interp(num_tokens, self.num_tokens, self.milliseconds))


@dataclass(frozen=True)
class CostModel:
    """Costs of one machine at one batch size and context.

    Attributes:
        target: passes of the target.
        draft: passes of the drafter.
        overhead_ms: of a cycle, outside of both.
        plain_overhead_ms: of a step of plain decoding; None takes `overhead_ms`.
    """

    target: CostCurve
    draft: CostCurve
    overhead_ms: float = 0.0
    plain_overhead_ms: float | None = None

    @classmethod
    def from_rows(
        cls,
        rows: Iterable[Mapping[str, Any]],
        *,
        batch_size: int,
        context: int,
        overhead_ms: float = 0.0,
        plain_overhead_ms: float | None = None,
    ) -> CostModel:
        """From rows of cost_curves.csv.

        Raises:
            UserError: if they hold nothing for this batch size and context.
        """
        points: dict[str, dict[int, float]] = {"target": {}, "draft": {}}
        for row in rows:
            if int(row["batch_size"]) == batch_size and int(row["context"]) == context:
                points[row["model_pass"]][int(row["num_tokens"])] = float(row["median_ms"])
        for name, curve in points.items():
            if not curve:
                raise UserError(
                    f"no {name} passes were measured at batch_size={batch_size}, context={context}"
                )
        target, draft = (
            CostCurve(*zip(*sorted(points[name].items()), strict=True))
            for name in ("target", "draft")
        )
        return cls(target, draft, overhead_ms, plain_overhead_ms)

    def cycle_ms(self, tau: float, depth: int, width: float, num_nodes: int) -> float:
        """Cost of one cycle of a dynamic tree; a chain has width 1 and num_nodes = depth.

        No draft at all (depth 0) is plain decoding.
        """
        if depth == 0:
            plain = self.plain_overhead_ms
            return self.target(1) + (self.overhead_ms if plain is None else plain)
        drafting = self.draft(max(tau, 1.0)) + (depth - 1) * self.draft(width)
        return drafting + self.target(1 + num_nodes) + self.overhead_ms

    def speedup(self, tau: float, depth: int, width: float, num_nodes: int) -> float:
        """Expected speedup of decoding over plain decoding (prefill not counted)."""
        plain = self.cycle_ms(1.0, 0, 1, 0)
        return tau * plain / self.cycle_ms(tau, depth, width, num_nodes)

    def chain_speedups(self, conditional: Sequence[float]) -> list[float]:
        """Expected speedup of chains of 0, 1, … tokens whose n-alphas are `conditional`."""
        return [
            self.speedup(tau_of_conditional(conditional[:length]), length, 1, length)
            for length in range(len(conditional) + 1)
        ]

    def best_chain(self, conditional: Sequence[float]) -> tuple[int, float]:
        """Length and expected speedup of the best chain that `conditional` allows.

        The shortest of equally good ones; length 0 says that drafting does not pay.
        """
        speedups = self.chain_speedups(conditional)
        length = int(np.argmax(speedups))
        return length, speedups[length]


def read_curves(path: str | Path) -> list[dict[str, str]]:
    """Rows of a cost_curves.csv, for `CostModel.from_rows`.

    Raises:
        UserError: no such file, or one that lacks a column.
    """
    try:
        with Path(path).open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            missing = set(_READ_COLUMNS) - set(reader.fieldnames or ())
            rows = list(reader)
    except OSError as error:
        raise UserError(f"no cost curves at {path}; +experiment=profile writes them") from error
    if missing:
        raise UserError(
            f"{path} is no table of cost curves: it has no {', '.join(sorted(missing))}"
        )
    return rows


_READ_COLUMNS = ("model_pass", "batch_size", "context", "num_tokens", "median_ms")


CHAIN, TREE = "chain", "tree"
Row = dict[str, Any]


@dataclass(frozen=True)
class Assumed:
    """What drafting is assumed to achieve: one row of results for each chance and each tau.

    Attributes:
        depth, width, num_nodes: of the tree.
        acceptance: chances that a token of a chain is accepted.
        longest: longest chain considered.
        tree_taus: tokens that a cycle with the tree emits, those that its depth allows.
    """

    depth: int
    width: int
    num_nodes: int
    acceptance: tuple[float, ...] = (0.6, 0.7, 0.8)
    longest: int = 7
    tree_taus: tuple[float, ...] = (3.0, 4.0)


def crossover(curves: Iterable[Mapping[str, Any]], assumed: Assumed) -> list[Row]:
    """Rows of crossover.csv for every batch size and context of `curves`.

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
            taus = [tau for tau in assumed.tree_taus if tau <= assumed.depth + 1]
            found += [_tree(costs, tau, assumed) for tau in taus]
        rows += [{"batch_size": batch_size, "context": context} | row for row in found]
    return [{name: row.get(name) for name in csv_names(CROSSOVER)} for row in rows]


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


UNPREDICTED = ("hybrid",)
"""Methods with a drafter whose cycles have no one size: a tree here, a copied branch there."""


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
        Rows of predictions.csv. `best` marks the best predicted chain and tree.
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
    row: Row = dict.fromkeys(csv_names(PREDICTIONS))
    row |= {name: method[name] for name in row if name in method}
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
    row: Row = dict.fromkeys(csv_names(PREDICTIONS))
    tau = tau_of_conditional(rates[:length])
    sizes = {"depth": length, "num_nodes": length, "tau_micro": tau}
    return [row | sizes | {"method": longest["method"], "predicted_speedup": speedup}]
