"""Acceptance of drafted chains, carried as counts so that batches of any size pool rightly.

A chain is accepted up to its first wrong token. `conditional[d]` is the share of right tokens at
depth d + 1 among the chains that were right up to there; their running product is the joint
acceptance, and the expected τ of a chain is 1 plus the sum of that.

    correct [[1,1,0],[1,0,1],[0,1,1]] -> conditional [2/3, 1/2, 0], joint [2/3, 1/3, 0], τ 2.0
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from eagle_lab.bench.statistics import tau_of_conditional


@dataclass
class AcceptanceCounts:
    """Chains tried and accepted at each depth, float64 [depth]."""

    depth: int
    tried: Tensor = field(init=False)
    accepted: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.tried = torch.zeros(self.depth, dtype=torch.float64)
        self.accepted = torch.zeros(self.depth, dtype=torch.float64)

    def add(self, correct: Tensor, valid: Tensor | None = None) -> None:
        """Count chains: correct and valid [num_chains, depth]; a chain ends where not valid."""
        correct = correct.bool()
        valid = torch.ones_like(correct) if valid is None else valid.bool().cummin(dim=1).values
        alive = torch.cat((torch.ones_like(correct[:, :1]), correct[:, :-1]), dim=1)
        tried = alive.cummin(dim=1).values & valid
        self.tried += tried.sum(0).cpu()
        self.accepted += (tried & correct).sum(0).cpu()

    def add_depth(self, depth: int, correct: Tensor) -> None:
        """Count chains that all reached `depth` (0-based): correct [num_chains]."""
        self.tried[depth] += len(correct)
        self.accepted[depth] += int(correct.sum())

    @property
    def conditional(self) -> Tensor:
        """Acceptance at each depth given all earlier ones [depth]; 0 where nothing was tried."""
        return self.accepted / self.tried.clamp(min=1)

    @property
    def expected_tau(self) -> float:
        """Tokens per cycle of a chain as deep as this, the bonus token included."""
        return tau_of_conditional(self.conditional)
