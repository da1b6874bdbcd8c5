"""The training curve: a row every few optimiser steps and one for each validation.

Rows live in the callback's state, so a resumed run continues exactly the curve of the checkpoint
it goes on from.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from typing import Any

from lightning.pytorch import Callback, Trainer

from eagle_lab.training.base import TrainingModule, mean_losses
from eagle_lab.training.callbacks import TimeBudget

log = logging.getLogger(__name__)
Row = dict[str, Any]


class Curve(Callback):
    """Record and print the training curve.

    Args:
        clock: tells training minutes.
        every_steps: optimiser steps between two rows.
        write: called with (rows of training, rows of validation) whenever one is added.
    """

    def __init__(
        self, clock: TimeBudget, every_steps: int, write: Callable[[list[Row], list[Row]], None]
    ) -> None:
        self.clock, self.every_steps, self.write = clock, every_steps, write
        self.train_rows: list[Row] = []
        self.val_rows: list[Row] = []
        self.num_tokens = 0  # trained on so far
        self._last_step, self._since, self._tokens_then = 0, time.monotonic(), 0

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Measure speed from here."""
        self._last_step, self._tokens_then = trainer.global_step, self.num_tokens
        self._since = time.monotonic()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """A row every few optimiser steps."""
        self.num_tokens += len(batch.tokens)
        if trainer.global_step - self._last_step >= self.every_steps:
            self._add_train_row(trainer, pl_module)

    def on_validation_end(self, trainer: Trainer, pl_module: Any) -> None:
        """A row for each validation."""
        if trainer.state.fn != "fit":
            return
        if pl_module.window:
            self._add_train_row(trainer, pl_module)
        self.add_validation(self._place(trainer) | validation_row(pl_module))
        self._since, self._tokens_then = time.monotonic(), self.num_tokens

    def add_validation(self, row: Row) -> None:
        """Record and print what a validation found."""
        self.val_rows.append(row)
        shares = [row[name] for name in row if name.startswith("val_acceptance")]
        log.info(
            "validation, step %d: expected chain tau %.3f, acceptance by depth %s",
            row["step"], row["val_tau"], " ".join(f"{share:.3f}" for share in shares),
        )  # fmt: skip
        self.write(self.train_rows, self.val_rows)

    def _add_train_row(self, trainer: Trainer, pl_module: TrainingModule) -> None:
        seconds = max(time.monotonic() - self._since, 1e-9)
        speed = (self.num_tokens - self._tokens_then) / seconds
        row = self._place(trainer) | training_row(pl_module) | {"tokens_per_second": speed}
        pl_module.window.clear()
        self.train_rows.append(row)
        self.write(self.train_rows, self.val_rows)
        total = pl_module.num_steps
        of_total = f" of {total}" if total < math.inf else ""
        log.info(
            "epoch %d, step %d%s: loss %.4f, first draft %.3f, %.0f tokens/s, %.1f min%s",
            row["epoch"], row["step"], of_total, row["loss"], row["accuracy_1"], speed,
            row["minutes"], self._remaining(row, total),
        )  # fmt: skip
        self._last_step, self._tokens_then = trainer.global_step, self.num_tokens
        self._since = time.monotonic()

    def _remaining(self, row: Row, total: float) -> str:
        """Minutes left by steps or by the budget, whichever ends first."""
        left = [row["minutes"] * (total / max(row["step"], 1) - 1)]
        if self.clock.max_minutes is not None:
            left.append(self.clock.max_minutes - row["minutes"])
        return f", {max(min(left), 0):.1f} left"

    def _place(self, trainer: Trainer) -> Row:
        return {
            "step": trainer.global_step,
            "epoch": trainer.current_epoch,
            "num_tokens": self.num_tokens,
            "minutes": self.clock.minutes,
            "learning_rate": trainer.optimizers[0].param_groups[0]["lr"],
        }

    def state_dict(self) -> dict[str, Any]:
        """All rows, for the checkpoint."""
        return {"train": self.train_rows, "val": self.val_rows, "num_tokens": self.num_tokens}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on behind the checkpoint's rows."""
        self.train_rows, self.val_rows = list(state_dict["train"]), list(state_dict["val"])
        self.num_tokens = state_dict["num_tokens"]


def training_row(module: TrainingModule) -> Row:
    """Losses and greedy agreement with the text since the last row, by training-time step."""
    settings = module.settings
    row: Row = {"loss": 0.0, "feature_loss": 0.0, "token_loss": 0.0}
    for index in range(settings.ttt_steps):
        sums = [batch[index] for batch in module.window if index < len(batch)]
        feature, token = mean_losses(sums)
        weighted = settings.feature_weight * feature + settings.token_weight * token
        row["loss"] += settings.step_decay**index * weighted
        if index == 0:
            row |= {"feature_loss": feature, "token_loss": token}
        num_rows = sum(one.num_rows for one in sums)
        row[f"accuracy_{index + 1}"] = sum(int(one.correct) for one in sums) / max(num_rows, 1)
    return row


def validation_row(module: TrainingModule) -> Row:
    """Expected chain tau, conditional acceptance by depth, step-0 losses."""
    feature, token = mean_losses(module.val_sums)
    shares = enumerate(module.val_counts.conditional.tolist(), start=1)
    return {
        "val_tau": module.val_counts.expected_tau,
        **{f"val_acceptance_{depth}": share for depth, share in shares},
        "val_feature_loss": feature,
        "val_token_loss": token,
        "val_num_chains": int(module.val_counts.tried[0]),
    }
