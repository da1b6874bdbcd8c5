"""EAGLE-1: a tree of fixed shape, filled level by level (2401.15077).

Greedy decoding takes the best children of each node. At T > 0 children are drawn from the
drafter's law without replacement, and `verify` decides by recursive rejection; the shape is fixed
before the draw, which keeps it lossless.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from eagle_lab.decoding.eagle import EagleProposer
from eagle_lab.decoding.proposer import Context
from eagle_lab.drafters.eagle1 import Eagle1
from eagle_lab.errors import UserError
from eagle_lab.models.target import Target
from eagle_lab.sampling import Purpose, draw_without_replacement
from eagle_lab.tree.draft_tree import DraftTree, ancestors_of
from eagle_lab.tree.static import EAGLE1_PATHS, StaticShape


class EagleStatic(EagleProposer):
    """Fills `shape`; `paths` as nested lists of sibling ranks, EAGLE-1's 25 nodes by default."""

    def __init__(
        self, target: Target, drafter: Eagle1, *, paths: Sequence[Sequence[int]] | None = None
    ):
        super().__init__(target, drafter)
        self._set_shape(StaticShape.from_paths(paths or EAGLE1_PATHS))

    def _set_shape(self, shape: StaticShape) -> None:
        device = self.target.device
        self.shape = shape
        self.max_nodes = len(shape.paths)
        self.parents = shape.parents.to(device)
        self.ranks = shape.ranks.to(device)
        self.ancestors = ancestors_of(
            self.parents[None], torch.ones_like(self.parents[None], dtype=torch.bool)
        )[0]

    @torch.no_grad()
    def propose(self, context: Context) -> DraftTree:
        """One pass of the drafter per level that has children below it."""
        batch, columns = len(context.tokens), self.max_nodes + 1
        tokens = context.roots[:, None].repeat(1, columns)
        valid = torch.ones(batch, columns, dtype=torch.bool, device=tokens.device)
        laws: Tensor | None = None
        coins = None
        if not context.sampling.greedy:
            laws = torch.zeros(batch, columns, self.target.vocab_size, device=tokens.device)
            coins = self._coins(context)
        drafted: list[int] = []  # columns whose states are in the drafter's cache, by slot
        hidden = self.root_hidden  # states behind the inner nodes of the level above
        for depth in range(1, self.shape.depth + 1):
            inner = self.shape.inner_columns_at(depth - 1)
            if depth > 1:
                hidden = self._states(inner, tokens, hidden, drafted, depth - 1)
            level = torch.tensor(self.shape.columns_at(depth), device=tokens.device)
            place = torch.searchsorted(
                torch.tensor(inner, device=tokens.device), self.parents[level]
            )
            rank = self.ranks[level]
            num_children = int(self.shape.ranks[self.shape.columns_at(depth)].max()) + 1
            logits = self.drafter.logits(hidden)
            if coins is None or laws is None:
                children = logits.topk(num_children, dim=-1).indices
            else:
                probs = context.sampling.probs(logits)
                laws[:, inner] = self.full_law(probs)
                children, possible = draw_without_replacement(probs, coins[:, inner, :num_children])
                valid[:, level] = possible[:, place, rank] & valid[:, self.parents[level]]
            tokens[:, level] = self.target_ids(children[:, place, rank])
        return DraftTree.build(
            tokens,
            self.parents.expand(batch, -1),
            max_depth=self.shape.depth,
            valid=valid,
            draft_probs=laws,
        )

    def _states(
        self, inner: list[int], tokens: Tensor, above: Tensor, drafted: list[int], depth: int
    ) -> Tensor:
        """Draft behind the inner nodes of level `depth`; appends them to `drafted`."""
        parents_above = self.shape.inner_columns_at(depth - 1)
        parent_place = [parents_above.index(int(self.shape.parents[column])) for column in inner]
        drafted.extend(inner)
        visible = self.ancestors[inner][:, drafted].expand(len(tokens), -1, -1)
        return self.guess(tokens[:, inner], above[:, parent_place], depth, visible)

    def _coins(self, context: Context) -> Tensor:
        """[B, N, W] one coin for each child of each column."""
        width = int(self.shape.ranks.max()) + 1
        columns = self.max_nodes + 1
        roots = context.cache.lengths[:, None]
        return context.coins.toss(roots, Purpose.DRAFT, columns * width).view(-1, columns, width)


class EagleChain(EagleStatic):
    """One branch of `num_draft_tokens`: the shape that serving engines use at larger batches."""

    def __init__(self, target: Target, drafter: Eagle1, *, num_draft_tokens: int = 5):
        """Raises `UserError` if `num_draft_tokens` is less than 1."""
        if num_draft_tokens < 1:
            raise UserError(f"num_draft_tokens={num_draft_tokens} must be at least 1")
        EagleProposer.__init__(self, target, drafter)
        self._set_shape(StaticShape.chain(num_draft_tokens))
