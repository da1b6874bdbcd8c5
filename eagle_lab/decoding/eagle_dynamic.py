"""EAGLE-2: the draft tree follows the drafter's confidence (2406.16858).

Children are chosen, not drawn, at every temperature: which nodes survive the reranking may depend
only on what was known before a draw, so drawn children cannot be pruned by their scores.

With `stop_confidence` a row's tree ends at the first level whose best path is less probable than
that; rows of a batch end where they like, the rest of their columns is padding.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from eagle_lab.decoding.chain import check_stop_confidence
from eagle_lab.decoding.eagle import EagleProposer, states_at
from eagle_lab.decoding.proposer import Context
from eagle_lab.drafters.eagle1 import Eagle1
from eagle_lab.models.cache import TreeCache
from eagle_lab.models.fast_ops import best_tokens
from eagle_lab.models.target import Target
from eagle_lab.tree.draft_tree import DraftTree
from eagle_lab.tree.dynamic import Level, best_of, check_dynamic, expand, rerank


class EagleDynamic(EagleProposer):
    """Grows `depth` levels of `width`, verifies the best `num_nodes`."""

    def __init__(
        self,
        target: Target,
        drafter: Eagle1,
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
        """A tree on `roots` [B] from the states [B, 1, H] behind them."""
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
        """Log-probabilities and target ids [B, K, W] behind nodes of states [B, K, H]."""
        logits = self.drafter.logits(hidden)
        if self.target.fast_layers:
            log_probs, tokens = best_tokens(logits, self.width)
        else:
            log_probs, tokens = torch.log_softmax(logits, dim=-1).topk(self.width, dim=-1)
        return log_probs, self.target_ids(tokens)
