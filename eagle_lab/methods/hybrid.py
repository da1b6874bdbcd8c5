"""Copies where the text repeats itself, the drafter's tree where it does not, or both at once.

What a row gets depends on the length of its longest match alone:

    shorter than n_min         the drafter's dynamic tree
    shorter than alone_from    that tree, and the copied branch grafted onto it
    alone_from and longer      the copied branch; if every row is so, the drafter does not run

A copy after a short match is right less often than the drafter, so it only joins its tree; one
after a long match is accepted further than a drafter's tree and costs fewer nodes. All of it is
chosen, nothing drawn, so sampling stays exact.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from eagle_lab.drafters.base import Drafter
from eagle_lab.engine.draft_tree import DraftTree, Scores
from eagle_lab.engine.proposer import Context, Proposer
from eagle_lab.engine.tree_shapes import clear_rows, graft
from eagle_lab.engine.verify import Acceptance
from eagle_lab.errors import UserError
from eagle_lab.methods.eagle_trees import EagleDynamic
from eagle_lab.methods.suffix import SuffixCopier
from eagle_lab.targets.target import Target


class Hybrid(Proposer):
    """`EagleDynamic` with `num_nodes`, and up to `num_draft_tokens` copied tokens on top."""

    def __init__(
        self,
        target: Target,
        drafter: Drafter,
        *,
        depth: int,
        width: int,
        num_nodes: int,
        n_min: int = 2,
        num_draft_tokens: int = 16,
        alone_from: int = 5,
    ):
        """Raises what `EagleDynamic` and `SuffixCopier` do; `UserError` if alone_from < n_min."""
        if alone_from < n_min:
            raise UserError(f"alone_from={alone_from} must be at least n_min={n_min}")
        self.copier = SuffixCopier(n_min, num_draft_tokens)
        self.eagle = EagleDynamic(target, drafter, depth=depth, width=width, num_nodes=num_nodes)
        self.alone_from = alone_from
        self.max_nodes = num_nodes + num_draft_tokens

    def begin(self, context: Context, features: dict[str, Tensor]) -> None:
        """Read the prompts."""
        self.copier.begin(context)
        self.eagle.begin(context, features)

    def propose(self, context: Context) -> DraftTree:
        """One tree tensor for all rows, whichever kind of draft each of them has."""
        copies = self.copier.copies(context)
        copied = DraftTree.from_branches(context.roots, [[copy.tokens] for copy in copies])
        alone = [copy.match_length >= self.alone_from for copy in copies]
        if all(alone):
            return copied
        tree = self.eagle.propose(context)
        if any(alone):
            tree = clear_rows(tree, torch.tensor(alone, device=context.roots.device))
        return graft(tree, copied.tokens[:, 1:], copied.num_nodes())

    def observe(self, context: Context, acceptance: Acceptance, scores: Scores) -> None:
        """Show the drafter the true features, whoever drafted."""
        self.eagle.observe(context, acceptance, scores)

    def select(self, rows: Sequence[int]) -> None:
        """Keep only the chosen rows."""
        self.copier.select(rows)
        self.eagle.select(rows)

    def model_calls(self) -> list[tuple[object, str]]:
        """The drafter's."""
        return self.eagle.model_calls()
