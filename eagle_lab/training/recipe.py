"""Recipe: how a kind of drafter is trained; `Drafter.recipe` names its class by a dotted path.

    drafter = recipe.new(MyDrafter, target, data, settings, seed)    random weights, its vocabulary
    recipe.start(drafter, data, trainer)                             a better start than that
    module = recipe.module(drafter, trainer)                         what `fit` trains

A resumed training, or one that goes on from a trained drafter (`trained_drafter`), leaves the start
out.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch

from eagle_lab.data.datamodule import DrafterDataModule
from eagle_lab.drafters.base import Drafter
from eagle_lab.drafters.checkpoint import load_drafter
from eagle_lab.drafters.vocabulary import most_frequent
from eagle_lab.errors import UserError
from eagle_lab.training.base import TrainingModule
from eagle_lab.training.settings import TrainerSettings

Kind = TypeVar("Kind", bound=Drafter)
log = logging.getLogger(__name__)


class Recipe(ABC):
    """Base of every kind's recipe.

    Attributes:
        starts_closed_form: whether `start` knows trainer.least_squares_start.
    """

    starts_closed_form = False

    def feature_names(self, kind: type[Drafter]) -> Sequence[str]:
        """The target's features that training reads: `top` for the target's distribution."""
        return sorted({"top", *kind.feature_names})

    def new(
        self, kind: type[Kind], target: Any, data: DrafterDataModule, settings: Any, seed: int
    ) -> Kind:
        """A drafter with random weights; a reduced vocabulary holds the answers' commonest.

        Args:
            settings: of the kind's `Settings`.
        """
        kept, size = None, getattr(settings, "draft_vocab_size", None)
        if size is not None and size < target.vocab_size:
            counts = data.token_counts(target.vocab_size)
            kept = most_frequent(counts, size)
            covered = 100 * float(counts[kept].sum() / counts.sum())
            log.info("draft vocabulary of %d covers %.1f %% of the answers", len(kept), covered)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return kind.from_target(target, settings, kept).train()

    def check(self, kind: type[Drafter], trainer: TrainerSettings) -> None:
        """Refuse settings that this recipe has no use for.

        Raises:
            UserError: naming the setting.
        """
        if trainer.least_squares_start and not self.starts_closed_form:
            raise UserError(
                f"trainer.least_squares_start=true: a drafter of kind '{kind.kind}' has no such "
                "start; give trainer.least_squares_start=false"
            )

    def start(self, drafter: Any, data: DrafterDataModule, trainer: TrainerSettings) -> None:
        """Improve on random weights before the first step."""

    @abstractmethod
    def module(self, drafter: Any, trainer: TrainerSettings) -> TrainingModule:
        """What trains an attached drafter."""


def trained_drafter(target: Any, folder: str | Path) -> Drafter:
    """A trained drafter to go on with: its own switches, its own vocabulary, float32 weights."""
    drafter, _ = load_drafter(folder, target, dtype=torch.float32)
    log.info("starting from the drafter in %s", folder)
    return drafter.train()
