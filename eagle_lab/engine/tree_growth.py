"""EAGLE-2's dynamic tree, grown from a drafter's log-probabilities (2406.16858, section 4).

    level 1   the `width` best children of the root
    level d   the `width` best children of each frontier node join the pool; the best `width` of
              those width * width candidates are the next frontier
    rerank    the best `num_nodes` of the whole pool are verified

The score of a node is the sum of log-probabilities along its path, so a child never outranks its
parent. Ties are broken by pool order (level, then index): the pool lists parents before children,
hence every kept node's parent is kept, even where half precision rounds confident log-probabilities
to exactly 0.

Pure tensors; the drafter's forward passes belong to the proposer. Shapes: B rows, K frontier
nodes, W children per node, P pool entries, D draft vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from eagle_lab.engine.draft_tree import DraftTree
from eagle_lab.errors import Infeasible, UserError


def pool_size(depth: int, width: int) -> int:
    """Candidates that a tree of `depth` levels and `width` offers for reranking."""
    return width + (depth - 1) * width * width


def check_dynamic(depth: int, width: int, num_nodes: int) -> None:
    """Raise `Infeasible` unless the pool holds `num_nodes` candidates, `UserError` below 1."""
    for name, value in (("depth", depth), ("width", width), ("num_nodes", num_nodes)):
        if value < 1:
            raise UserError(f"tree.{name}={value}; allowed: 1 or more")
    available = pool_size(depth, width)
    if available < num_nodes:
        raise Infeasible(
            f"tree.num_nodes={num_nodes} is more than the {available} candidates of a tree of "
            f"depth {depth} and width {width} (width + (depth - 1) * width^2); "
            "lower num_nodes or raise depth or width"
        )


@dataclass
class Level:
    """Candidates of one level, `width` children for each of K frontier nodes.

    Attributes:
        tokens: [B, K * W] their ids.
        scores: [B, K * W] sums of log-probabilities along the paths.
        parents: [B, K] pool index plus one of the frontier nodes; 0 is the root.
    """

    tokens: Tensor
    scores: Tensor
    parents: Tensor

    def stop_below(self, least: float) -> bool:
        """Close the level, and so all below it, for rows whose best score is under `least`.

        The scores of a closed level are -inf. Returns whether the level is open for any row.
        """
        closed = self.scores.amax(1, keepdim=True) < least
        self.scores = self.scores.masked_fill(closed, -torch.inf)
        return not bool(closed.all())


def expand(log_probs: Tensor, tokens: Tensor, path_scores: Tensor, parents: Tensor) -> Level:
    """The best children of each frontier node as a level.

    Args:
        log_probs: [B, K, W] log-probabilities of the children after their parents.
        tokens: [B, K, W] the children.
        path_scores: [B, K] scores of the frontier nodes.
        parents: [B, K] their pool index plus one (0 for the root).
    """
    scores = path_scores[:, :, None] + log_probs.clamp(max=0)
    return Level(tokens.flatten(1), scores.flatten(1), parents)


def best_of(scores: Tensor, count: int) -> Tensor:
    """[B, count] indices of the best scores in ascending order; ties go to the lower index."""
    if count >= scores.shape[1]:
        return torch.arange(scores.shape[1], device=scores.device).expand_as(scores)
    ranked = torch.sort(scores, dim=1, descending=True, stable=True).indices[:, :count]
    return ranked.sort(dim=1).values


def rerank(roots: Tensor, levels: list[Level], num_nodes: int) -> DraftTree:
    """The best `num_nodes` candidates of all levels, or all there are, as a tree under `roots` [B].

    Tokens of the levels must be target ids. Candidates of score -inf are padding.
    """
    root = torch.zeros_like(roots[:, None])  # of score 0 the root is the first of the best
    tokens = torch.cat([roots[:, None], *(level.tokens for level in levels)], dim=1)
    scores = torch.cat([root.float(), *(level.scores for level in levels)], dim=1)
    parents = torch.cat([root, *(level.parents for level in levels)], dim=1)
    kept = best_of(scores, num_nodes + 1)  # [B, N]
    scores = scores.gather(1, kept)
    width = levels[0].tokens.shape[1]  # after the root's, every `width` entries share a parent
    parents = parents.gather(1, (kept + (width - 1)) // width)
    return DraftTree.build(
        tokens.gather(1, kept),
        torch.searchsorted(kept.contiguous(), parents),  # kept as well, in ascending order
        max_depth=len(levels),
        valid=scores > -torch.inf,
        scores=scores,
    )
