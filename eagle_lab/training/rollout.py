"""Drafting a chain from every row at once, by the training-time test (arXiv 2503.01840).

Step 0 is one pass over a packed batch with the target's features; each later step feeds the
drafter its own output and the text's next token. Training takes the loss at every step.
Validation keeps only the chains whose drafted tokens were right so far, for which the text's token
is the drafter's own: so it is real chain drafting, at the price of one pass a step.
"""

from __future__ import annotations

import torch
from torch import Tensor

from eagle_lab.data.batches import PackedBatch
from eagle_lab.drafters.eagle1.network import Eagle1
from eagle_lab.training.alignment import Step, next_tokens, take_step
from eagle_lab.training.attention import TrainingTestAttention


class Rollout:
    """Steps of one batch; `advance` runs the next one."""

    def __init__(self, drafter: Eagle1, batch: PackedBatch) -> None:
        self.drafter, self.batch = drafter, batch
        self._attend = TrainingTestAttention(batch.lengths)
        self._num_steps = 0
        self._rows: Tensor  # of the last step, flat indices
        self._output: Tensor  # of those rows [n, H]

    def advance(
        self, *, features: Tensor | None = None, among: Tensor | None = None
    ) -> tuple[Step, Tensor]:
        """Run the next step.

        Args:
            features: what step 0 is fed instead of the batch's features (noise) [P, H].
            among: flat indices, ascending, of the rows that go on; default those of the last step.

        Returns:
            the rows that count, and f̂ of each [n, H]; n may be 0.
        """
        if self._num_steps == 0:
            step, output = self._first(self.batch.features if features is None else features)
        else:
            step, output = self._later(self._rows if among is None else among)
        self._num_steps += 1
        self._rows, self._output = step.rows, output
        return step, output

    def _first(self, features: Tensor) -> tuple[Step, Tensor]:
        batch = self.batch
        tokens, positions = next_tokens(batch), batch.positions
        step = take_step(batch, 0)
        self._attend.select(step.rows)
        output = self.drafter(
            tokens[None], features[None], positions[None], self._attend, step.rows
        )
        return step, output[0]

    def _later(self, among: Tensor) -> tuple[Step, Tensor]:
        step = take_step(self.batch, self._num_steps, among)
        fed = self._output[torch.searchsorted(self._rows, step.rows)]
        if len(step.rows) == 0:
            return step, fed
        self._attend.select(step.rows)
        output = self.drafter(step.fed_tokens[None], fed[None], step.positions[None], self._attend)
        return step, output[0]
