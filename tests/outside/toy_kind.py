"""A kind of drafter that does not live in the package: the next state is one linear map."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from eagle_lab.data.batches import PackedBatch
from eagle_lab.drafters.base import Drafter, DrafterConfig
from eagle_lab.training.alignment import Step
from eagle_lab.training.losses import Sums, row_sums
from eagle_lab.training.recipe import Recipe
from eagle_lab.training.rollout import RolloutModule
from eagle_lab.training.settings import TrainerSettings


@dataclass(frozen=True, kw_only=True)
class ToyConfig(DrafterConfig):
    """A switch beside the dimensions that every kind has."""

    bias: bool = True


@dataclass
class ToySettings:
    """Keys of conf/drafter/toy.yaml."""

    draft_vocab_size: int | None
    bias: bool


class ToyDrafter(Drafter):
    """g' = W [E(t) ; g] without attention, and a head of its own over a reduced vocabulary."""

    kind = "toy"
    Config = ToyConfig
    Settings = ToySettings
    recipe = "toy_kind.ToyRecipe"

    def __init__(self, config: ToyConfig, kept: Tensor | None = None) -> None:
        super().__init__(config, kept)
        self.mix = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=config.bias)
        self.head = nn.Linear(config.hidden_size, self.draft_vocab_size)

    @classmethod
    def config_for(cls, target: Any, settings: ToySettings) -> ToyConfig:
        return ToyConfig(
            hidden_size=target.hidden_size,
            vocab_size=target.vocab_size,
            draft_vocab_size=settings.draft_vocab_size,
            bias=settings.bias,
        )

    def encode(self, features: Mapping[str, Tensor]) -> Tensor:
        return features["top"]

    def forward(
        self,
        tokens: Tensor,
        states: Tensor,
        positions: Tensor,
        attend: Any,
        columns: Tensor | None = None,
    ) -> Tensor:
        if columns is not None:
            tokens, states = tokens[:, columns], states[:, columns]
        assert self.attached is not None
        return self.mix(torch.cat([self.attached.embedding(tokens), states.float()], dim=-1))

    def logits(self, states: Tensor) -> Tensor:
        return self.head(states).float()


class ToyModule(RolloutModule):
    """Cross-entropy alone."""

    def sums(self, batch: PackedBatch, step: Step, states: Tensor) -> tuple[Sums, Tensor]:
        return row_sums(
            states,
            self.drafter.logits,
            batch.features["top"][step.feature_labels],
            self.drafter.target_logits,
            labels=self.drafter.draft_ids(step.token_labels),
            head_weights=tuple(self.drafter.head.parameters()),
        )


class ToyRecipe(Recipe):
    """Random weights, then `ToyModule`."""

    def module(self, drafter: ToyDrafter, trainer: TrainerSettings) -> ToyModule:
        return ToyModule(drafter, trainer)
