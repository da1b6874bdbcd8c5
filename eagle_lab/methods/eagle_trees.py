"""Trees of an EAGLE drafter: of fixed shape (EAGLE-1), or following its confidence (EAGLE-2).

EagleStatic (2401.15077) fills its shape level by level. At T > 0 children are drawn from the
drafter's distribution without replacement and verified by recursive rejection; the shape is fixed
before the draw, which keeps it lossless.

EagleDynamic (2406.16858) chooses its children at every temperature: which nodes survive the
reranking may depend only on what was known before a draw, so drawn children cannot be pruned by
their scores. With `stop_confidence` a row's tree ends at the first level whose best path is less
probable than that; the rest of its columns is padding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eagle_lab.drafters.base import Drafter
from eagle_lab.engine.draft_tree import DraftTree, ancestors_of
from eagle_lab.engine.proposer import Context
from eagle_lab.engine.sampling import Purpose, draw_without_replacement
from eagle_lab.engine.tree_growth import Level, best_of, check_dynamic, expand, rerank
from eagle_lab.engine.tree_shapes import EAGLE1_PATHS, StaticShape
from eagle_lab.methods.chain import check_stop_confidence
from eagle_lab.methods.eagle import EagleProposer, states_at
from eagle_lab.targets.cache import TreeCache
from eagle_lab.targets.cpu.ops import best_tokens
from eagle_lab.targets.target import Target


@dataclass(frozen=True)
class _Level:
    """How one level of a shape hangs on the one above: C columns under I inner nodes.

    Attributes:
        columns: [C] columns of the level.
        ranks: [C] their ranks among their siblings.
        inner: [I] columns of the level above that have children.
        places: [C] place in `inner` of each column's parent.
        inner_places: [I] place of each inner node's parent among the inner nodes above it.
        visible: [I, M] inner nodes drafted so far that an inner node sees, itself included.
        num_children: most children of an inner node.
    """

    columns: Tensor
    ranks: Tensor
    inner: Tensor
    places: Tensor
    inner_places: Tensor
    visible: Tensor
    num_children: int


def _levels(shape: StaticShape, device: torch.device) -> list[_Level]:
    """The levels of `shape`, from the root's children on."""
    ancestors = ancestors_of(shape.parents[None], torch.ones(1, len(shape.parents)).bool())[0]
    levels: list[_Level] = []
    above, drafted = [0], []
    for depth in range(1, shape.depth + 1):
        columns, inner = shape.columns_at(depth), shape.inner_columns_at(depth - 1)
        drafted += inner if depth > 1 else []
        indices = {
            "columns": columns,
            "ranks": shape.ranks[columns].tolist(),
            "inner": inner,
            "places": [inner.index(parent) for parent in shape.parents[columns].tolist()],
            "inner_places": [above.index(parent) for parent in shape.parents[inner].tolist()],
        }
        tensors = {name: torch.tensor(values, device=device) for name, values in indices.items()}
        visible = ancestors[inner][:, drafted].to(device)
        num_children = max(indices["ranks"]) + 1
        levels.append(_Level(**tensors, visible=visible, num_children=num_children))
        above = inner
    return levels


