"""Which feature, token and label belong together, at every training-time step.

Row p of a conversation, step s = 0, 1, 2 … (training-time test, arXiv 2503.01840):

    p                            0     1     2     3     4     5
    token                        t0    t1    t2    t3    t4    t5
    assistant wrote it           -     -     -     yes   yes   yes

    step 0, row p                fed: feature f_p, token t_{p+1}, at position p
      p = 0                      f0, t1 -> f̂1 (target: f1), distribution of t2     t2 not supervised
      p = 1                      f1, t2 -> f̂2 (target: f2), distribution of t3     counts
      p = 2                      f2, t3 -> f̂3 (target: f3), distribution of t4     counts
      p = 3                      f3, t4 -> f̂4 (target: f4), distribution of t5     counts
      p = 4                      f4, t5 -> f̂5, distribution of t6                  no t6, no label
    step 1, row p                fed: step 0's own f̂_{p+1}, token t_{p+2}, at position p+1
      p = 1                      f̂2, t3 -> f̂3 (target: f3), distribution of t4     counts
      p = 2                      f̂3, t4 -> f̂4 (target: f4), distribution of t5     counts

So at step s: fed token p+1+s, position p+s, feature label p+1+s (the target's head over it is the
soft label), token label p+2+s. A row counts at step s while all its labels p+2 … p+2+s are
assistant tokens of the same conversation.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from eagle_lab.data.batches import PackedBatch


@dataclass
class Step:
    """What the rows of one training-time step are fed and held against.

    Attributes:
        rows: flat index of each row that counts, ascending [n].
        fed_tokens: token p+1+s of each row [n].
        positions: p+s [n].
        feature_labels: flat index of the feature that f̂ should equal, p+1+s [n].
        token_labels: token p+2+s [n].
    """

    rows: Tensor
    fed_tokens: Tensor
    positions: Tensor
    feature_labels: Tensor
    token_labels: Tensor


def counting_rows(batch: PackedBatch, step: int) -> Tensor:
    """Whether each row counts at `step`, bool [P]."""
    counts = torch.ones_like(batch.supervised)
    for earlier in range(step + 1):
        counts &= shifted_supervision(batch, earlier + 2)
    return counts


def take_step(batch: PackedBatch, step: int, rows: Tensor | None = None) -> Step:
    """The rows that count at `step`, those among the flat indices `rows` if given."""
    counts = counting_rows(batch, step)
    rows = counts.nonzero()[:, 0] if rows is None else rows[counts[rows]]
    return Step(
        rows=rows,
        fed_tokens=batch.tokens[rows + 1 + step],
        positions=batch.positions[rows] + step,
        feature_labels=rows + 1 + step,
        token_labels=batch.tokens[rows + 2 + step],
    )


def next_tokens(batch: PackedBatch) -> Tensor:
    """Token p+1 for every row [P]; a conversation's last row, which never counts, gets its own."""
    return torch.where(_same_conversation(batch, 1), torch.roll(batch.tokens, -1), batch.tokens)


def shifted_supervision(batch: PackedBatch, shift: int) -> Tensor:
    """Whether token p + shift is an assistant token of the conversation of row p, bool [P]."""
    return torch.roll(batch.supervised, -shift) & _same_conversation(batch, shift)


def _same_conversation(batch: PackedBatch, shift: int) -> Tensor:
    """Whether token p + shift exists in the conversation of row p, bool [P]."""
    same = torch.roll(batch.document, -shift) == batch.document
    same[max(len(same) - shift, 0) :] = False
    return same
