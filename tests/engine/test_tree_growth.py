"""Growth of the dynamic tree: budget, ties, and equality with a search written with lists."""

import pytest
import torch

from eagle_lab.engine.draft_tree import DraftTree
from eagle_lab.engine.tree_growth import Level, best_of, check_dynamic, expand, pool_size, rerank
from eagle_lab.errors import Infeasible, UserError
from tests.engine.paths import assert_well_formed, paths_of


def grow(log_probs_of, depth: int, width: int, num_nodes: int, roots):
    """Grow a tree from `log_probs_of(paths) -> [B, K, D]`, a drafter that knows its paths."""
    batch = len(roots)
    paths = [[()] for _ in range(batch)]
    scores = torch.zeros(batch, 1)
    pool_index = torch.zeros(batch, 1, dtype=torch.long)
    levels: list[Level] = []
    for level_depth in range(1, depth + 1):
        level = expand(*log_probs_of(paths).topk(width), scores, pool_index)
        levels.append(level)
        if level_depth == depth:
            break
        frontier = best_of(level.scores, width)
        offset = sum(entry.tokens.shape[1] for entry in levels[:-1])
        scores, pool_index = level.scores.gather(1, frontier), frontier + 1 + offset
        paths = [
            [
                paths[row][int(index) // width] + (int(level.tokens[row, index]),)
                for index in frontier[row]
            ]
            for row in range(batch)
        ]
    return rerank(roots, levels, num_nodes)


def random_drafter(vocabulary: int, seed: int, step: float | None = None):
    """Log-probabilities that depend on the path alone; `step` rounds them to make ties."""

    def log_probs_of(paths):
        rows = []
        for row_paths in paths:
            distributions = []
            for path in row_paths:
                generator = torch.Generator().manual_seed(hash((seed, path)) % 2**31)
                distribution = torch.randn(vocabulary, generator=generator).mul(2).log_softmax(-1)
                distributions.append(
                    distribution if step is None else (distribution / step).round() * step
                )
            rows.append(torch.stack(distributions))
        return torch.stack(rows)

    return log_probs_of


def reference(log_probs_of, depth, width, num_nodes):
    """The same search with Python lists: the kept paths as a set."""
    frontier, pool = [((), 0.0)], []
    for _ in range(depth):
        candidates = []
        for path, score in frontier:
            distribution = log_probs_of([[path]])[0, 0]
            for token in distribution.sort(descending=True, stable=True).indices[:width].tolist():
                candidates.append(((*path, token), score + float(distribution[token])))
        pool += candidates
        best = sorted(range(len(candidates)), key=lambda i: (-candidates[i][1], i))[:width]
        frontier = [candidates[i] for i in sorted(best)]
    kept = sorted(range(len(pool)), key=lambda i: (-pool[i][1], i))[:num_nodes]
    return {pool[i][0] for i in kept}


@pytest.mark.parametrize("seed", range(10))
def test_equals_a_search_with_lists_and_ties_keep_parents(seed):
    drafter, undecided = random_drafter(12, seed), random_drafter(12, seed, step=1.0)
    tree = grow(drafter, 4, 3, 10, torch.tensor([0]))
    assert set(paths_of(tree)) == reference(drafter, 4, 3, 10)
    assert_well_formed(tree)
    assert_well_formed(grow(undecided, 5, 4, 30, torch.tensor([0])))


def test_budget_of_59_nodes_on_at_most_6_levels():
    tree = grow(random_drafter(50, 1), 6, 10, 59, torch.tensor([0, 1]))
    assert tree.num_nodes().tolist() == [59, 59]
    assert int(tree.depths.max()) <= 6
    assert_well_formed(tree)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_drafter_certain_of_everything_keeps_parents(dtype):
    def certain(paths):
        return torch.zeros(len(paths), len(paths[0]), 20, dtype=dtype)

    tree = grow(certain, 6, 10, 59, torch.tensor([0]))
    assert_well_formed(tree)
    depths = tree.depths[0].tolist()
    assert depths == sorted(depths)  # shallower first
    assert depths.count(1) == 10 and depths.count(2) == 49


def test_confidences_of_a_dynamic_tree_are_the_drafters_distributions():
    """The probability of each token after its parent."""
    drafter = random_drafter(vocabulary=12, seed=3)
    tree = grow(drafter, 3, 4, 20, torch.tensor([5]))
    confidences = tree.confidences()
    assert confidences is not None
    for column, path in enumerate(paths_of(tree)):
        *parent, token = path
        distribution = drafter([[tuple(parent)]])[0, 0].exp()
        torch.testing.assert_close(confidences[0, column + 1], distribution[token])
    assert DraftTree.root_only(torch.tensor([5])).confidences() is None


def test_pool_smaller_than_the_tree_is_infeasible():
    assert pool_size(2, 2) == 6
    check_dynamic(2, 2, 6)
    with pytest.raises(Infeasible, match=r"num_nodes=7.* 6 "):
        check_dynamic(2, 2, 7)


@pytest.mark.parametrize("sizes", [(0, 2, 1), (2, -3, 1), (2, 2, 0)])
def test_sizes_below_one_are_mistakes(sizes):
    with pytest.raises(UserError, match=r"tree\.\w+=(0|-3)") as raised:
        check_dynamic(*sizes)
    assert not isinstance(raised.value, Infeasible)  # no row of a sweep, an error
