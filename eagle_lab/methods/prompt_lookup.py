"""Prompt lookup: copy what followed the last time the same n-gram stood in the context.

The longest n-gram first (n_max down to n_min), its earliest earlier occurrence, as Hugging Face
and vLLM do it (Saxena, prompt-lookup-decoding, 2023). A copied branch is a point-mass proposal,
hence lossless. No match is an empty draft.
"""

from __future__ import annotations

import numpy as np

from eagle_lab.engine.draft_tree import DraftTree
from eagle_lab.engine.proposer import Context, Proposer
from eagle_lab.errors import UserError
from eagle_lab.methods.chain import check_length


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

    def __init__(self, *, n_max: int = 3, n_min: int = 1, num_draft_tokens: int = 10):
        """Raises `UserError` unless 1 <= n_min <= n_max and num_draft_tokens >= 1."""
        if not 1 <= n_min <= n_max:
            raise UserError(
                f"prompt_lookup: n_min={n_min}, n_max={n_max}; needed: 1 <= n_min <= n_max"
            )
        self.n_max, self.n_min = n_max, n_min
        self.max_nodes = check_length("prompt_lookup", num_draft_tokens)

    def propose(self, context: Context) -> DraftTree:
        """A chain per row, as long as its match."""
        found = [
            find_continuation(np.asarray(row), self.n_max, self.n_min, self.max_nodes)
            for row in context.tokens
        ]
        return DraftTree.from_branches(context.roots, [[draft] for draft in found])
