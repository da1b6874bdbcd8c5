"""Standard decoding: the empty tree, one target pass per token."""

from __future__ import annotations

from typing import Any

from eagle_lab.decoding.proposer import Context, Stateless
from eagle_lab.tree.draft_tree import DraftTree


class Vanilla(Stateless):
    """Proposes nothing; the baseline of every bench."""

    max_nodes = 0

    def __init__(self, target: Any = None):
        """`target` is accepted like every proposer's and not used."""

    def propose(self, context: Context) -> DraftTree:
        """The root alone."""
        return DraftTree.root_only(context.roots)
