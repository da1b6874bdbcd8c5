"""The EAGLE drafter from CUDA graphs: single passes, and whole trees of one shape.

A tree grown by a dozen small operations per level is bound by their launches long before its passes
are; recorded as a whole it is one. That takes a draft whose shapes and number of levels do not
depend on what it holds, and that looks at nothing from the host. Shapes: B rows, N columns, M
drafted slots, H hidden width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import TYPE_CHECKING

from torch import Tensor

from eagle_lab.drafters.fast_eagle1 import CacheAttend
from eagle_lab.models.cache import TreeCache, TreePass
from eagle_lab.models.graphs import CacheGraphs, Recorder, Tensors
from eagle_lab.tree.draft_tree import DraftTree

if TYPE_CHECKING:
    from eagle_lab.decoding.eagle import EagleProposer

Draft = Callable[[Tensor], DraftTree]
"""A method of the proposer: roots [B] -> a tree on them, from its cache and root_hidden."""


class DraftGraphs:
    """What a proposer does with its drafter, from recordings."""

    def __init__(self, proposer: EagleProposer, recorder: Recorder):
        self._proposer = proposer
        self._graphs = CacheGraphs(recorder)

    def run(
        self, cache: TreeCache, tokens: Tensor, features: Tensor, positions: Tensor, visible: Tensor
    ) -> Tensor:
        """States [B, N, H] of one pass over `tokens` [B, N]; `visible` [B, N, M]."""
        inputs = (tokens, features, positions, visible)
        return self._graphs.run(self._pass, cache, visible.shape[2], *inputs)[0]

    def tree(self, draft: Draft, roots: Tensor, num_slots: int) -> DraftTree:
        """`draft(roots)`, recorded as a whole; its nodes take `num_slots` slots of the cache."""
        self._draft = draft
        state = (roots, self._proposer.root_hidden)
        outputs = self._graphs.run(self._whole, self._proposer.cache, num_slots, *state)
        return DraftTree(**dict(zip(self._names, outputs, strict=True)), max_depth=self._max_depth)

    def _pass(
        self, cache: TreeCache, tokens: Tensor, features: Tensor, positions: Tensor, visible: Tensor
    ) -> Tensors:
        attend = CacheAttend(TreePass(cache, positions, visible))
        return (self._proposer.drafter(tokens, features, positions, attend),)

    def _whole(self, cache: TreeCache, roots: Tensor, root_hidden: Tensor) -> Tensors:
        """The tensors of a tree that the proposer drafts as if these were its own."""
        proposer = self._proposer
        own = proposer.cache, proposer.root_hidden, proposer.graphs
        proposer.cache, proposer.root_hidden, proposer.graphs = cache, root_hidden, None
        try:
            tree = self._draft(roots)
        finally:
            proposer.cache, proposer.root_hidden, proposer.graphs = own
        parts = {field.name: getattr(tree, field.name) for field in fields(tree)}
        tensors = {name: part for name, part in parts.items() if isinstance(part, Tensor)}
        self._names, self._max_depth = tuple(tensors), tree.max_depth
        return tuple(part.contiguous() for part in tensors.values())
