"""A node's confidence is the drafter's probability of its token after its parent."""

import torch

from tests.engine.paths import paths_of
from tests.engine.test_tree_growth import grow, random_drafter


def test_confidences_of_a_dynamic_tree_are_the_drafters_distributions():
    drafter = random_drafter(vocabulary=12, seed=3)
    tree = grow(drafter, 3, 4, 20, torch.tensor([5]))
    confidences = tree.confidences()
    assert confidences is not None
    for column, path in enumerate(paths_of(tree)):
        *parent, token = path
        distribution = drafter([[tuple(parent)]])[0, 0].exp()
        torch.testing.assert_close(confidences[0, column + 1], distribution[token])


def test_a_chain_of_copies_has_none():
    tree = grow(random_drafter(12, 3), 1, 1, 1, torch.tensor([5]))
    assert tree.root_only(torch.tensor([5])).confidences() is None
