"""The paths of a tree, read off its parents one by one."""

import torch

from eagle_lab.engine.draft_tree import DraftTree


def paths_of(tree: DraftTree, row: int = 0) -> list[tuple[int, ...]]:
    """Token paths of a row's candidates, in the order of their columns, the root left out."""
    paths = []
    for column in tree.candidates[row].nonzero().flatten().tolist():
        path, node = [], column
        while node:
            path.append(int(tree.tokens[row, node]))
            node = int(tree.parents[row, node])
        paths.append(tuple(reversed(path)))
    return paths


def prefixes(*branches: list[int] | tuple[int, ...]) -> set[tuple[int, ...]]:
    """All paths of nodes on `branches`."""
    return {tuple(branch[:end]) for branch in branches for end in range(1, len(branch) + 1)}


def assert_well_formed(tree: DraftTree) -> None:
    """Parents come before children and are kept with them; siblings are distinct."""
    columns = torch.arange(tree.num_columns)
    assert bool((tree.parents[:, 1:] < columns[1:]).all())
    assert not bool(tree.candidates[:, 0].any())
    assert int(torch.where(tree.candidates, tree.depths, 0).max()) <= tree.max_depth
    for row in range(len(tree.tokens)):
        paths = paths_of(tree, row)
        assert len(set(paths)) == len(paths)
        assert all(path[:-1] in {(), *paths} for path in paths)
