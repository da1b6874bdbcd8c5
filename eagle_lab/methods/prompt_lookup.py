"""Prompt lookup: copy what followed the last time the same n-gram stood in the context.

The longest n-gram first (n_max down to n_min), its earliest earlier occurrence, as Hugging Face
and vLLM do it (Saxena, prompt-lookup-decoding, 2023). A copied branch is a point-mass proposal,
hence lossless. No match is an empty draft.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from eagle_lab.engine.draft_tree import DraftTree, Scores
from eagle_lab.engine.proposer import Context, Proposer
from eagle_lab.engine.verify import Acceptance
from eagle_lab.errors import UserError
from eagle_lab.methods.chain import DraftLength


def find_continuation(tokens: np.ndarray, n_max: int, n_min: int, num_draft_tokens: int) -> list:
    """Tokens that followed the earliest occurrence of the longest matching suffix n-gram.

    Args:
        tokens: [T] the context.
        n_max: longest n-gram tried.
        n_min: shortest.
        num_draft_tokens: most tokens returned; fewer where the context ends.
    """
    for n in range(min(n_max, len(tokens) - 1), n_min - 1, -1):
        starts = len(tokens) - n  # an occurrence must be followed by at least one token
        matches = np.ones(starts, dtype=bool)
        for offset in range(n):
            matches &= tokens[offset : offset + starts] == tokens[len(tokens) - n + offset]
        if matches.any():
            follows = int(matches.argmax()) + n
            return tokens[follows : follows + num_draft_tokens].tolist()
    return []


class PromptLookup(Proposer):
    """Copies a branch of up to `num_draft_tokens` tokens out of the row's own context."""

    def __init__(
        self,
        *,
        n_max: int = 3,
        n_min: int = 1,
        num_draft_tokens: int = 10,
        adaptive: bool = False,
    ):
        """Raises `UserError` unless 1 <= n_min <= n_max and num_draft_tokens >= 1.

        With `adaptive` each row's longest copy follows what was accepted, see `DraftLength`.
        """
        if not 1 <= n_min <= n_max:
            raise UserError(
                f"prompt_lookup: n_min={n_min}, n_max={n_max}; needed: 1 <= n_min <= n_max"
            )
        self._length = DraftLength("prompt_lookup", num_draft_tokens, adaptive=adaptive)
        self.n_max, self.n_min, self.max_nodes = n_max, n_min, num_draft_tokens

    def begin(self, context: Context, features: dict[str, Tensor]) -> None:
        """Every row starts with the longest copies."""
        self._length.begin(len(context.tokens))

    def propose(self, context: Context) -> DraftTree:
        """A chain per row, as long as its match."""
        found = [
            find_continuation(np.asarray(row), self.n_max, self.n_min, longest)
            for row, longest in zip(context.tokens, self._length.wanted, strict=True)
        ]
        self._length.drafted([len(draft) for draft in found])
        return DraftTree.from_branches(context.roots, [[draft] for draft in found])

    def observe(self, context: Context, acceptance: Acceptance, scores: Scores) -> None:
        """Learn how much was accepted."""
        self._length.observe(acceptance.num_accepted)

    def select(self, rows: Sequence[int]) -> None:
        """Keep only the lengths of the chosen rows."""
        self._length.select(rows)
