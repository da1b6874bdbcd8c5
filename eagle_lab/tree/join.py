"""Two drafts in one tree: side by side under the root, or a branch grafted onto a tree.

Pure tensors, all rows at once. Shapes: B rows, N columns of the tree, M of the second, G tokens of
a branch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from eagle_lab.tree.draft_tree import DraftTree


def side_by_side(first: DraftTree, second: DraftTree) -> DraftTree:
    """Both trees under the root of `first`, whose columns keep their places.

    Nodes are not compared: no candidate of one may be a sibling of an equal one of the other.

    Raises:
        ValueError: if children of either were drawn.
    """
    _check_chosen(first, second)
    shift = first.num_columns - 1
    below = second.parents[:, 1:]
    parents = torch.where(below == 0, 0, below + shift)
    return DraftTree.build(
        torch.cat([first.tokens, second.tokens[:, 1:]], dim=1),
        torch.cat([first.parents, parents], dim=1),
        max_depth=max(first.max_depth, second.max_depth),
        valid=torch.cat([first.valid, second.valid[:, 1:]], dim=1),
        candidates=torch.cat([first.candidates, second.candidates[:, 1:]], dim=1),
    )


def graft(tree: DraftTree, branch: Tensor, counts: Tensor) -> DraftTree:
    """`tree` with one more branch per row; the nodes that it shares with the tree stay single.

        the -- cat -- sat    and  the -- cat -- ran -- off    give    the -- cat -- sat
                                                                               `-- ran -- off

    Args:
        tree: siblings distinct.
        branch: [B, G] tokens behind the root.
        counts: [B] how many of them are real.

    Raises:
        ValueError: if the children of `tree` were drawn.
    """
    _check_chosen(tree)
    if branch.shape[1] == 0:
        return tree
    steps = torch.arange(branch.shape[1], device=branch.device)
    # A node is shared if it and all its ancestors say what the branch says at their depth.
    place = (tree.depths - 1).clamp(0, branch.shape[1] - 1)
    agrees = (tree.tokens == branch.gather(1, place)) & (tree.depths <= counts[:, None])
    agrees &= tree.candidates
    agrees[:, 0] = True
    shared = ~(tree.ancestors & ~agrees[:, None]).any(2)
    num_shared = shared.sum(1) - 1
    anchor = (tree.depths * shared).argmax(1)

    num_new = counts - num_shared
    steps = steps[: int(num_new.max())]
    tokens = branch.gather(1, (num_shared[:, None] + steps).clamp(max=branch.shape[1] - 1))
    parents = torch.where(steps == 0, anchor[:, None], tree.num_columns - 1 + steps)
    new = steps < num_new[:, None]
    return DraftTree.build(
        torch.cat([tree.tokens, tokens], dim=1),
        torch.cat([tree.parents, parents], dim=1),
        max_depth=max(tree.max_depth, branch.shape[1]),
        valid=torch.cat([tree.valid, new], dim=1),
        candidates=torch.cat([tree.candidates, new], dim=1),
    )


def emptied(tree: DraftTree, rows: Tensor) -> DraftTree:
    """`tree` with every node of `rows` [B] turned into padding."""
    _check_chosen(tree)
    valid = tree.valid & ~rows[:, None]
    valid[:, 0] = True
    candidates = tree.candidates & valid
    return DraftTree.build(
        tree.tokens, tree.parents, max_depth=tree.max_depth, valid=valid, candidates=candidates
    )


def _check_chosen(*trees: DraftTree) -> None:
    """Joining would change what the children of a node were drawn from."""
    if any(tree.draft_probs is not None for tree in trees):
        raise ValueError("only trees of chosen children can be joined")
