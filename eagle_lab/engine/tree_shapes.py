"""Trees of a fixed shape (EAGLE's static tree), and two drafts joined in one tree.

Pure tensors; knows no model. Joining takes chosen children only: it would change the distribution
that drawn ones came from.

Shapes: B rows, N columns, G tokens of a branch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from eagle_lab.engine.draft_tree import DraftTree
from eagle_lab.errors import UserError

# 25 nodes, depth 5 (EAGLE, 2401.15077, figure of the draft tree), one string of ranks per node.
_RANKS = (
    "0 1 2 3 00 01 02 10 11 20 21 30 000 001 002 010 011 020 021 100 0000 0001 0002 00000 00001"
)
EAGLE1_PATHS = tuple(tuple(map(int, ranks)) for ranks in _RANKS.split())


@dataclass(frozen=True)
class StaticShape:
    """A tree shape: nodes sorted by depth, then by path, so that siblings are neighbours.

    Attributes:
        paths: one tuple of sibling ranks per node; column n + 1 holds node n.

    Raises:
        UserError: if a path's parent or an earlier sibling is missing.
    """

    paths: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        ordered = tuple(sorted(set(self.paths), key=lambda path: (len(path), path)))
        object.__setattr__(self, "paths", ordered)
        listed = {(), *ordered}
        for path in ordered:
            parent, sibling = path[:-1], (*path[:-1], path[-1] - 1)
            for other in (parent, sibling) if path[-1] else (parent,):
                if other not in listed:
                    raise UserError(
                        f"method.eagle_static.paths: {list(path)} needs {list(other)}, which is "
                        "not listed; every prefix and every smaller rank must be"
                    )

    @classmethod
    def from_paths(cls, paths: Sequence[Sequence[int]]) -> StaticShape:
        """A shape from nested lists, the form of configuration files."""
        return cls(tuple(tuple(path) for path in paths))

    @property
    def depth(self) -> int:
        """Levels below the root."""
        return max((len(path) for path in self.paths), default=0)

    @cached_property
    def column_of(self) -> dict[tuple[int, ...], int]:
        """Column of every path; the root `()` is column 0."""
        return {path: column for column, path in enumerate(((), *self.paths))}

    @cached_property
    def parents(self) -> Tensor:
        """[N] column of each column's parent, root included."""
        return torch.tensor([0, *(self.column_of[path[:-1]] for path in self.paths)])

    @cached_property
    def ranks(self) -> Tensor:
        """[N] rank of each column among its siblings; the root's is 0."""
        return torch.tensor([0, *(path[-1] for path in self.paths)])

    def columns_at(self, depth: int) -> list[int]:
        """Columns of one level, a contiguous run; the root's is 0."""
        return [column for path, column in self.column_of.items() if len(path) == depth]

    def inner_columns_at(self, depth: int) -> list[int]:
        """Columns of one level that have children."""
        inner = {self.column_of[path[:-1]] for path in self.paths}
        return [column for column in self.columns_at(depth) if column in inner]


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
    """`tree` with one more branch per row, equal nodes merged.

        the -- cat -- sat    and  the -- cat -- ran -- off    give    the -- cat -- sat
                                                                               `-- ran -- off

    Args:
        tree: siblings distinct.
        branch: [B, G] tokens after the root.
        counts: [B] how many of them belong to the branch.

    Raises:
        ValueError: if the children of `tree` were drawn.
    """
    _check_chosen(tree)
    if branch.shape[1] == 0:
        return tree
    steps = torch.arange(branch.shape[1], device=branch.device)
    # A node is shared if it and all its ancestors equal the branch's tokens at their depths.
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


def clear_rows(tree: DraftTree, rows: Tensor) -> DraftTree:
    """`tree` with every node of `rows` [B] turned into padding."""
    _check_chosen(tree)
    valid = tree.valid & ~rows[:, None]
    valid[:, 0] = True
    candidates = tree.candidates & valid
    return DraftTree.build(
        tree.tokens, tree.parents, max_depth=tree.max_depth, valid=valid, candidates=candidates
    )


def _check_chosen(*trees: DraftTree) -> None:
    """ValueError for drawn children."""
    if any(tree.draft_probs is not None for tree in trees):
        raise ValueError("only trees of chosen children can be joined")
