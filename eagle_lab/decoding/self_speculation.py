"""The target drafts for itself: a control, not a speed-up.

Drafter and target are one model, so everything is accepted except ties of the arithmetic; a row
of a bench that shows less than that has found a fault in tree, cache or verification.
"""

from __future__ import annotations

from eagle_lab.decoding.draft_model import DraftModelProposer
from eagle_lab.decoding.shared_vocabulary import SharedVocabulary
from eagle_lab.models.target import Target


class SelfSpeculation(DraftModelProposer):
    """Drafts a chain with the target itself, on a cache of its own."""

    def __init__(self, target: Target, *, num_draft_tokens: int = 4, adaptive: bool = False):
        """Raises `UserError` if `num_draft_tokens` < 1; for `adaptive` see `DraftLength`."""
        super().__init__(
            "self_speculation",
            target,
            target,
            SharedVocabulary.by_id(target, target),
            num_draft_tokens=num_draft_tokens,
            adaptive=adaptive,
        )
