"""Speculative sampling: a smaller model of the same vocabulary drafts a chain.

Leviathan et al. 2211.17192, Chen et al. 2302.01318. At T > 0 tokens are drawn from the draft
model's law q under the run's temperature, top-k and top-p, and accepted with min(1, p/q).
"""

from __future__ import annotations

from pathlib import Path

from eagle_lab.decoding.draft_model import DraftModelProposer, load_draft_model
from eagle_lab.decoding.shared_vocabulary import SharedVocabulary, check_same_vocabulary
from eagle_lab.models.target import Target


class Speculative(DraftModelProposer):
    """Drafts with a model of its own."""

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

        Raises:
            UserError: no model, one of another vocabulary, or a value outside its range.
        """
        model = load_draft_model("speculative", draft_model, target)
        check_same_vocabulary(target, model)
        super().__init__(
            "speculative",
            target,
            model,
            SharedVocabulary.by_id(target, model),
            num_draft_tokens=num_draft_tokens,
            adaptive=adaptive,
            stop_confidence=stop_confidence,
            sample=sample,
        )
