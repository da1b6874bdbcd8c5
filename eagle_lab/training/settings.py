"""Settings of a training: plain values, checked where they are made.

The dataclasses are the schema of the `trainer` section; what each key means, and its default,
stands in conf/trainer/default.yaml.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from eagle_lab.errors import UserError, choose

PRECISIONS = {"float32": "32-true", "bfloat16": "bf16-mixed"}  # ours -> Lightning's
SAVE_PRECISIONS = ("float32", "bfloat16", "float16")
SCHEDULES = ("cosine", "linear", "constant")
ANSWERS, ALL = "answers", "all"


@dataclass
class DataSettings:
    """How a store becomes batches; what is held out does not depend on max_tokens."""

    batch_tokens: int
    max_length: int
    val_fraction: float
    max_tokens: int | None
    supervise: str
    seed: int

    def __post_init__(self) -> None:
        choose(self.supervise, (ANSWERS, ALL), "trainer.supervise")
        _at_least(self, 1, "batch_tokens", "max_tokens")
        _at_least(self, 3, "max_length")


@dataclass
class Optimization:
    """How a drafter is optimized."""

    ttt_steps: int
    step_decay: float
    feature_weight: float
    token_weight: float
    noise: float
    learning_rate: float
    warmup_steps: int
    schedule: str
    final_learning_rate: float
    beta1: float
    beta2: float
    weight_decay: float
    val_depth: int
    seed: int

    def __post_init__(self) -> None:
        choose(self.schedule, SCHEDULES, "trainer.schedule")
        _at_least(self, 1, "ttt_steps", "val_depth")
        _above_zero(self, "learning_rate")

    def learning_rate_factor(self, step: int, progress: float) -> float:
        """Share of the peak learning rate at an optimizer step and a progress within 0 … 1."""
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        if self.schedule == "constant":
            return 1.0
        progress = min(max(progress, 0.0), 1.0)
        linear = 1 - progress
        falling = linear if self.schedule == "linear" else (1 - math.cos(math.pi * linear)) / 2
        return self.final_learning_rate + (1 - self.final_learning_rate) * falling


@dataclass
class FitSettings:
    """How long, in what precision, and how often to look."""

    max_epochs: int | None
    max_minutes: float | None
    accumulate: int
    clip_norm: float
    precision: str
    val_every_steps: int | None
    log_every_steps: int
    checkpoint_minutes: float

    def __post_init__(self) -> None:
        choose(self.precision, [*PRECISIONS, "auto"], "trainer.precision")
        if self.max_epochs is None and self.max_minutes is None:
            raise UserError("set trainer.max_epochs or trainer.max_minutes: nothing ends this run")
        _at_least(self, 1, "max_epochs", "accumulate", "val_every_steps", "log_every_steps")
        _above_zero(self, "max_minutes", "checkpoint_minutes")


@dataclass
class TrainerSettings(DataSettings, Optimization, FitSettings):
    """The whole `trainer` section: each part of a training takes what it needs of it."""

    init_from: str | None
    least_squares_start: bool
    save_precision: str

    def __post_init__(self) -> None:
        for part in (DataSettings, Optimization, FitSettings):
            part.__post_init__(self)
        choose(self.save_precision, SAVE_PRECISIONS, "trainer.save_precision")


def _at_least(settings: Any, lowest: int, *names: str) -> None:
    for name in names:
        value = getattr(settings, name)
        if value is not None and value < lowest:
            raise UserError(f"trainer.{name}={value}; allowed: {lowest} or more")


def _above_zero(settings: Any, *names: str) -> None:
    for name in names:
        value = getattr(settings, name)
        if value is not None and not value > 0:
            raise UserError(f"trainer.{name}={value}; allowed: above 0")
