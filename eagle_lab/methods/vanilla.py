"""Standard decoding: the empty tree, one target pass per token."""

from __future__ import annotations

from eagle_lab.engine.draft_tree import DraftTree
from eagle_lab.engine.proposer import Context, Proposer


class Vanilla(Proposer):
    """Proposes nothing; the baseline of every bench."""

    max_nodes = 0

    def propose(self, context: Context) -> DraftTree:
        """The root alone."""
        return DraftTree.root_only(context.roots)
