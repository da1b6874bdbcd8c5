"""Trees whose shape is fixed before anything is drafted: chains and EAGLE-1's tree.

A shape is a list of paths of sibling ranks: `(0, 2)` is the third-best child of the best child of
the root. Knows no tokens; a proposer fills the shape level by level.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from eagle_lab.errors import UserError

# 25 nodes, depth 5 (EAGLE, 2401.15077, figure of the draft tree), one string of ranks per node.
EAGLE1_PATHS = tuple(
    tuple(int(rank) for rank in path)
    for path in (
        "0 1 2 3 00 01 02 10 11 20 21 30 000 001 002 010 011 020 021 100 0000 0001 0002 00000 00001"
    ).split()
)


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
        known = {(), *ordered}
        for path in ordered:
            needed = [path[:-1]] + [(*path[:-1], path[-1] - 1)] * (path[-1] > 0)
            for other in needed:
                if other not in known:
                    raise UserError(
                        f"method.eagle_static.paths: {list(path)} needs {list(other)}, which is "
                        "not listed; every prefix and every smaller rank must be"
                    )

    @classmethod
    def chain(cls, num_draft_tokens: int) -> StaticShape:
        """One branch of `num_draft_tokens` nodes."""
        return cls(tuple((0,) * length for length in range(1, num_draft_tokens + 1)))

    @classmethod
    def from_paths(cls, paths: Sequence[Sequence[int]]) -> StaticShape:
        """Shape from nested lists, as they stand in a configuration file."""
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
        """Columns of one level, a contiguous run."""
        return [self.column_of[path] for path in self.paths if len(path) == depth]

    def inner_columns_at(self, depth: int) -> list[int]:
        """Columns of one level that have children."""
        inner = {self.column_of[path[:-1]] for path in self.paths}
        columns = [0] if depth == 0 else self.columns_at(depth)
        return [column for column in columns if column in inner]
