"""The reduced draft vocabulary: which target tokens a drafter can propose.

Kept ids are sorted, so that draft order is target order and ties break alike; they are stored
as offsets, `d2t[i] = target_id_i - i` (EAGLE-3's form). Kept [0, 3, 7, 8] gives d2t [0, 2, 5, 5].
Shapes: V target vocabulary, D draft vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from eagle_lab.errors import UserError


def most_frequent(counts: Tensor, size: int) -> Tensor:
    """Sorted ids [size] of the most frequent tokens; equal counts prefer the lower id.

    Args:
        counts: occurrences of each target token among supervised tokens, [V].
        size: draft vocabulary size D, 1 <= D <= V.
    """
    if not 1 <= size <= len(counts):
        raise UserError(
            f"draft_vocab_size={size} does not fit a target vocabulary of {len(counts)}; "
            f"allowed: 1 to {len(counts)}, or null for the full vocabulary"
        )
    order = torch.argsort(counts, descending=True, stable=True)
    return torch.sort(order[:size]).values


def to_offsets(kept: Tensor) -> Tensor:
    """Sorted kept ids [D] -> offsets d2t [D]."""
    kept = kept.to(torch.long)
    if len(kept) > 1 and not bool((kept[1:] > kept[:-1]).all()):
        raise ValueError("kept ids must be sorted and distinct")
    return kept - torch.arange(len(kept), device=kept.device)


def to_ids(offsets: Tensor) -> Tensor:
    """Offsets d2t [D] -> sorted kept ids [D]."""
    return offsets + torch.arange(len(offsets), device=offsets.device)


def to_draft(kept: Tensor, vocab_size: int) -> Tensor:
    """Target id -> draft id [V], -1 where the drafter cannot say the token."""
    draft_ids = torch.full((vocab_size,), -1, dtype=torch.long, device=kept.device)
    draft_ids[kept] = torch.arange(len(kept), device=kept.device)
    return draft_ids
