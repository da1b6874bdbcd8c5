"""Run Lightning's trainer over a drafter or draft model, and pick the weights that validated best.

A folder holds `last.ckpt` (where training stands) and `best.ckpt` (longest expected chain). Which
checkpoint to go on from is decided here, never by Lightning's own search, which starts afresh in
silence when it finds nothing. The rows of the training curve live in the checkpoint, so a resumed
run continues exactly the curve it goes on from.
"""

from __future__ import annotations

import contextlib
import logging
import math
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.utilities.warnings import PossibleUserWarning
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint, Timer

from eagle_lab.data.datamodule import DrafterDataModule
from eagle_lab.errors import UserError
from eagle_lab.training.base import TrainingModule, mean_losses
from eagle_lab.training.settings import PRECISIONS, FitSettings

LAST, BEST = "last.ckpt", "best.ckpt"
log = logging.getLogger(__name__)


class TimeBudget(Timer):
    """Training time across resumes; with a budget, it moves the schedule and ends the run."""

    def __init__(self, max_minutes: float | None) -> None:
        limit = None if max_minutes is None else timedelta(minutes=max_minutes)
        super().__init__(limit, verbose=False)
        self.max_minutes = max_minutes

    @property
    def minutes(self) -> float:
        """Training time since the first start, interruptions not counted."""
        return self.time_elapsed() / 60

    def on_train_batch_end(self, trainer: Trainer, *args: Any, **kwargs: Any) -> None:
        """Move the learning-rate schedule along, and stop when the time is spent."""
        module: Any = trainer.lightning_module
        if self.max_minutes is not None:
            module.time_share = self.minutes / self.max_minutes
        super().on_train_batch_end(trainer, *args, **kwargs)


class LastCheckpoint(Callback):
    """Save where training stands every few minutes, at the end, and on Ctrl-C or SIGTERM.

    Saves fall between optimizer steps only, when no gradient is half accumulated, and after the
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
        """Save when it is time and an optimizer step has just been made."""
        if trainer.global_step == self._step_seen:
            return
        self._step_seen = trainer.global_step
        if not _validation_follows(trainer, batch_idx):
            self._save_if_due(trainer)

    def on_validation_end(self, trainer: Trainer, pl_module: Any) -> None:
        """The same after a validation, which a restart from before it would leave out."""
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
    """Whether Lightning validates after this batch."""
    if trainer.should_stop:
        return True
    if trainer.check_val_every_n_epoch is None:
        assert trainer.val_check_batch is not None
        return (trainer.fit_loop.total_batch_idx + 1) % trainer.val_check_batch == 0
    return batch_idx + 1 == trainer.num_training_batches


Row = dict[str, Any]


class Curve(Callback):
    """Record and print the training curve.

    Args:
        clock: tells training minutes.
        every_steps: optimizer steps between two rows.
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
        """Measure speed from here; loggers get the rows so far, a resumed run's, too."""
        for row in sorted(self.train_rows + self.val_rows, key=lambda row: row["step"]):
            _log(trainer, row)
        self._last_step, self._tokens_then = trainer.global_step, self.num_tokens
        self._since = time.monotonic()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """A row every few optimizer steps."""
        self.num_tokens += len(batch.tokens)
        if trainer.global_step - self._last_step >= self.every_steps:
            self._add_train_row(trainer, pl_module)

    def on_validation_end(self, trainer: Trainer, pl_module: Any) -> None:
        """A row for each validation."""
        if trainer.state.fn != "fit":
            return
        if pl_module.window:
            self._add_train_row(trainer, pl_module)
        row = self._place(trainer) | validation_row(pl_module)
        self.add_validation(row)
        _log(trainer, row)
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
        _log(trainer, row)
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
        """Go on after the checkpoint's rows."""
        self.train_rows, self.val_rows = list(state_dict["train"]), list(state_dict["val"])
        self.num_tokens = state_dict["num_tokens"]


def _log(trainer: Trainer, row: Row) -> None:
    for logger in trainer.loggers:
        logger.log_metrics({key: row[key] for key in row if key != "step"}, step=row["step"])


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


@dataclass(frozen=True)
class FitResult:
    """What training came to; the module holds the best weights."""

    train_rows: list[Row]
    val_rows: list[Row]
    best_row: Row
    num_steps: int
    minutes: float


def last_checkpoint(folder: Path) -> Path | None:
    """The checkpoint to go on from, None if there is none."""
    path = folder / LAST
    return path if path.is_file() else None


