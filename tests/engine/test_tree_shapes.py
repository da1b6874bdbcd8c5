"""Fixed shapes have their parents, and joined trees hold the paths of both, each node once."""

import random
import re

import pytest
import torch

from eagle_lab.engine.draft_tree import DraftTree
from eagle_lab.engine.tree_shapes import (
    EAGLE1_PATHS,
    StaticShape,
    clear_rows,
    graft,
    side_by_side,
)
from eagle_lab.errors import UserError
from tests.engine.paths import assert_well_formed, paths_of, prefixes

ROOTS = torch.tensor([9, 8])


def test_eagle1_tree_has_the_papers_size():
    shape = StaticShape(EAGLE1_PATHS)
    assert (len(shape.paths), shape.depth) == (25, 5)
    assert [len(shape.columns_at(depth)) for depth in range(1, 6)] == [4, 8, 8, 3, 2]
    assert all(int(parent) < column for column, parent in enumerate(shape.parents) if column)


def test_inner_columns_are_those_with_children():
    shape = StaticShape.from_paths([[0], [1], [1, 0]])
    assert shape.inner_columns_at(0) == [0]
    assert shape.inner_columns_at(1) == [2]
    assert shape.inner_columns_at(2) == []
    assert shape.ranks.tolist() == [0, 0, 1, 0]


@pytest.mark.parametrize("paths", [[[0, 0]], [[1]], [[0], [0, 1]]])
def test_a_missing_parent_or_sibling_is_named(paths):
    with pytest.raises(UserError, match=re.escape(str(paths[-1]))):
        StaticShape.from_paths(paths)


def padded(branches):
    """Branches [B, G] and their lengths [B]."""
    widest = max(map(len, branches))
    tokens = torch.tensor([branch + [0] * (widest - len(branch)) for branch in branches])
    return tokens.long(), torch.tensor([len(branch) for branch in branches])


def test_the_example_of_graft():
    #  column 0     1     2     3     4          1 = cat, 2 = sat, 3 = ran, 4 = off
    #         root  cat   sat   ran   off
    tree = DraftTree.from_branches(ROOTS, [[[1, 2]], [[1, 2]]])
    joined = graft(tree, *padded([[1, 3, 4], [1, 2]]))
    assert joined.parents[0].tolist() == [0, 0, 1, 1, 3]
    assert joined.tokens[0].tolist() == [9, 1, 2, 3, 4]
    assert joined.valid.int().tolist() == [[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]
    assert joined.num_nodes().tolist() == [4, 2]


@pytest.mark.parametrize("seed", range(200))
def test_graft_equals_a_trie_of_all_branches(seed):
    """Few tokens and short branches, so that shared beginnings of every length occur."""
    draw = random.Random(seed)

    def branch():
        return [draw.randrange(3) for _ in range(draw.randrange(5))]

    trees = [[branch() for _ in range(draw.randrange(4))] for _ in range(3)]
    branches = [branch() for _ in range(3)]
    roots = torch.tensor([draw.randrange(3) for _ in range(3)])
    joined = graft(DraftTree.from_branches(roots, trees), *padded(branches))
    assert_well_formed(joined)
    for row in range(3):
        assert set(paths_of(joined, row)) == prefixes(*trees[row], branches[row])


def test_a_grafted_branch_that_every_row_has_adds_no_column():
    tree = DraftTree.from_branches(ROOTS, [[[1, 2], [3]], [[4]]])
    assert graft(tree, *padded([[1, 2], [4]])).num_columns == tree.num_columns


def test_graft_does_not_share_nodes_that_are_no_candidates():
    tree = DraftTree.from_branches(ROOTS, [[[1]], [[1]]])
    tree = DraftTree.build(
        tree.tokens,
        tree.parents,
        max_depth=1,
        candidates=torch.tensor([[False, False], [False, True]]),
    )
    joined = graft(tree, *padded([[1], [1]]))
    assert joined.tokens.tolist()[0] == [9, 1, 1]
    assert joined.num_nodes().tolist() == [1, 1]


def test_side_by_side_keeps_the_first_trees_columns_and_both_trees_paths():
    first = DraftTree.from_branches(ROOTS, [[[1, 2]], [[5]]])
    second = DraftTree.from_branches(ROOTS, [[[3, 4], [3, 6]], []])
    joined = side_by_side(first, second)
    assert_well_formed(joined)
    assert torch.equal(joined.tokens[:, : first.num_columns], first.tokens)
    assert joined.parents.tolist()[0] == [0, 0, 1, 0, 3, 3]
    assert joined.num_nodes().tolist() == [5, 1]
    assert joined.max_depth == 2
    for row in range(2):
        assert set(paths_of(joined, row)) == {*paths_of(first, row), *paths_of(second, row)}


def test_emptied_rows_are_root_only():
    tree = DraftTree.from_branches(ROOTS, [[[1, 2]], [[5, 6]]])
    result = clear_rows(tree, torch.tensor([True, False]))
    assert result.num_nodes().tolist() == [0, 2]
    assert result.ancestors[0].int().tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]
    assert torch.equal(result.ancestors[1], tree.ancestors[1])


def test_trees_of_drawn_children_cannot_be_joined():
    drawn = DraftTree.chain(ROOTS, torch.tensor([[1], [2]]), draft_probs=torch.ones(2, 1, 10) / 10)
    chosen = DraftTree.root_only(ROOTS)
    for join in (
        lambda: side_by_side(chosen, drawn),
        lambda: graft(drawn, *padded([[1], [1]])),
        lambda: clear_rows(drawn, torch.tensor([True, True])),
    ):
        with pytest.raises(ValueError):
            join()
