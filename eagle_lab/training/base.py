"""What every training here shares: sums and counts, optimizer and schedule, what validation logs.

A module adds the losses of a batch (`training_step`) and the acceptance of drafted chains
(`validation_step`).
"""

from __future__ import annotations

import dataclasses
import math

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.types import OptimizerLRSchedulerConfig
from torch import Tensor

from eagle_lab.errors import UserError
from eagle_lab.training.losses import Sums
from eagle_lab.training.metrics import AcceptanceCounts
from eagle_lab.training.settings import Optimization


class TrainingModule(LightningModule):
    """Base of the modules that `fit` trains.

    Attributes:
        num_steps: optimizer steps that the run is planned for, infinite if only time ends it; the
            schedule falls with them. Lightning's own estimate would set up the data loaders before
            a checkpoint's position in them is known.
        time_share: share of a time budget that is spent, 0 without one; moves the schedule.
        window: loss sums of each training-time step since they were last taken.
        val_counts: acceptance of the last validation; val_sums: its step-0 losses.
    """

    def __init__(self, settings: Optimization) -> None:
        super().__init__()
        self.settings = settings
        self.save_hyperparameters(dataclasses.asdict(settings))
        self.num_steps, self.time_share = math.inf, 0.0
        self.window: list[list[Sums]] = []
        self.val_counts = AcceptanceCounts(settings.val_depth)
        self.val_sums: list[Sums] = []

    def taken(self, total: Tensor, steps: list[Sums], batch_idx: int) -> Tensor:
        """Put a batch's sums into the window and hand its loss on, if that is a number."""
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

    def on_validation_epoch_end(self) -> None:
        """Say what picks the best weights."""
        self.log("val_tau", self.val_counts.expected_tau, logger=False)

    def configure_optimizers(self) -> OptimizerLRSchedulerConfig:
        """AdamW with warm-up, then a decay over steps or over the time budget."""
        settings = self.settings
        optimizer = torch.optim.AdamW(
            [weight for weight in self.parameters() if weight.requires_grad],
            lr=settings.learning_rate,
            betas=(settings.beta1, settings.beta2),
            weight_decay=settings.weight_decay,
            # Fast on CPU; in autocast Lightning clips no gradients for a fused optimizer
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


def mean_losses(sums: list[Sums]) -> tuple[float, float]:
    """Feature loss and token loss over pooled rows; 0 where nothing counts."""
    num_rows = sum(one.num_rows for one in sums)
    num_token_rows = sum(one.num_token_rows for one in sums)
    feature, token = sum(float(one.feature) for one in sums), sum(float(one.token) for one in sums)
    return feature / max(num_rows, 1), token / max(num_token_rows, 1)
