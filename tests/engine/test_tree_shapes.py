"""Fixed shapes: EAGLE-1's tree has 25 nodes on 5 levels, and every path has its parent."""

import pytest

from eagle_lab.engine.tree_shapes import EAGLE1_PATHS, StaticShape
from eagle_lab.errors import UserError


def test_eagle1_tree_has_the_papers_size():
    shape = StaticShape(EAGLE1_PATHS)
    assert len(shape.paths) == 25
    assert shape.depth == 5
    assert [len(shape.columns_at(depth)) for depth in range(1, 6)] == [4, 8, 8, 3, 2]


def test_columns_list_parents_before_children():
    shape = StaticShape(EAGLE1_PATHS)
    assert all(int(parent) < column for column, parent in enumerate(shape.parents) if column)


def test_inner_columns_are_those_with_children():
    shape = StaticShape.from_paths([[0], [1], [1, 0]])
    assert shape.inner_columns_at(0) == [0]
    assert shape.inner_columns_at(1) == [2]
    assert shape.inner_columns_at(2) == []
    assert shape.ranks.tolist() == [0, 0, 1, 0]


@pytest.mark.parametrize("paths", [[[0, 0]], [[1]], [[0], [0, 1]]])
def test_a_missing_parent_or_sibling_is_named(paths):
    with pytest.raises(UserError, match=r"\[.*\] needs \[0.*\], which is not listed"):
        StaticShape.from_paths(paths)
