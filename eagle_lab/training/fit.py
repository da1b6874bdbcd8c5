"""Run Lightning's trainer over a drafter or draft model, and pick the weights that validated best.

A folder holds `last.ckpt` (where training stands) and `best.ckpt` (longest expected chain). Which
checkpoint to go on from is decided here, never by Lightning's own search, which starts afresh in
silence when it finds nothing.
"""

from __future__ import annotations

import contextlib
import logging
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.utilities.warnings import PossibleUserWarning
from lightning.pytorch import Trainer

from eagle_lab.data.datamodule import DrafterDataModule
from eagle_lab.errors import UserError
from eagle_lab.training.base import TrainingModule
from eagle_lab.training.callbacks import BEST, LAST, LastCheckpoint, TimeBudget, best_checkpoint
from eagle_lab.training.curve import Curve, Row, validation_row
from eagle_lab.training.settings import PRECISIONS, FitSettings

log = logging.getLogger(__name__)


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
    best = best_checkpoint(folder)
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
    _load_best(module, folder / BEST)
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


def _load_best(module: TrainingModule, path: Path) -> None:
    if path.is_file():
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
        module.load_state_dict(checkpoint["state_dict"], strict=True)


def _check_validated(settings: FitSettings, num_steps: float) -> None:
    """UserError if training would end before its first validation, which picks the weights."""
    every = settings.val_every_steps
    if every is not None and every > num_steps:
        raise UserError(
            f"trainer.val_every_steps={every}, but the whole training has {num_steps} optimiser "
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
            warnings.filterwarnings("ignore", message=".*isinstance.treespec, LeafSpec.*")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
