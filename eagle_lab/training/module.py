"""The Lightning module: losses of a batch, validation by chain drafting, optimiser and schedule.

Only the drafter's own tensors are in `state_dict`: the target's frozen embedding and head are
attached as plain objects, so checkpoints stay small and loading them can be strict. Noise is a
function of (seed, epoch, batch), so a resumed run draws what the straight one would have drawn.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor

from eagle_lab.data.packing import PackedBatch
from eagle_lab.drafters import vocabulary
from eagle_lab.drafters.eagle1 import Eagle1
from eagle_lab.errors import UserError
from eagle_lab.training.losses import Sums, row_sums
from eagle_lab.training.metrics import AcceptanceCounts
from eagle_lab.training.rollout import Rollout
from eagle_lab.training.settings import Optimisation


class DrafterModule(LightningModule):
    """Trains one drafter, which must be attached to its target.

    Attributes:
        num_steps: optimiser steps that the run is planned for, infinite if only time ends it; the
            schedule falls with them. Lightning's own estimate would set up the data loaders before
            a checkpoint's position in them is known.
        time_share: share of a time budget that is spent, 0 without one; moves the schedule.
        window: loss sums of each training-time step since they were last taken.
        val_counts: acceptance of the last validation; val_sums: its step-0 losses.
    """

    def __init__(self, drafter: Eagle1, settings: Optimisation) -> None:
        super().__init__()
        self.drafter, self.settings = drafter, settings
        self.save_hyperparameters(dataclasses.asdict(settings))
        self.num_steps, self.time_share = math.inf, 0.0
        self.window: list[list[Sums]] = []
        self.val_counts = AcceptanceCounts(settings.val_depth)
        self.val_sums: list[Sums] = []
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
        if not torch.isfinite(total):
            raise UserError(
                f"the loss is {float(total.detach())} in epoch {self.current_epoch}, batch "
                f"{batch_idx}; try a lower trainer.learning_rate than {self.settings.learning_rate}"
            )
        self.window.append(steps)
        return total

    def on_validation_epoch_start(self) -> None:
        """Start counting afresh."""
        self.val_counts, self.val_sums = AcceptanceCounts(self.settings.val_depth), []

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

    def on_validation_epoch_end(self) -> None:
        """Log what the pooled counts say."""
        self.log("val_tau", self.val_counts.expected_tau, prog_bar=True)
        for depth, share in enumerate(self.val_counts.conditional.tolist(), start=1):
            self.log(f"val_acceptance_{depth}", share)
        feature, token = mean_losses(self.val_sums)
        self.log_dict({"val_feature_loss": feature, "val_token_loss": token})

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        """AdamW with warm-up, then a decay over steps or over the time budget."""
        settings = self.settings
        optimizer = torch.optim.AdamW(
            self.drafter.parameters(),
            lr=settings.learning_rate,
            betas=(settings.beta1, settings.beta2),
            weight_decay=settings.weight_decay,
            # Fast on CPU; in autocast Lightning clips no gradients for a fused optimiser
            fused=not self.trainer.precision.endswith("mixed"),
        )

        def factor(step: int) -> float:
            done = (step - settings.warmup_steps) / max(self.num_steps - settings.warmup_steps, 1)
            return settings.learning_rate_factor(step, max(done, self.time_share))

        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }

    def _sums(self, batch: PackedBatch, step: Any, predicted: Tensor) -> tuple[Sums, Tensor]:
        return row_sums(
            self.drafter,
            predicted,
            batch.features[step.feature_labels],
            token_labels=step.token_labels,
            choices=batch.choices[step.feature_labels],
            draft_ids=self.draft_ids(),
        )

    def _with_noise(self, features: Tensor, batch_idx: int) -> Tensor:
        if not self.settings.noise:
            return features
        seed = (self.settings.seed * 1_000_003 + self.current_epoch) * 1_000_003 + batch_idx
        generator = torch.Generator(features.device).manual_seed(seed % 2**63)
        noise = torch.rand(features.shape, generator=generator, device=features.device)
        return features + (2 * noise - 1) * self.settings.noise


def mean_losses(sums: list[Sums]) -> tuple[float, float]:
    """Feature loss and token loss over pooled rows; 0 where nothing counts."""
    num_rows = sum(one.num_rows for one in sums)
    num_token_rows = sum(int(one.num_token_rows) for one in sums)
    feature, token = sum(float(one.feature) for one in sums), sum(float(one.token) for one in sums)
    return feature / max(num_rows, 1), token / max(num_token_rows, 1)