class EagleStatic(EagleProposer):
    """Fills `shape`; `paths` as nested lists of sibling ranks, EAGLE-1's 25 nodes by default."""

    draws_children = True

    def __init__(
        self, target: Target, drafter: Drafter, *, paths: Sequence[Sequence[int]] | None = None
    ):
        """Raises `UserError` for a path whose parent or earlier sibling is missing, `Infeasible`
        for more siblings than the drafter has tokens.
        """
        super().__init__(target, drafter)
        self.shape = StaticShape.from_paths(paths or EAGLE1_PATHS)
        self.max_nodes = len(self.shape.paths)
        self.sizes = {"depth": self.shape.depth, "width": None, "num_nodes": self.max_nodes}
        self._parents = self.shape.parents.to(target.device)
        self._levels = _levels(self.shape, target.device)
        self._check_width(max(level.num_children for level in self._levels))

    @torch.no_grad()
    def propose(self, context: Context) -> DraftTree:
        """One pass of the drafter per level that has children below it."""
        state = self.cache, context.roots, self.root_hidden
        if self.graphs is not None and context.sampling.greedy:
            return self.graphs.tree(self._fill, self._levels[-1].visible.shape[1], *state)
        return self._fill(*state, None if context.sampling.greedy else context)

    def _fill(
        self, cache: TreeCache, roots: Tensor, hidden: Tensor, context: Context | None = None
    ) -> DraftTree:
        """The best children of each node, or, with the `context` of sampling, drawn ones.

        `hidden` [B, I, H] are the states after the inner nodes of a level, at first the root's.
        """
        batch = len(roots)
        tokens = roots[:, None].repeat(1, self.max_nodes + 1)
        valid = torch.ones_like(tokens, dtype=torch.bool)
        distributions = uniforms = None
        if context is not None:
            distributions = hidden.new_zeros(*tokens.shape, self.target.vocab_size).float()
            uniforms = self._uniforms(context)
        for depth, level in enumerate(self._levels):
            if depth > 0:
                visible = level.visible.expand(batch, -1, -1)
                above = hidden[:, level.inner_places]
                hidden = self.guess(cache, tokens[:, level.inner], above, depth, visible)
            logits = self.drafter.logits(hidden)
            if context is None or distributions is None or uniforms is None:
                children = logits.topk(level.num_children, dim=-1).indices
            else:
                probs = context.sampling.probs(logits)
                distributions[:, level.inner] = self.drafter.full_distribution(probs)
                level_uniforms = uniforms[:, level.inner, : level.num_children]
                children, possible = draw_without_replacement(probs, level_uniforms)
                parent_valid = valid[:, self._parents[level.columns]]
                valid[:, level.columns] = possible[:, level.places, level.ranks] & parent_valid
            tokens[:, level.columns] = self.drafter.target_ids(
                children[:, level.places, level.ranks]
            )
        return DraftTree.build(
            tokens,
            self._parents.expand(batch, -1),
            max_depth=self.shape.depth,
            valid=valid,
            draft_probs=distributions,
        )

    def _uniforms(self, context: Context) -> Tensor:
        """[B, N, W] one uniform for each child of each column."""
        columns, width = self.max_nodes + 1, max(level.num_children for level in self._levels)
        roots = context.root_positions[:, None]
        return context.uniforms.draw(roots, Purpose.DRAFT, columns * width).view(-1, columns, width)


class EagleDynamic(EagleProposer):
    """Grows `depth` levels of `width`, verifies the best `num_nodes`."""

    def __init__(
        self,
        target: Target,
        drafter: Drafter,
        *,
        depth: int,
        width: int,
        num_nodes: int,
        stop_confidence: float = 0.0,
    ):
        """Raises `Infeasible` if the pool or the draft vocabulary is too small, `UserError` for a
        `stop_confidence` outside [0, 1).
        """
        super().__init__(target, drafter)
        self.stop_confidence = check_stop_confidence("eagle_dynamic", stop_confidence)
        check_dynamic(depth, width, num_nodes)
        self._check_width(width)
        self.depth, self.width, self.max_nodes = depth, width, num_nodes
        self._itself = torch.eye(width, dtype=torch.bool, device=target.device)[None]

    @torch.no_grad()
    def propose(self, context: Context) -> DraftTree:
        """One pass of the drafter per level, the last one's children need none."""
        state = self.cache, context.roots, self.root_hidden
        if self.graphs is not None and self.stop_confidence == 0:
            return self.graphs.tree(self._grow, (self.depth - 1) * self.width, *state)
        return self._grow(*state)

    def _grow(self, cache: TreeCache, roots: Tensor, hidden: Tensor) -> DraftTree:
        """A tree on `roots` [B] from the states [B, 1, H] after them."""
        scores = hidden.new_zeros(hidden.shape[:2], dtype=torch.float32)
        parents = torch.zeros_like(roots)[:, None]
        visible = hidden.new_zeros(len(hidden), 1, 0, dtype=torch.bool)
        levels: list[Level] = []
        num_pooled = 0
        for depth in range(1, self.depth + 1):
            level = expand(*self._best_children(hidden), scores, parents)
            if self.stop_confidence > 0 and not level.stop_below(math.log(self.stop_confidence)):
                break
            levels.append(level)
            if depth == self.depth:
                break
            frontier = best_of(level.scores, self.width)
            scores = level.scores.gather(1, frontier)
            parents = frontier + (1 + num_pooled)
            num_pooled += level.tokens.shape[1]
            parent = frontier // self.width
            itself = self._itself.expand(len(parent), -1, -1)
            visible = torch.cat([states_at(visible, parent), itself], dim=2)  # its parent's row
            hidden = self.guess(
                cache, level.tokens.gather(1, frontier), states_at(hidden, parent), depth, visible
            )
        if not levels:
            return DraftTree.root_only(roots)
        return rerank(roots, levels, self.max_nodes)

    def _best_children(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probabilities and target ids [B, K, W] after nodes of states [B, K, H]."""
        logits = self.drafter.logits(hidden)
        if self.target.fast_layers:
            log_probs, tokens = best_tokens(logits, self.width)
        else:
            log_probs, tokens = torch.log_softmax(logits, dim=-1).topk(self.width, dim=-1)
        return log_probs, self.drafter.target_ids(tokens)
