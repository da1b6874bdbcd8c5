"""Speculative sampling across tokenizers: the draft model has a vocabulary of its own.

Greedy drafts travel as text: the row is re-encoded for the draft model, and what it writes is
encoded for the target (universal assisted generation in transformers). At T > 0 tokens are drawn
among those that both vocabularies hold, q renormalised over them and p over the target's full
vocabulary (token-level intersection, Timor et al. 2502.05202). Both are lossless.
"""

from __future__ import annotations

from pathlib import Path

import torch

from eagle_lab.decoding.draft_model import DraftModelProposer, load_draft_model
from eagle_lab.decoding.proposer import Context
from eagle_lab.decoding.shared_vocabulary import SharedVocabulary
from eagle_lab.decoding.translation import Translation
from eagle_lab.models.target import Target
from eagle_lab.tree.draft_tree import DraftTree


class Universal(DraftModelProposer):
    """Drafts with any causal language model."""

    def __init__(
        self,
        target: Target,
        *,
        draft_model: str | Path | Target | None = None,
        num_draft_tokens: int = 5,
        adaptive: bool = False,
        stop_confidence: float = 0.0,
        sample: bool = True,
    ):
        """Load the draft model: a hub id, a folder, or one that is loaded; see the base class.

        `num_draft_tokens` counts the draft model's tokens, and bounds the target's they become.
        Without `sample` drafts travel as text at T > 0, too.

        Raises:
            UserError: no model, no shared token, or a value outside its range.
        """
        model = load_draft_model("universal", draft_model, target)
        super().__init__(
            "universal",
            target,
            model,
            SharedVocabulary.by_text(target, model),
            num_draft_tokens=num_draft_tokens,
            adaptive=adaptive,
            stop_confidence=stop_confidence,
            sample=sample,
        )
        self._all_ids = torch.arange(model.vocab_size, device=target.device)
        self._end_ids = model.eos_ids
        self._translation = Translation(target.tokenizer, model.tokenizer)

    def rows(self, context: Context) -> list[list[int]]:
        """The rows so far, re-encoded."""
        return [self._translation.to_draft(tokens) for tokens in context.tokens]

    def propose(self, context: Context) -> DraftTree:
        """A chain: drawn among shared tokens, or translated from what the draft model writes."""
        if self.draws_children and not context.sampling.greedy:
            return super().propose(context)
        rows = self.rows(context)
        chain = self.draft(context, rows, self._all_ids)
        drafts = [
            self._translation.to_target(tokens, row, self._before_end(drafted[:count]))
            for tokens, row, drafted, count in zip(
                context.tokens, rows, chain.tokens.tolist(), chain.counts.tolist(), strict=True
            )
        ]
        drafts = [draft[: self.max_nodes] for draft in drafts]
        self.length.drafted([len(draft) for draft in drafts])
        return DraftTree.from_branches(context.roots, [[draft] for draft in drafts])

    def _before_end(self, drafted: list[int]) -> list[int]:
        """What was drafted before an end-of-sequence id, which means nothing to the target."""
        places = [place for place, token in enumerate(drafted) if token in self._end_ids]
        return drafted[: places[0]] if places else drafted
