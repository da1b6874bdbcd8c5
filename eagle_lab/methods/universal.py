"""Speculative sampling across tokenizers: the draft model has a vocabulary of its own.

At T > 0 tokens are drawn among those that both vocabularies hold, q renormalized over them and p
over the target's full vocabulary (token-level intersection, Timor et al. 2502.05202). Greedy drafts
travel as text (universal assisted generation in transformers): the row is re-encoded for the draft
model, and what it writes is encoded for the target. Both are lossless.

    target tokens     ... |Ġwe|Ġth|            the row so far: "... we th"
    draft tokens      ... |Ġwe|Ġth|            the same text, re-encoded
    drafted                       |e|Ġsea|     "e sea"
    text as a whole   ... |Ġwe|Ġthe|Ġsea|      the target's own spelling merges across the end
    to be verified                |e|Ġsea|     what continues the row as it stands
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from eagle_lab.engine.draft_tree import DraftTree
from eagle_lab.engine.proposer import Context
from eagle_lab.methods.draft_model import DraftModelProposer, SharedVocabulary, load_draft_model
from eagle_lab.targets.target import Target

WINDOW = 16  # last tokens of a row that are spelt anew with a draft
INCOMPLETE = "\ufffd"  # how tokenizers show bytes that are no whole character yet


class Translation:
    """Between the tokenizers of a target and a draft model."""

    def __init__(self, target_tokenizer: Any, draft_tokenizer: Any):
        self._target, self._draft = target_tokenizer, draft_tokenizer

    def to_draft(self, tokens: Sequence[int]) -> list[int]:
        """A row of the target in the draft model's tokens, its begin-of-text included, if any.

        Bytes at the end that are no whole character yet are left out. Never empty.
        """
        text = _decode(self._target, tokens).rstrip(INCOMPLETE)
        return list(self._draft(text, verbose=False)["input_ids"]) or [0]

    def to_target(
        self, tokens: Sequence[int], draft_row: Sequence[int], drafted: Sequence[int]
    ) -> list[int]:
        """What the draft model wrote, as tokens that continue a row of the target.

        Args:
            tokens: the row so far.
            draft_row: the same text as the draft model's tokens, from `to_draft`.
            drafted: its tokens after that.

        Returns:
            As many tokens as the text holds; none where no tokens spell it after this row.
        """
        before = _decode(self._draft, draft_row[-WINDOW:])
        after = _decode(self._draft, [*draft_row[-WINDOW:], *drafted]).rstrip(INCOMPLETE)
        written = after[len(before) :]
        if not after.startswith(before) or not written:
            return []
        settled = self._without_incomplete(tokens[-WINDOW:])
        pending = list(tokens[len(tokens[:-WINDOW]) + len(settled) :])
        ahead = self._spelt(settled, written)
        # The bytes of a character that the row has begun are the first ones of the draft's
        return ahead[len(pending) :] if ahead[: len(pending)] == pending else []

    def _without_incomplete(self, tokens: Sequence[int]) -> list[int]:
        """`tokens` up to the last whole character."""
        kept = list(tokens)
        while kept and _decode(self._target, kept).endswith(INCOMPLETE):
            kept.pop()
        return kept

    def _spelt(self, window: list[int], written: str) -> list[int]:
        """Target tokens for `written` after `window`, none if that cannot be spelt."""
        text = _decode(self._target, window)
        alone, whole = _encode(self._target, text), _encode(self._target, text + written)
        if whole[: len(alone)] == alone:
            return whole[len(alone) :]
        # A token of the whole text lies across the end of the window, where the row has none
        ahead = _encode(self._target, written)
        spells = _decode(self._target, window + ahead) == text + written
        return ahead if spells else []


def _decode(tokenizer: Any, tokens: Sequence[int]) -> str:
    text = tokenizer.decode(
        list(tokens), skip_special_tokens=False, clean_up_tokenization_spaces=False
    )
    return str(text)


def _encode(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])


class Universal(DraftModelProposer):
    """Drafts with any causal language model."""

    def __init__(
        self,
        target: Target,
        *,
        draft_model: str | Path | Target | None = None,
        num_draft_tokens: int = 5,
        stop_confidence: float = 0.0,
    ):
        """Load the draft model: a hub id, a folder, or one that is loaded; see the base class.

        `num_draft_tokens` counts the draft model's tokens, and bounds the target's they become.

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
            stop_confidence=stop_confidence,
        )
        self._all_ids = torch.arange(model.vocab_size, device=target.device)
        self._end_ids = model.eos_ids
        self._translation = Translation(target.tokenizer, model.tokenizer)

    def rows(self, context: Context) -> list[list[int]]:
        """The rows so far, re-encoded."""
        return [self._translation.to_draft(tokens) for tokens in context.tokens]

    def propose(self, context: Context) -> DraftTree:
        """A chain: drawn among shared tokens, or translated from what the draft model writes."""
        if not context.sampling.greedy:
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
        return DraftTree.from_branches(context.roots, [[draft] for draft in drafts])

    def _before_end(self, drafted: list[int]) -> list[int]:
        """What was drafted before an end-of-sequence id, which means nothing to the target."""
        places = [place for place, token in enumerate(drafted) if token in self._end_ids]
        return drafted[: places[0]] if places else drafted
