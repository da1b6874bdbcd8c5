"""A method that does not live in the package: the last token, once more."""

from __future__ import annotations

from eagle_lab.engine.draft_tree import DraftTree
from eagle_lab.engine.proposer import Context, Proposer


class Repeat(Proposer):
    """Drafts `num_draft_tokens` copies of the root."""

    def __init__(self, *, num_draft_tokens: int = 2):
        self.max_nodes = num_draft_tokens

    def propose(self, context: Context) -> DraftTree:
        return DraftTree.chain(context.roots, context.roots[:, None].repeat(1, self.max_nodes))
