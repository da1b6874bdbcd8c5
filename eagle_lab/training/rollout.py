"""Drafting a chain from every row at once, by the training-time test (arXiv 2503.01840).

Step 0 is one pass over a packed batch with the target's features; each later step feeds the
drafter its own output and the text's next token. Training takes the loss at every step.
Validation keeps only the chains whose drafted tokens were right so far, for which the text's token
is the drafter's own: so it is real chain drafting, at the price of one pass a step.
"""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from eagle_lab.data.batches import PackedBatch
from eagle_lab.drafters.base import Drafter
from eagle_lab.training.alignment import Step, next_tokens, take_step
from eagle_lab.training.attention import TrainingTestAttention
from eagle_lab.training.base import TrainingModule
from eagle_lab.training.losses import Sums
from eagle_lab.training.settings import Optimization


class Rollout:
    """Steps of one batch; `advance` runs the next one."""

    def __init__(self, drafter: Drafter, batch: PackedBatch) -> None:
        self.drafter, self.batch = drafter, batch
        self._attend = TrainingTestAttention(batch.lengths)
        self._num_steps = 0
        self._rows: Tensor  # of the last step, flat indices
        self._output: Tensor  # of those rows [n, H]

    def advance(
        self, *, states: Tensor | None = None, among: Tensor | None = None
    ) -> tuple[Step, Tensor]:
        """Run the next step.

        Args:
            states: what step 0 is fed instead of the batch's encoded features (noise) [P, H].
            among: flat indices, ascending, of the rows that go on; default those of the last step.

        Returns:
            the rows that count, and the drafter's state of each [n, H]; n may be 0.
        """
        if self._num_steps == 0:
            encoded = self.drafter.encode(self.batch.features) if states is None else states
            step, output = self._first(encoded)
        else:
            step, output = self._later(self._rows if among is None else among)
        self._num_steps += 1
        self._rows, self._output = step.rows, output
        return step, output

    def _first(self, states: Tensor) -> tuple[Step, Tensor]:
        batch = self.batch
        tokens, positions = next_tokens(batch), batch.positions
        step = take_step(batch, 0)
        self._attend.select(step.rows)
        output = self.drafter(tokens[None], states[None], positions[None], self._attend, step.rows)
        return step, output[0]

    def _later(self, among: Tensor) -> tuple[Step, Tensor]:
        step = take_step(self.batch, self._num_steps, among)
        fed = self._output[torch.searchsorted(self._rows, step.rows)]
        if len(step.rows) == 0:
            return step, fed
        self._attend.select(step.rows)
        output = self.drafter(step.fed_tokens[None], fed[None], step.positions[None], self._attend)
        return step, output[0]


class RolloutModule(TrainingModule):
    """Trains a drafter, attached to its target, on its own chains; a kind adds `sums`.

    Only the drafter's own tensors are in `state_dict`: the target's frozen parts are attached as
    plain objects, so checkpoints stay small and loading them can be strict. Noise is a function of
    (seed, epoch, batch), so a resumed run draws what the straight one would have drawn.
    """

    def __init__(self, drafter: Drafter, settings: Optimization) -> None:
        super().__init__(settings)
        self.drafter = drafter

    @abstractmethod
    def sums(self, batch: PackedBatch, step: Step, states: Tensor) -> tuple[Sums, Tensor]:
        """Losses of one step's rows, whose drafter's states are [n, H], and which drafts hit."""

    def training_step(self, batch: PackedBatch, batch_idx: int) -> Tensor:
        """Σ_s step_decay^s (feature_weight · feature loss + token_weight · CE)."""
        noisy = {
            name: self._with_noise(batch.features[name], batch_idx)
            for name in self.drafter.feature_names
        }
        states = self.drafter.encode(noisy)
        rollout, steps = Rollout(self.drafter, batch), []
        total = torch.zeros((), device=states.device)
        for index in range(self.settings.ttt_steps):
            step, predicted = rollout.advance(states=states)
            if len(step.rows) == 0:
                break
            sums, _ = self.sums(batch, step, predicted)
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
                sums, correct = self.sums(batch, step, predicted)
                self.val_sums.append(sums)
            else:
                drafted = self.drafter.logits(predicted).argmax(-1)
                correct = self.drafter.target_ids(drafted) == step.token_labels
            self.val_counts.add_depth(depth, correct)
            alive = step.rows[correct]

    def _with_noise(self, features: Tensor, batch_idx: int) -> Tensor:
        if not self.settings.noise:
            return features
        seed = (self.settings.seed * 1_000_003 + self.current_epoch) * 1_000_003 + batch_idx
        generator = torch.Generator(features.device).manual_seed(seed % 2**63)
        noise = torch.rand(features.shape, generator=generator, device=features.device)
        return features + (2 * noise - 1) * self.settings.noise
