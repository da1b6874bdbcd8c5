"""What happens around the optimiser steps: time budget, checkpoints, interruption."""

from __future__ import annotations

import logging
import signal
import threading
import time
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint

LAST, BEST = "last.ckpt", "best.ckpt"
log = logging.getLogger(__name__)


def best_checkpoint(folder: Path) -> ModelCheckpoint:
    """Keep the weights with the longest expected chain in validation."""
    return ModelCheckpoint(
        dirpath=folder,
        filename=Path(BEST).stem,
        monitor="val_tau",
        mode="max",
        save_top_k=1,
        save_on_train_epoch_end=False,
        enable_version_counter=False,
    )


class TimeBudget(Callback):
    """Measure training time across resumes; with a budget, spend it and stop.

    Attributes:
        minutes: since the first start, interruptions not counted.
    """

    def __init__(self, max_minutes: float | None) -> None:
        self.max_minutes, self._before, self._start = max_minutes, 0.0, time.monotonic()

    @property
    def minutes(self) -> float:
        """Training time so far."""
        return self._before + (time.monotonic() - self._start) / 60

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Start the clock."""
        self._start = time.monotonic()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Move the learning-rate schedule along, and stop when the time is spent."""
        if self.max_minutes is not None:
            pl_module.time_share = self.minutes / self.max_minutes
            if pl_module.time_share >= 1:
                trainer.should_stop = True

    def state_dict(self) -> dict[str, float]:
        """Time spent, for the checkpoint."""
        return {"minutes": self.minutes}

    def load_state_dict(self, state_dict: dict[str, float]) -> None:
        """Go on counting."""
        self._before, self._start = state_dict["minutes"], time.monotonic()


class LastCheckpoint(Callback):
    """Save where training stands every few minutes, at the end, and on Ctrl-C or SIGTERM.

    Saves fall between optimiser steps only, when no gradient is half accumulated, and behind the
    validation where one follows. The first signal waits for that; a second one stops at once.
    """

    def __init__(self, path: Path, every_minutes: float) -> None:
        self.path, self.every_minutes = path, every_minutes
        self.interrupted = False
        self._saved_at, self._step_seen = time.monotonic(), 0
        self._handlers: dict[int, Any] = {}

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        """Listen for signals; only a main thread may."""
        self._saved_at, self._step_seen = time.monotonic(), trainer.global_step
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._handlers[number] = signal.signal(number, self._note)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Save when it is time and an optimiser step has just been made."""
        if trainer.global_step == self._step_seen:
            return
        self._step_seen = trainer.global_step
        if not _validation_follows(trainer, batch_idx):
            self._save_if_due(trainer)

    def on_validation_end(self, trainer: Trainer, pl_module: Any) -> None:
        """The same behind a validation, which a restart from before it would leave out."""
        self._save_if_due(trainer)

    def _save_if_due(self, trainer: Trainer) -> None:
        if self.interrupted or time.monotonic() - self._saved_at > 60 * self.every_minutes:
            self.save(trainer)
        if self.interrupted:
            raise KeyboardInterrupt

    def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
        """Keep the end, for `init_from` and for going on."""
        self.save(trainer)

    def teardown(self, trainer: Trainer, pl_module: Any, stage: str) -> None:
        """Give the signals back."""
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers.clear()

    def save(self, trainer: Trainer) -> None:
        """Write the checkpoint; the file appears whole."""
        partial = self.path.with_name(self.path.name + ".partial")
        trainer.save_checkpoint(partial)
        partial.replace(self.path)
        self._saved_at = time.monotonic()

    def _note(self, number: int, frame: Any) -> None:
        if self.interrupted:
            raise KeyboardInterrupt
        self.interrupted = True
        log.info("stopping after this step; once more stops at once")


def _validation_follows(trainer: Trainer, batch_idx: int) -> bool:
    """Whether Lightning validates behind this batch."""
    if trainer.should_stop:
        return True
    if trainer.check_val_every_n_epoch is None:
        assert trainer.val_check_batch is not None
        return (trainer.fit_loop.total_batch_idx + 1) % trainer.val_check_batch == 0
    return batch_idx + 1 == trainer.num_training_batches
