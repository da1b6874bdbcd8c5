"""How EAGLE-1 is trained: towards the target's features and its distribution.

The least-squares start: a drafter that begins as the best linear predictor of features. fc solves
min Σ |fc([E(t_{i+1}) ; f_i]) - f_{i+1}|² over the supervised rows of the store, by normal equations
accumulated in float64; the output projections of attention and MLP are zero, so the layer passes
fc's output through unchanged until training moves them. Costs one pass over the store and one solve
of size 2H.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable

import torch
from torch import Tensor

from eagle_lab.data.batches import PackedBatch
from eagle_lab.data.datamodule import DrafterDataModule
from eagle_lab.drafters.blocks import DecoderLayer
from eagle_lab.drafters.eagle1.network import Eagle1
from eagle_lab.training.alignment import Step, take_step
from eagle_lab.training.losses import Sums, row_sums
from eagle_lab.training.recipe import Recipe
from eagle_lab.training.rollout import RolloutModule
from eagle_lab.training.settings import Optimization, TrainerSettings

RIDGE = 1e-4  # of each input's own energy: few rows, or columns that always agree, stay solvable
log = logging.getLogger(__name__)


class Eagle1Recipe(Recipe):
    """Least-squares start, then both losses at every step."""

    starts_closed_form = True

    def start(self, drafter: Eagle1, data: DrafterDataModule, trainer: TrainerSettings) -> None:
        """The least-squares start over the training conversations, if it is asked for."""
        if not trainer.least_squares_start:
            return
        start = time.perf_counter()
        explained = least_squares_start(drafter, data.train_batches())
        log.info(
            "least-squares start: %.1f %% of the next feature's variance explained, %.0f s",
            100 * explained, time.perf_counter() - start,
        )  # fmt: skip

    def module(self, drafter: Eagle1, trainer: Optimization) -> RolloutModule:
        """See `Recipe`."""
        return Eagle1Module(drafter, trainer)


class Eagle1Module(RolloutModule):
    """SmoothL1 towards the feature, cross-entropy towards the target's distribution."""

    def sums(self, batch: PackedBatch, step: Step, states: Tensor) -> tuple[Sums, Tensor]:
        """See `RolloutModule`; the target's head reads the very features that f̂ should equal."""
        features = batch.features["top"][step.feature_labels]
        drafter = self.drafter
        return row_sums(
            states,
            drafter.logits,
            features,
            drafter.target_logits,
            labels=drafter.draft_ids(step.token_labels),
            features=features,
        )


@torch.no_grad()
def least_squares_start(drafter: Eagle1, batches: Iterable[PackedBatch]) -> float:
    """Set fc to the least-squares solution and the output projections to zero.

    Returns:
        share of the variance of f_{i+1} that the linear prediction explains.
    """
    weight = drafter.fc.weight
    normal, moments, spread = _normal_equations(drafter, batches)
    diagonal = normal.diagonal()
    ridge = RIDGE * diagonal.clamp(min=1e-12 * float(diagonal.max()) + 1e-30)
    solution = torch.linalg.solve(normal + torch.diag(ridge), moments)  # [2H (+ 1), H]
    width = weight.shape[1]
    weight.copy_(solution[:width].T)
    if drafter.fc.bias is not None:
        drafter.fc.bias.copy_(solution[width])
    for layer in drafter.layers:
        assert isinstance(layer, DecoderLayer)
        layer.self_attn.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()
    residual = (
        spread.total - 2 * (solution * moments).sum() + (solution * (normal @ solution)).sum()
    )
    return float(1 - residual / spread.variance)


class _Spread:
    """Sum of squares of the labels, and what is left of it around their mean."""

    def __init__(self, width: int, device: torch.device) -> None:
        self.total, self.count = torch.zeros((), dtype=torch.float64, device=device), 0
        self.sums = torch.zeros(width, dtype=torch.float64, device=device)

    def add(self, labels: Tensor) -> None:
        self.total += labels.square().sum()
        self.sums += labels.sum(0)
        self.count += len(labels)

    @property
    def variance(self) -> Tensor:
        return self.total - self.sums.square().sum() / max(self.count, 1)


def _normal_equations(
    drafter: Eagle1, batches: Iterable[PackedBatch]
) -> tuple[Tensor, Tensor, _Spread]:
    """XᵀX and XᵀY in float64, X = [E(t_{i+1}) ; f_i (; 1)], Y = f_{i+1}, supervised rows."""
    assert drafter.attached is not None
    device, hidden_size = drafter.fc.weight.device, drafter.config.hidden_size
    width = drafter.fc.weight.shape[1] + (drafter.fc.bias is not None)
    normal = torch.zeros(width, width, dtype=torch.float64, device=device)
    moments = torch.zeros(width, hidden_size, dtype=torch.float64, device=device)
    spread = _Spread(hidden_size, device)
    for batch in batches:
        batch = batch.to(device)
        step, features = take_step(batch, 0), batch.features["top"]
        embedded = drafter.attached.embedding(step.fed_tokens).double()
        inputs = [embedded, features[step.rows].double()]
        if drafter.fc.bias is not None:
            inputs.append(torch.ones(len(embedded), 1, dtype=torch.float64, device=device))
        x, labels = torch.cat(inputs, dim=1), features[step.feature_labels].double()
        normal += x.T @ x
        moments += x.T @ labels
        spread.add(labels)
    return normal, moments, spread
