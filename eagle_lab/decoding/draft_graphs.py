"""The EAGLE drafter from CUDA graphs: single passes, and whole trees of one shape.

A tree grown by a dozen small operations per level is bound by their launches long before its passes
are; recorded as a whole it is one. That takes a draft whose shapes and number of levels do not
depend on what it holds, and that looks at nothing from the host. Shapes: B rows, N columns, M
drafted slots, H hidden width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

from torch import Tensor

from eagle_lab.drafters.eagle1 import Eagle1
from eagle_lab.drafters.fast_eagle1 import CacheAttend
from eagle_lab.models.cache import TreeCache
from eagle_lab.models.graphs import CacheGraphs, Tensors
from eagle_lab.models.recorder import Recorder
from eagle_lab.models.tree_pass import TreePass
from eagle_lab.tree.draft_tree import DraftTree

Draft = Callable[[TreeCache, Tensor, Tensor], DraftTree]
"""(the drafter's cache, roots [B], states [B, 1, H] behind them) -> a tree on the roots."""


class DraftGraphs:
    """What a proposer does with its drafter, from recordings."""

    def __init__(self, drafter: Eagle1, recorder: Recorder):
        self._drafter = drafter
        self._graphs = CacheGraphs(recorder)
        self._wholes: dict[Draft, _Whole] = {}

    def run(
        self, cache: TreeCache, tokens: Tensor, features: Tensor, positions: Tensor, visible: Tensor
    ) -> Tensor:
        """States [B, N, H] of one pass over `tokens` [B, N]; `visible` [B, N, M]."""
        inputs = (tokens, features, positions, visible)
        return self._graphs.run(self._pass, cache, visible.shape[2], *inputs)[0]

    def tree(
        self, draft: Draft, num_slots: int, cache: TreeCache, roots: Tensor, hidden: Tensor
    ) -> DraftTree:
        """`draft(cache, roots, hidden)`, recorded as a whole.

        Its nodes take `num_slots` slots of the cache.
        """
        whole = self._wholes.setdefault(draft, _Whole(draft))
        return whole.tree(self._graphs.run(whole, cache, num_slots, roots, hidden))

    def _pass(
        self, cache: TreeCache, tokens: Tensor, features: Tensor, positions: Tensor, visible: Tensor
    ) -> Tensors:
        attend = CacheAttend(TreePass(cache, positions, visible))
        return (self._drafter(tokens, features, positions, attend),)


class _Whole:
    """A draft that answers with the tensors of its tree, whose other fields never change."""

    def __init__(self, draft: Draft):
        self._draft = draft
        self._names: tuple[str, ...] = ()
        self._rest: dict[str, Any] = {}

    def __call__(self, cache: TreeCache, roots: Tensor, hidden: Tensor) -> Tensors:
        tree = self._draft(cache, roots, hidden)
        parts = {field.name: getattr(tree, field.name) for field in fields(tree)}
        tensors = {name: part for name, part in parts.items() if isinstance(part, Tensor)}
        self._names = tuple(tensors)
        self._rest = {name: part for name, part in parts.items() if name not in tensors}
        return tuple(part.contiguous() for part in tensors.values())

    def tree(self, tensors: Tensors) -> DraftTree:
        """The tree of `tensors`, answers of this draft."""
        parts: dict[str, Any] = dict(zip(self._names, tensors, strict=True)) | self._rest
        return DraftTree(**parts)
