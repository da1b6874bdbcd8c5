"""Which tokens two models share, and a law over these as one over the target's vocabulary.

Drafting is restricted to shared tokens and q renormalised over them; the target's p and the
residual stay on its full vocabulary, which keeps the method lossless whatever is shared.

Shapes: D shared tokens, V vocabulary of the target.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from eagle_lab.errors import UserError
from eagle_lab.models.target import Target


@dataclass(frozen=True)
class SharedVocabulary:
    """Equal tokens of a draft model and a target.

    Attributes:
        draft_ids: [D] in the draft model.
        target_ids: [D] in the target.
        target_size: V.
    """

    draft_ids: Tensor
    target_ids: Tensor
    target_size: int

    @classmethod
    def by_id(cls, target: Target, model: Target) -> SharedVocabulary:
        """Two models of one tokenizer; embeddings may be padded to different sizes."""
        ids = torch.arange(min(target.vocab_size, model.vocab_size), device=target.device)
        return cls(ids, ids, target.vocab_size)

    @classmethod
    def by_text(cls, target: Target, model: Target) -> SharedVocabulary:
        """Two models with tokenizers of their own: the entries that are spelt alike.

        Raises:
            UserError: there are none.
        """
        ours, theirs = _entries(target), _entries(model)
        shared = sorted((theirs[entry], ours[entry]) for entry in ours.keys() & theirs.keys())
        if not shared:
            raise UserError(
                f"draft model '{model.name}' shares no token with target '{target.name}'"
            )
        draft_ids, target_ids = torch.tensor(shared, device=target.device).unbind(1)
        return cls(draft_ids, target_ids, target.vocab_size)

    def target_law(self, probs: Tensor) -> Tensor:
        """A law over the shared tokens [..., D] as one over the target's vocabulary [..., V]."""
        law = probs.new_zeros(*probs.shape[:-1], self.target_size)
        law[..., self.target_ids] = probs
        return law


def check_same_vocabulary(target: Target, model: Target) -> None:
    """Refuse a draft model in which a token of the target has another id, or none.

    Raises:
        UserError: names both models and how many tokens differ.
    """
    ours, theirs = target.tokenizer.get_vocab(), model.tokenizer.get_vocab()
    num_other = sum(theirs.get(entry) != number for entry, number in ours.items())
    if num_other:
        raise UserError(
            f"draft model '{model.name}' has another vocabulary than target '{target.name}': "
            f"{num_other} of {len(ours)} tokens have another id there, or none; "
            "method universal drafts across vocabularies"
        )


def _entries(model: Target) -> dict[str, int]:
    """Spelling -> id of the entries with an embedding; both spellings of a space are one."""
    vocabulary: dict[str, Any] = model.tokenizer.get_vocab()
    return {
        entry.replace("▁", "Ġ"): number
        for entry, number in vocabulary.items()
        if number < model.vocab_size
    }
