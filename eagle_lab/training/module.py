"""The Lightning module of a drafter: losses of a batch, validation by chain drafting.

Only the drafter's own tensors are in `state_dict`: the target's frozen embedding and head are
attached as plain objects, so checkpoints stay small and loading them can be strict. Noise is a
function of (seed, epoch, batch), so a resumed run draws what the straight one would have drawn.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from eagle_lab.data.packing import PackedBatch
from eagle_lab.drafters import vocabulary
from eagle_lab.drafters.eagle1 import Eagle1
from eagle_lab.training.base import TrainingModule
from eagle_lab.training.losses import Sums, row_sums
from eagle_lab.training.rollout import Rollout
from eagle_lab.training.settings import Optimisation


class DrafterModule(TrainingModule):
    """Trains one drafter, which must be attached to its target."""

    def __init__(self, drafter: Eagle1, settings: Optimisation) -> None:
        super().__init__(settings)
        self.drafter = drafter
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
        return self.taken(total, steps, batch_idx)

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

    def _sums(self, batch: PackedBatch, step: Any, predicted: Tensor) -> tuple[Sums, Tensor]:
        return row_sums(
            self.drafter,
            predicted,
            batch.features[step.feature_labels],
            token_labels=step.token_labels,
            draft_ids=self.draft_ids(),
        )

    def _with_noise(self, features: Tensor, batch_idx: int) -> Tensor:
        if not self.settings.noise:
            return features
        seed = (self.settings.seed * 1_000_003 + self.current_epoch) * 1_000_003 + batch_idx
        generator = torch.Generator(features.device).manual_seed(seed % 2**63)
        noise = torch.rand(features.shape, generator=generator, device=features.device)
        return features + (2 * noise - 1) * self.settings.noise
