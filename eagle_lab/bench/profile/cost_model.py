"""Expected speedup from measured pass costs and acceptance: what a setting should bring here.

A cycle of depth d and width w costs one target pass over 1 + num_nodes tokens, one draft pass
over the pairs accepted in the cycle before (it yields level 1), d - 1 draft passes over w nodes,
and the loop's own overhead. With CUDA graphs a whole tree of a drafter is one graph, whose passes
follow each other without a launch between them: the sum of single passes then says too much.

    rows = read_curves("runs/profile/cost_curves.csv")
    CostModel.from_rows(rows, batch_size=1, context=128).best_chain([0.6, 0.5, 0.5])

`crossover` assumes acceptance and says at which batch size speculation stops paying. `predict`
takes it from a bench and puts predicted beside measured speedups: the two are measured apart, so
where they agree the speedup is understood, where not, something costs time that no pass accounts
for. Knows no model and measures nothing.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from eagle_lab.bench.statistics import tau_of_conditional
from eagle_lab.columns import CROSSOVER, PREDICTIONS, csv_names
from eagle_lab.errors import UserError
from eagle_lab.methods.build import VANILLA

CHAIN, TREE = "chain", "tree"
UNPREDICTED = ("hybrid",)
"""Methods with a drafter whose cycles have no one size: a tree here, a copied branch there."""
Row = dict[str, Any]


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
        target, draft: passes of each model.
        overhead_ms: of a cycle, outside of both.
        plain_overhead_ms: of a step of plain decoding.
    """

    target: CostCurve
    draft: CostCurve
    overhead_ms: float = 0.0
    plain_overhead_ms: float = 0.0

    @classmethod
    def from_rows(
        cls, rows: Iterable[Mapping[str, Any]], *, batch_size: int, context: int, **overheads: float
    ) -> CostModel:
        """From rows of cost_curves.csv, and the overheads by name.

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
            CostCurve(*zip(*sorted(curve.items()), strict=True)) for curve in points.values()
        )
        return cls(target, draft, **overheads)

    def cycle_ms(self, tau: float, depth: int, width: float, num_nodes: int) -> float:
        """Cost of one cycle of a dynamic tree; a chain has width 1 and num_nodes = depth.

        No draft at all (depth 0) is plain decoding.
        """
        if depth == 0:
            return self.target(1) + self.plain_overhead_ms
        drafting = self.draft(max(tau, 1.0)) + (depth - 1) * self.draft(width)
        return drafting + self.target(1 + num_nodes) + self.overhead_ms

    def speedup(self, tau: float, depth: int, width: float, num_nodes: int) -> float:
        """Expected speedup of decoding over plain decoding (prefill not counted)."""
        return tau * self.cycle_ms(1.0, 0, 1, 0) / self.cycle_ms(tau, depth, width, num_nodes)

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
    needed = {"model_pass", "batch_size", "context", "num_tokens", "median_ms"}
    try:
        with Path(path).open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            missing = sorted(needed - set(reader.fieldnames or ()))
            rows = list(reader)
    except OSError as error:
        raise UserError(f"no cost curves at {path}; +experiment=profile writes them") from error
    if missing:
        raise UserError(f"{path} is no table of cost curves: it has no {', '.join(missing)}")
    return rows


@dataclass(frozen=True)
class Tree:
    """Size of a dynamic tree."""

    depth: int
    width: int
    num_nodes: int


@dataclass(frozen=True)
class Assumed:
    """What drafting is assumed to achieve: one row of results for each chance and each tau.

    Attributes:
        tree: the tree of `tree_taus`.
        acceptance: chances that a token of a chain is accepted.
        longest: longest chain considered.
        tree_taus: tokens that a cycle with the tree emits, those that its depth allows.
    """

    tree: Tree
    acceptance: tuple[float, ...] = (0.6, 0.7, 0.8)
    longest: int = 7
    tree_taus: tuple[float, ...] = (3.0, 4.0)


def crossover(curves: Iterable[Mapping[str, Any]], assumed: Assumed) -> list[Row]:
    """Rows of crossover.csv for every batch size and context in the rows of cost_curves.csv.

    A chain has the length that pays best there; depth 0 says that none pays, speedup 1. Costs
    outside the passes of the two models are not counted. A tree is left out where the curves do
    not reach its size.
    """
    curves, tree = list(curves), assumed.tree
    rows: list[Row] = []
    for place in sorted({(int(row["batch_size"]), int(row["context"])) for row in curves}):
        here = dict(zip(("batch_size", "context"), place, strict=True))
        costs = CostModel.from_rows(curves, **here)
        most = costs.target.num_tokens[-1] - 1
        for rate in assumed.acceptance:
            length, speedup = costs.best_chain([rate] * min(assumed.longest, most))
            found = {"drafting": CHAIN, "acceptance": rate, "predicted_speedup": speedup}
            found |= {"depth": length, "width": 1, "num_nodes": length}
            rows.append(here | found | {"tau": tau_of_conditional([rate] * length)})
        for tau in assumed.tree_taus:
            if tree.num_nodes <= most and tau <= tree.depth + 1:
                speedup = costs.speedup(tau, **asdict(tree))
                found = {"drafting": TREE, "tau": tau, "predicted_speedup": speedup}
                rows.append(here | asdict(tree) | found)
    return [{name: row.get(name) for name in csv_names(CROSSOVER)} for row in rows]


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

    def rates_of(self, row: Mapping[str, Any]) -> list[float]:
        """The n-alphas of a row; a depth never reached has 0."""
        place = (row["method"], row["depth"])
        (found, *_) = (one for one in self.acceptance if (one["method"], one["depth"]) == place)
        return [rate or 0.0 for rate in found["conditional"]]


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
    plain, largest = overhead_ms[VANILLA], max(overhead_ms.values())
    at = partial(CostModel.from_rows, curves, batch_size=bench.batch_size, context=context)

    def costs_of(row: Mapping[str, Any]) -> CostModel:
        own = overhead_ms.get(row["method"], largest)
        return at(overhead_ms=own, plain_overhead_ms=plain)

    (vanilla,) = (row for row in bench.methods if row["method"] == VANILLA)
    rows = [_predicted(row, vanilla, costs_of(row)) for row in bench.drafting]
    chains = [row for row in rows if _kind(row) == CHAIN]
    if chains:  # the length that the n-alphas of the longest one favour; 0 says that none pays
        longest = max(chains, key=lambda row: row["depth"])
        rates = bench.rates_of(longest)
        length, speedup = costs_of(longest).best_chain(rates)
        if length not in [row["depth"] for row in chains]:
            tau = tau_of_conditional(rates[:length])
            sizes = {"depth": length, "num_nodes": length, "tau_micro": tau}
            own = {"method": longest["method"], "predicted_speedup": speedup}
            rows.append(dict.fromkeys(csv_names(PREDICTIONS)) | sizes | own)
    for kind in (CHAIN, TREE):
        if candidates := [row for row in rows if _kind(row) == kind]:
            max(candidates, key=lambda row: row["predicted_speedup"])["best"] = kind
    return rows


def _kind(row: Mapping[str, Any]) -> str:
    return CHAIN if row["num_nodes"] == row["depth"] else TREE


def _predicted(method: Mapping[str, Any], vanilla: Mapping[str, Any], costs: CostModel) -> Row:
    row: Row = {name: method.get(name) for name in csv_names(PREDICTIONS)}
    # A fixed tree has no one width: its levels hold num_nodes / depth nodes on average
    width = method["width"] or method["num_nodes"] / method["depth"]
    sizes = (method["depth"], width, method["num_nodes"])
    row["predicted_speedup"] = costs.speedup(method["tau_micro"], *sizes)
    rates = (method["decode_tokens_per_second"], vanilla["decode_tokens_per_second"])
    row["decode_speedup"] = rates[0] / rates[1] if all(rates) else None
    return row