def fit(
    module: TrainingModule,
    data: DrafterDataModule,
    folder: Path,
    settings: FitSettings,
    *,
    write: Callable[[list[Row], list[Row]], None],
    loggers: list[Any] | None = None,
) -> FitResult:
    """Train, from `folder`'s last.ckpt if it has one, and load the best weights at the end.

    Args:
        write: called with the rows of training and of validation whenever one is added.
        loggers: Lightning loggers, none by default.

    Raises:
        KeyboardInterrupt: after saving, when interrupted.
        UserError: no validation would fall into the training, the loss is not finite, or the
            checkpoint is of another drafter.
    """
    folder.mkdir(parents=True, exist_ok=True)
    clock = TimeBudget(settings.max_minutes)
    curve = Curve(clock, settings.log_every_steps, write)
    last = LastCheckpoint(folder / LAST, settings.checkpoint_minutes)
    best = ModelCheckpoint(
        dirpath=folder,
        filename=Path(BEST).stem,
        monitor="val_tau",
        mode="max",
        save_on_train_epoch_end=False,
        enable_version_counter=False,
    )
    device = next(module.parameters()).device
    if settings.max_epochs is not None:
        steps_per_epoch = math.ceil(data.num_train_batches / settings.accumulate)
        module.num_steps = settings.max_epochs * steps_per_epoch
        _check_validated(settings, module.num_steps)
    with _quiet_lightning():
        trainer = Trainer(
            accelerator="gpu" if device.type == "cuda" else "cpu",
            devices=[device.index or 0] if device.type == "cuda" else 1,
            precision=_precision(settings.precision, device),  # type: ignore[arg-type]
            max_epochs=-1 if settings.max_epochs is None else settings.max_epochs,
            accumulate_grad_batches=settings.accumulate,
            gradient_clip_val=settings.clip_norm,
            gradient_clip_algorithm="norm",
            callbacks=[clock, curve, best, last],
            default_root_dir=folder,
            logger=loggers or False,
            enable_progress_bar=False,
            enable_model_summary=False,
            num_sanity_val_steps=0,
            log_every_n_steps=settings.log_every_steps,
            **_validation(settings),
        )
        checkpoint = last_checkpoint(folder)
        if checkpoint is None:
            curve.add_validation(_validate_start(module, data))
        _run(trainer, module, data, checkpoint)
    trained = [row for row in curve.val_rows if row["step"] > 0]
    if not trained:
        raise UserError(f"training ended without a validation: {data.counts}")
    if (folder / BEST).is_file():
        checkpoint = torch.load(folder / BEST, map_location="cpu", weights_only=True)
        module.load_state_dict(checkpoint["state_dict"], strict=True)
    return FitResult(
        train_rows=curve.train_rows,
        val_rows=curve.val_rows,
        best_row=max(trained, key=lambda row: row["val_tau"]),
        num_steps=trainer.global_step,
        minutes=clock.minutes,
    )


@torch.no_grad()
def _validate_start(module: TrainingModule, data: DrafterDataModule) -> Row:
    """What the weights are worth before the first step."""
    device = next(module.parameters()).device
    module.on_validation_epoch_start()
    for index, batch in enumerate(data.val_dataloader()):
        module.validation_step(batch.to(device), index)
    start = {"step": 0, "epoch": 0, "num_tokens": 0, "minutes": 0.0, "learning_rate": 0.0}
    return start | validation_row(module)


def _run(
    trainer: Trainer, module: TrainingModule, data: DrafterDataModule, checkpoint: Path | None
) -> None:
    if checkpoint is not None:
        log.info("going on from %s", checkpoint)
    try:
        trainer.fit(module, datamodule=data, ckpt_path=checkpoint, weights_only=True)
    except SystemExit:  # Lightning's answer to KeyboardInterrupt
        raise KeyboardInterrupt from None
    except RuntimeError as error:
        if checkpoint is None or "state_dict" not in str(error):
            raise
        reason = " ".join(str(error).split())
        raise UserError(f"{checkpoint} is of another drafter: {reason}") from error


def _check_validated(settings: FitSettings, num_steps: float) -> None:
    """UserError if training would end before its first validation, which picks the weights."""
    every = settings.val_every_steps
    if every is not None and every > num_steps:
        raise UserError(
            f"trainer.val_every_steps={every}, but the whole training has {num_steps} optimizer "
            "steps; give at most that many, or null to validate after each epoch"
        )


def _precision(name: str, device: torch.device) -> str:
    if name == "auto":
        name = "bfloat16" if device.type == "cuda" or _multiplies_bfloat16() else "float32"
    return PRECISIONS[name]


def _multiplies_bfloat16() -> bool:
    """Whether this CPU has instructions for products in bfloat16; emulation is slow."""
    found: Mapping[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return any(found.get(name, False) for name in ("avx512_bf16", "amx_bf16", "bf16"))


def _validation(settings: FitSettings) -> dict[str, Any]:
    if settings.val_every_steps is None:
        return {"check_val_every_n_epoch": 1}
    batches = settings.val_every_steps * settings.accumulate
    return {"check_val_every_n_epoch": None, "val_check_interval": batches}


@contextlib.contextmanager
def _quiet_lightning() -> Iterator[None]:
    """Without Lightning's hints about workers and hardware; errors and real warnings stay."""
    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.WARNING)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PossibleUserWarning)
            warnings.filterwarnings("ignore", message="Checkpoint directory .* exists")
            warnings.filterwarnings("ignore", message="Experiment logs directory .* exists")
            warnings.filterwarnings("ignore", message=".*isinstance.treespec, LeafSpec.*")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
