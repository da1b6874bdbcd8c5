"""How a drafter is optimized and how long: plain values, checked where they are made."""

from __future__ import annotations

import math
from dataclasses import dataclass

from eagle_lab.errors import UserError, choose

PRECISIONS = {"float32": "32-true", "bfloat16": "bf16-mixed"}  # ours -> Lightning's
SCHEDULES = ("cosine", "linear", "constant")


@dataclass(frozen=True)
class Optimization:
    """How a drafter is optimized; plain values only.

    Attributes:
        ttt_steps: training-time test steps S, 1 for EAGLE-1's teacher forcing.
        step_decay: weight of step s is step_decay^s.
        feature_weight, token_weight: of SmoothL1 and of cross-entropy.
        noise: input features get U(-noise, noise).
        learning_rate: after `warmup_steps` of linear warm-up; then `schedule` takes it down to
            `final_learning_rate` times itself.
        beta1, beta2, weight_decay: of AdamW.
        val_depth: tokens of the chains that validation drafts.
        seed: of the noise.
    """

    ttt_steps: int = 1
    step_decay: float = 0.8
    feature_weight: float = 1.0
    token_weight: float = 0.1
    noise: float = 0.1
    learning_rate: float = 3e-5
    warmup_steps: int = 2000
    schedule: str = "cosine"
    final_learning_rate: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.95
    weight_decay: float = 0.0
    val_depth: int = 5
    seed: int = 0

    def __post_init__(self) -> None:
        choose(self.schedule, SCHEDULES, "trainer.schedule")
        for name in ("ttt_steps", "val_depth"):
            if getattr(self, name) < 1:
                raise UserError(f"trainer.{name}={getattr(self, name)}; allowed: 1 or more")
        if self.learning_rate <= 0:
            raise UserError(f"trainer.learning_rate={self.learning_rate}; allowed: above 0")

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


@dataclass(frozen=True)
class FitSettings:
    """How long, in what precision, and how often to look.

    Attributes:
        max_epochs, max_minutes: whichever ends first; None sets no limit, one must be set.
        accumulate: batches per optimizer step.
        clip_norm: largest norm of all gradients together.
        precision: float32, bfloat16 (autocast, float32 weights), or auto (bfloat16 on CUDA
            and on CPUs with instructions for it).
        val_every_steps: optimizer steps between validations; None validates after each epoch.
        log_every_steps: optimizer steps between rows of the training curve.
        checkpoint_minutes: time between saves of last.ckpt.
    """

    max_epochs: int | None
    max_minutes: float | None
    accumulate: int = 1
    clip_norm: float = 0.5
    precision: str = "auto"
    val_every_steps: int | None = None
    log_every_steps: int = 20
    checkpoint_minutes: float = 5.0

    def __post_init__(self) -> None:
        choose(self.precision, [*PRECISIONS, "auto"], "trainer.precision")
        if self.max_epochs is None and self.max_minutes is None:
            raise UserError("set trainer.max_epochs or trainer.max_minutes: nothing ends this run")
        for name in ("max_epochs", "accumulate", "val_every_steps", "log_every_steps"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserError(f"trainer.{name}={value}; allowed: 1 or more")
        for name in ("max_minutes", "checkpoint_minutes"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise UserError(f"trainer.{name}={value}; allowed: above 0")
