"""The Lightning module of a draft model: a small language model that learns the target's answers.

Row p reads tokens 0 … p of its conversation and is held against what the target said there: its
post-norm state f_p and, through the target's own frozen head, the whole distribution of token p +
1.

    p                0     1     2     3     4
    token            t0    t1    t2    t3    t4
    assistant        -     -     yes   yes   yes
    row counts       -     yes   yes   yes   -        labels t2, t3, t4

A draft model reads tokens only, and a chain is tested no further than it agrees with the text: so
one pass over the text tells what chains from every row would have drafted. Embedding and head are
the target's, stay as they are and are left out of checkpoints.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from eagle_lab.data.batches import PackedBatch
from eagle_lab.errors import UserError
from eagle_lab.training.alignment import shifted_supervision
from eagle_lab.training.base import TrainingModule
from eagle_lab.training.losses import Sums, row_sums
from eagle_lab.training.settings import Optimization

# What the recipes of drafters set and a draft model has no use for, at its neutral value
UNUSED = {"init_from": None, "least_squares_start": False, "ttt_steps": 1, "noise": 0.0}


class DistillationModule(TrainingModule):
    """Trains the layers of a draft model.

    Args:
        model: a Hugging Face causal language model whose post-norm states are as wide as the
            target's, see `targets.pruned.layer_pruned`.
        target: gives the head.
        settings: see `Optimization`; the training-time test and noise do not apply.

    Raises:
        UserError: the settings ask for what a draft model does not have.
    """

    def __init__(self, model: Any, target: Any, settings: Optimization) -> None:
        super().__init__(settings)
        for name in ("ttt_steps", "noise"):
            refuse_unused(name, getattr(settings, name))
        decoder, embedding = model.get_decoder(), model.get_input_embeddings()
        self.trained = nn.ModuleDict(
            {name: part for name, part in decoder.named_children() if part is not embedding}
        )
        self._plain = (decoder, target)  # a tuple: neither parameters nor state of this module

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [n, V] of post-norm states [n, H], float32."""
        return self._plain[1].head(hidden).float()

    def training_step(self, batch: PackedBatch, batch_idx: int) -> Tensor:
        """feature_weight · SmoothL1 + token_weight · CE, means over the rows that count."""
        _, sums, _ = self._sums(batch)
        loss = sums.loss(self.settings.feature_weight, self.settings.token_weight)
        return self.taken(loss, [sums.detach()], batch_idx)

    def validation_step(self, batch: PackedBatch, batch_idx: int) -> None:
        """Count the chains from every row, as deep as the text has labels."""
        counts, sums, correct = self._sums(batch)
        self.val_sums.append(sums)
        right = torch.zeros_like(counts)
        right[counts] = correct
        self.val_counts.add(self._chains(right), self._chains(counts))

    def _chains(self, rows: Tensor) -> Tensor:
        """What holds at each row and at those after it: bool [P] -> [P, val_depth]."""
        depth = self.settings.val_depth
        return pad(rows.int(), (0, depth - 1)).unfold(0, depth, 1).bool()

    def _sums(self, batch: PackedBatch) -> tuple[Tensor, Sums, Tensor]:
        """Which rows count [P], the losses of those, and whether each one's best token is right."""
        decoder, _ = self._plain
        # Positions that start anew keep packed conversations apart
        states = decoder(
            input_ids=batch.tokens[None], position_ids=batch.positions[None], use_cache=False
        ).last_hidden_state[0]
        counts = shifted_supervision(batch, 1)
        rows = counts.nonzero()[:, 0]
        features = batch.features["top"][rows]
        sums, correct = row_sums(
            states[rows],
            self.logits,
            features,
            self.logits,
            labels=batch.tokens[rows + 1],
            features=features,
        )
        return counts, sums, correct


def refuse_unused(name: str, value: Any) -> None:
    """UserError if a setting that a draft model has no use for is not at its neutral value."""
    neutral = UNUSED[name]
    if value != neutral:
        shown = "null" if neutral is None else str(neutral).lower()
        raise UserError(
            f"trainer.{name}={value} belongs to an EAGLE drafter; a draft model needs "
            f"trainer.{name}={shown} (trainer=draft_model sets it)"
        )
