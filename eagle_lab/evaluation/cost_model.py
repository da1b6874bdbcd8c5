"""Expected speedup from measured pass costs and acceptance: what a setting should bring here.

A cycle of depth d and width w costs one target pass over 1 + num_nodes tokens, one draft pass
over the pairs accepted in the cycle before (it yields level 1), d - 1 draft passes over w nodes,
and the loop's own overhead. Costs come from cost_curves.csv; knows no model and measures nothing.
With CUDA graphs a whole tree of a drafter is one recording, whose passes follow each other without
a launch between them: the sum of single passes, each a launch of its own, then says too much.

    rows = read_curves("runs/profile/cost_curves.csv")
    CostModel.from_rows(rows, batch_size=1, context=128).best_chain([0.6, 0.5, 0.5])
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from eagle_lab.errors import UserError
from eagle_lab.evaluation.arithmetic import tau_of_conditional


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
