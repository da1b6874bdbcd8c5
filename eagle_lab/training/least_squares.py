"""The least-squares start: a drafter that begins as the best linear predictor of features.

fc solves min Σ |fc([E(t_{i+1}) ; f_i]) - f_{i+1}|² over the supervised rows of the store, by
normal equations accumulated in float64; the output projections of attention and MLP are zero, so
the layer passes fc's output through unchanged until training moves them. Costs one pass over the
store and one solve of size 2H.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from eagle_lab.data.packing import PackedBatch
from eagle_lab.drafters.blocks import DecoderLayer
from eagle_lab.drafters.eagle1 import Eagle1
from eagle_lab.training.alignment import take_step

RIDGE = 1e-4  # of each input's own energy: few rows, or columns that always agree, stay solvable


@torch.no_grad()
def least_squares_start(drafter: Eagle1, batches: Iterable[PackedBatch]) -> float:
    """Set fc to the least-squares solution and the output projections to zero.

    Returns:
        share of the variance of f_{i+1} that the linear prediction explains.
    """
    assert drafter.attached is not None
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
        step = take_step(batch, 0)
        embedded = drafter.attached.embedding(step.fed_tokens).double()
        inputs = [embedded, batch.features[step.rows].double()]
        if drafter.fc.bias is not None:
            inputs.append(torch.ones(len(embedded), 1, dtype=torch.float64, device=device))
        x, labels = torch.cat(inputs, dim=1), batch.features[step.feature_labels].double()
        normal += x.T @ x
        moments += x.T @ labels
        spread.add(labels)
    return normal, moments, spread
