"""The target drafts for itself: a control, not a speed-up.

Drafter and target are one model, so everything is accepted except ties of the arithmetic; a row
of a bench that shows less than that has found a fault in tree, cache or verification.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from eagle_lab.decoding.draft_length import DraftLength
from eagle_lab.decoding.proposer import Context
from eagle_lab.models.target import Scores, Target
from eagle_lab.sampling import Purpose, draw
from eagle_lab.tree.draft_tree import DraftTree
from eagle_lab.verify import Acceptance


class SelfSpeculation:
    """Drafts a chain with the target itself, on a cache of its own."""

    def __init__(self, target: Target, *, num_draft_tokens: int = 4, adaptive: bool = False):
        """Raises `UserError` if `num_draft_tokens` < 1; for `adaptive` see `DraftLength`."""
        self._length = DraftLength("self_speculation", num_draft_tokens, adaptive=adaptive)
        self.target = target
        self.max_nodes = num_draft_tokens

    def begin(self, context: Context, features: Tensor) -> None:
        """Read the prompts; the roots are not in the cache yet."""
        self.cache = self.target.new_cache(len(context.tokens))
        self.target.prefill([tokens[:-1] for tokens in context.tokens], self.cache)
        self._length.begin(len(context.tokens))

    def propose(self, context: Context) -> DraftTree:
        """A chain, argmax at temperature 0, drawn from the law otherwise."""
        drafts, laws = [], []
        coins = context.coins.toss(context.cache.lengths[:, None], Purpose.DRAFT, self.max_nodes)
        tokens, counts = self._unread(context)
        for step in range(max(self._length.wanted)):
            logits = self.target.extend(tokens, counts, self.cache).logits[:, 0]
            if context.sampling.greedy:
                drafts.append(logits.argmax(-1))
            else:
                laws.append(context.sampling.probs(logits))
                drafts.append(draw(laws[-1], coins[:, 0, step]))
            tokens, counts = drafts[-1][:, None], torch.ones_like(counts)
        draft_probs = torch.stack(laws, dim=1) if laws else None
        wanted = torch.tensor(self._length.wanted, device=context.roots.device)
        self._length.drafted(wanted)
        return DraftTree.chain(context.roots, torch.stack(drafts, dim=1), wanted, draft_probs)

    def _unread(self, context: Context) -> tuple[Tensor, Tensor]:
        """Committed tokens that this cache lacks: the root, and the last draft if it was kept."""
        have = self.cache.lengths.tolist()
        unread = [tokens[count:] for tokens, count in zip(context.tokens, have, strict=True)]
        widest = max(len(row) for row in unread)
        padded = torch.tensor([row + [0] * (widest - len(row)) for row in unread])
        counts = torch.tensor([len(row) for row in unread])
        return padded.to(context.roots.device), counts.to(context.roots.device)

    def observe(self, context: Context, acceptance: Acceptance, scores: Scores) -> None:
        """Forget the rejected drafts, and learn how much was accepted."""
        self._length.observe(acceptance.num_accepted)
        # Read so far: everything up to the old root, then all drafts but the last.
        kept = context.cache.lengths
        surplus = (self.cache.lengths - kept).clamp(min=0)
        self.cache.advance(-surplus)

    def select(self, rows: Sequence[int]) -> None:
        """Keep only the chosen rows."""
        self.cache.select(rows)
        self._length.select(rows)
