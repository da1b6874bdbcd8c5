"""The Lightning module of a drafter: losses of a batch, validation by chain drafting.

Only the drafter's own tensors are in `state_dict`: the target's frozen embedding and head are
attached as plain objects, so checkpoints stay small and loading them can be strict. Noise is a
function of (seed, epoch, batch), so a resumed run draws what the straight one would have drawn.

The least-squares start: a drafter that begins as the best linear predictor of features.

fc solves min Σ |fc([E(t_{i+1}) ; f_i]) - f_{i+1}|² over the supervised rows of the store, by
normal equations accumulated in float64; the output projections of attention and MLP are zero, so
the layer passes fc's output through unchanged until training moves them. Costs one pass over the
store and one solve of size 2H.

Where a drafter's weights begin: fresh, as the best linear predictor, or from a trained one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eagle_lab.data.batches import PackedBatch
from eagle_lab.data.datamodule import DrafterDataModule
from eagle_lab.drafters import vocabulary
from eagle_lab.drafters.blocks import DecoderLayer
from eagle_lab.drafters.checkpoint import load_drafter
from eagle_lab.drafters.eagle1.network import Eagle1, Eagle1Config
from eagle_lab.drafters.vocabulary import most_frequent
from eagle_lab.training.alignment import take_step
from eagle_lab.training.base import TrainingModule
from eagle_lab.training.losses import Sums, row_sums
from eagle_lab.training.rollout import Rollout
from eagle_lab.training.settings import Optimization

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


log = logging.getLogger(__name__)


def new_drafter(
    target: Any,
    data: DrafterDataModule,
    *,
    draft_vocab_size: int | None,
    seed: int,
    **switches: Any,
) -> Eagle1:
    """A drafter with random weights; a reduced vocabulary holds the training answers' commonest.

    Args:
        switches: see `Eagle1Config.from_target`.
    """
    config = Eagle1Config.from_target(target, draft_vocab_size=draft_vocab_size, **switches)
    kept = None
    if config.draft_vocab_size is not None:
        counts = data.token_counts(target.vocab_size)
        kept = most_frequent(counts, config.draft_vocab_size)
        covered = float(counts[kept].sum() / counts.sum())
        log.info("draft vocabulary of %d covers %.1f %% of the answers", len(kept), 100 * covered)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        drafter = Eagle1(config, kept)
    return _ready(drafter, target)


def trained_drafter(target: Any, folder: str | Path) -> Eagle1:
    """A trained drafter to go on with: its own switches, its own vocabulary, float32 weights."""
    drafter, _ = load_drafter(folder, target, dtype=torch.float32)
    log.info("starting from the drafter in %s", folder)
    return _ready(drafter, target)


def start_as_linear_predictor(drafter: Eagle1, data: DrafterDataModule) -> None:
    """The least-squares start over the training conversations."""
    start = time.perf_counter()
    explained = least_squares_start(drafter, data.train_batches())
    log.info(
        "least-squares start: %.1f %% of the next feature's variance explained, %.0f s",
        100 * explained, time.perf_counter() - start,
    )  # fmt: skip


def _ready(drafter: Eagle1, target: Any) -> Eagle1:
    drafter.to(target.device).train()
    drafter.attach(target)
    return drafter


class DrafterModule(TrainingModule):
    """Trains one drafter, which must be attached to its target."""

    def __init__(self, drafter: Eagle1, settings: Optimization) -> None:
        super().__init__(settings)
        self.drafter = drafter
        self._draft_ids: Tensor | None = None

    def draft_ids(self) -> Tensor | None:
        """Target id -> draft id or -1 [V], or None with the full vocabulary."""
        kept = self.drafter.draft_to_target
        if kept is not None and self._draft_ids is None:
            self._draft_ids = vocabulary.to_draft(kept, self.drafter.config.vocab_size)
        return self._draft_ids

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """The checkpoint's own draft vocabulary is the one that counts."""
        self._draft_ids = None

    def training_step(self, batch: PackedBatch, batch_idx: int) -> Tensor:
        """Σ_s step_decay^s (feature_weight · SmoothL1 + token_weight · CE)."""
        noisy = self._with_noise(batch.features, batch_idx)
        rollout, steps = Rollout(self.drafter, batch), []
        total = torch.zeros((), device=batch.features.device)
        for index in range(self.settings.ttt_steps):
            step, predicted = rollout.advance(features=noisy)
            if len(step.rows) == 0:
                break
            sums, _ = self._sums(batch, step, predicted)
            loss = sums.loss(self.settings.feature_weight, self.settings.token_weight)
            total = total + self.settings.step_decay**index * loss
            steps.append(sums.detach())
        return self.taken(total, steps, batch_idx)

    def validation_step(self, batch: PackedBatch, batch_idx: int) -> None:
        """Count, depth by depth, the chains that stay right."""
        rollout, alive = Rollout(self.drafter, batch), None
        for depth in range(self.settings.val_depth):
            step, predicted = rollout.advance(among=alive)
            if len(step.rows) == 0:
                break
            if depth == 0:
                sums, correct = self._sums(batch, step, predicted)
                self.val_sums.append(sums)
            else:
                drafted = self.drafter.logits(predicted).argmax(-1)
                kept = self.drafter.draft_to_target
                correct = (drafted if kept is None else kept[drafted]) == step.token_labels
            self.val_counts.add_depth(depth, correct)
            alive = step.rows[correct]

    def _sums(self, batch: PackedBatch, step: Any, predicted: Tensor) -> tuple[Sums, Tensor]:
        return row_sums(
            self.drafter,
            predicted,
            batch.features[step.feature_labels],
            token_labels=step.token_labels,
            draft_ids=self.draft_ids(),
        )

    def _with_noise(self, features: Tensor, batch_idx: int) -> Tensor:
        if not self.settings.noise:
            return features
        seed = (self.settings.seed * 1_000_003 + self.current_epoch) * 1_000_003 + batch_idx
        generator = torch.Generator(features.device).manual_seed(seed % 2**63)
        noise = torch.rand(features.shape, generator=generator, device=features.device)
        return features + (2 * noise - 1) * self.settings.noise
