"""Keeping a path equals computing the kept tokens anew; rows of any length live side by side."""

import pytest
import torch

from eagle_lab.targets.cache import TreeCache
from eagle_lab.targets.tree_pass import TreePass


def commit(cache: TreeCache, values: torch.Tensor, counts: list[int]) -> None:
    """Commit scalar keys `values` [B, N] in every layer, the first `counts` of each row."""
    for layer in range(cache.num_layers):
        content = (values + 100 * layer)[:, None, :, None]
        cache.write(layer, content, -content, offset=0)
    cache.advance(torch.tensor(counts))


def committed(cache: TreeCache, layer: int) -> list[list[float]]:
    """Keys of a layer's committed slots, read back through a write of one more column."""
    probe = torch.zeros(len(cache.lengths), 1, 1, 1)
    key, value = cache.write(layer, probe, probe, offset=0)
    torch.testing.assert_close(key, -value)
    return [key[row, 0, :n, 0].tolist() for row, n in enumerate(cache.lengths.tolist())]


def test_rows_write_at_their_own_length():
    cache = TreeCache(2, 2)
    commit(cache, torch.tensor([[1.0, 2, 3], [4, 5, 6]]), [3, 1])
    commit(cache, torch.tensor([[7.0, 8], [9, 10]]), [1, 2])
    assert committed(cache, 0) == [[1, 2, 3, 7], [4, 9, 10]]
    assert committed(cache, 1) == [[101, 102, 103, 107], [104, 109, 110]]


def test_keep_moves_a_path_that_overlaps_its_destination():
    cache = TreeCache(1, 2)
    commit(cache, torch.tensor([[1.0], [2]]), [1, 1])
    tree = torch.tensor([[10.0, 11, 12, 13, 14]]).repeat(2, 1)[:, None, :, None]
    cache.write(0, tree, -tree, offset=0)
    # Row 0 keeps the root, node 2, node 3; row 1 keeps the root and node 4.
    path = torch.tensor([[0, 2, 3], [0, 4, 0]])
    cache.keep(path, torch.tensor([3, 2]))
    assert committed(cache, 0) == [[1, 10, 12, 13], [2, 10, 14]]


def test_growing_keeps_what_is_committed():
    cache = TreeCache(1, 1)
    for step in range(5):
        commit(cache, torch.full((1, 50), float(step)), [50])
    assert committed(cache, 0)[0] == [float(step) for step in range(5) for _ in range(50)]


def test_selected_rows_are_in_the_given_order():
    cache = TreeCache(1, 3)
    commit(cache, torch.tensor([[1.0, 2], [3, 4], [5, 6]]), [2, 1, 2])
    cache.select([2, 1])
    assert committed(cache, 0) == [[5, 6], [3]]
    assert cache.max_length == 2


@pytest.mark.parametrize("fast", [False, True])
def test_mask_shows_the_prefix_the_visible_slots_and_the_window(fast):
    cache = TreeCache(1, 2, fast=fast)
    commit(cache, torch.zeros(2, 3), [3, 1])
    positions = cache.lengths[:, None] + torch.tensor([0, 1, 1])
    visible = torch.tensor([[1, 0, 0], [1, 1, 0], [1, 0, 1]]).bool().expand(2, -1, -1)
    tree_pass = TreePass(cache, positions, visible)
    assert tree_pass.mask()[:, 0].int().tolist() == [
        [[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 0, 1]],
        [[1, 1, 0, 0, 0, 0], [1, 1, 1, 0, 0, 0], [1, 1, 0, 1, 0, 0]],
    ]
    # A window of 2: each column sees itself and one position before it.
    assert tree_pass.mask(window=2)[0, 0].int().tolist() == [
        [0, 0, 1, 1, 0, 0],
        [0, 0, 0, 1, 1, 0],
        [0, 0, 0, 1, 0, 1],
    ]
