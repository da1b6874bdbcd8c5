"""Verification emits exactly the target's distribution.

Chosen children: every uniform of a grid that resolves the probabilities is enumerated, so the
distribution of the output is computed, not estimated. Drawn children: enumeration where the
thresholds lie on a grid, chi-square with a stated false-alarm rate elsewhere, and wrong rules that
must fail.
"""

import itertools

import pytest
import torch
from scipy import stats

from eagle_lab.engine.draft_tree import DraftTree
from eagle_lab.engine.sampling import Sampling, draw_without_replacement
from eagle_lab.engine.verify import Acceptance, VerifyUniforms, verify

SAMPLING = Sampling(temperature=1.0)
GRID = 10
P_ROOT = torch.tensor([0.5, 0.3, 0.1, 0.1])
P_CHILD = torch.tensor([0.2, 0.2, 0.0, 0.6])


def tree_of(tokens, parents, batch=1, **kwargs):
    expanded = [torch.tensor(values).expand(batch, -1) for values in (tokens, parents)]
    return DraftTree.build(*expanded, max_depth=len(tokens) - 1, **kwargs)


def all_uniforms(num_uniforms: int) -> torch.Tensor:
    """Every combination [GRID ** num_uniforms, num_uniforms] of the grid's midpoints."""
    grid = (torch.arange(GRID, dtype=torch.float64) + 0.5) / GRID
    return torch.cartesian_prod(*[grid] * num_uniforms).view(-1, num_uniforms)


def logits_of(*distributions, batch=1):
    return torch.stack(distributions).log().expand(batch, -1, -1)


def token_lists(acceptance: Acceptance) -> list[list[int]]:
    """The tokens that each row emits, the bonus token last."""
    counts, rows = acceptance.num_accepted.tolist(), acceptance.tokens.tolist()
    return [row[: count + 1] for row, count in zip(rows, counts, strict=True)]


# --- greedy -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tokens", "parents", "argmax", "columns", "output", "path"),
    [
        # root 9 -> 1 -> 2, 9 -> 3; the target's tokens: 1 after the root, then 2, then 0
        ([9, 1, 3, 2], [0, 0, 0, 1], [1, 2, 5, 0], {}, [1, 2, 0], [0, 1, 3]),
        ([9, 1, 2], [0, 0, 1], [4, 2, 2], {}, [4], [0]),
        # root 9 -> 1 (window) -> 2, 9 -> 1 (guess) -> 3; the target's tokens: 1, then 2
        ([9, 1, 1, 2, 3], [0, 0, 0, 1, 2], [1, 2, 2, 0, 0], {"candidates": [2, 4]}, [1, 2], [0, 2]),
        ([9, 1], [0, 0], [1, 1], {"valid": [0]}, [1], [0]),
    ],
    ids=["a path", "first token wrong", "an equal sibling is no candidate", "padding"],
)
def test_greedy_follows_the_argmax_and_adds_its_bonus_token(
    tokens, parents, argmax, columns, output, path
):
    marks = {
        name: torch.tensor([[column in chosen for column in range(len(tokens))]])
        for name, chosen in columns.items()
    }
    tree = tree_of(tokens, parents, **marks)
    logits = torch.nn.functional.one_hot(torch.tensor([argmax]), 10).float()
    result = verify(tree, logits, Sampling())
    assert token_lists(result) == [output]
    assert result.path[0, : len(path)].tolist() == path


def test_greedy_uses_the_sharpened_distribution():
    """At temperature 0 a token that is probable but not the argmax is never kept."""
    tree = tree_of([9, 1], [0, 0])
    logits = torch.tensor([[[0.0, 0.99, 1.0], [0.0, 0.0, 1.0]]])
    for uniform in (0.0, 0.5):
        uniforms = VerifyUniforms(torch.full((1, 2), uniform), torch.full((1, 2), uniform))
        assert token_lists(verify(tree, logits, Sampling(), uniforms)) == [[2]]


def test_the_first_index_wins_ties():
    tree = tree_of([9, 1], [0, 0])
    assert token_lists(verify(tree, torch.ones(1, 2, 3), Sampling())) == [[0]]


@pytest.mark.parametrize("seed", range(20))
def test_greedy_equals_a_walk_written_with_lists(seed):
    """Random trees of four rows with padding, nodes that are no candidates, and deep windows."""
    generator = torch.Generator().manual_seed(seed)
    batch, num_columns, vocabulary = 4, 14, 5
    parents, tokens = torch.zeros(2, batch, num_columns, dtype=torch.long)
    for row, column in itertools.product(range(batch), range(1, num_columns)):
        siblings = None
        while siblings is None or len(siblings) == vocabulary:
            parent = int(torch.randint(0, column, (1,), generator=generator))
            places = range(1, column)
            siblings = {int(tokens[row, i]) for i in places if int(parents[row, i]) == parent}
        free = sorted(set(range(vocabulary)) - siblings)
        chosen = int(torch.randint(0, len(free), (1,), generator=generator))
        parents[row, column], tokens[row, column] = parent, free[chosen]
    valid = torch.rand(batch, num_columns, generator=generator) < 0.9
    valid[:, 0] = True
    valid &= valid.gather(1, parents)  # a row's padding is at least childless
    candidates = valid & (torch.rand(batch, num_columns, generator=generator) < 0.9)
    candidates[:, 0] = False
    depths = DraftTree.build(tokens, parents, max_depth=num_columns).depths
    tree = DraftTree.build(
        tokens,
        parents,
        max_depth=int((depths * candidates).max()),
        valid=valid,
        candidates=candidates,
    )
    logits = torch.randint(0, 3, (batch, num_columns, vocabulary), generator=generator).float()
    result = verify(tree, logits, Sampling())
    for row in range(batch):
        node, path, output = 0, [0], []
        while True:
            output.append(int(logits[row, node].argmax()))
            matches = (tokens[row] == output[-1]) & (parents[row] == node) & candidates[row]
            if not matches.any():
                break
            node = int(matches.nonzero())
            path.append(node)
        assert token_lists(result)[row] == output
        assert result.path[row].tolist() == path + [0] * (result.path.shape[1] - len(path))


# --- chosen children, enumerated ---------------------------------------------------------------


@pytest.mark.parametrize("children", [[0], [3], [0, 1], [3, 0, 2], [0, 1, 2, 3]])
def test_chosen_children_emit_the_targets_distribution_exactly(children):
    """Distribution of the first token, and of the second where the first was drafted."""
    tokens, parents = [9, *children, 3], [0, *[0] * len(children), 1]
    uniforms = all_uniforms(3)
    batch = len(uniforms)
    tree = tree_of(tokens, parents, batch)
    distributions = [P_ROOT, *[P_CHILD] * len(children), P_ROOT]
    target = torch.zeros(batch, len(tokens), dtype=torch.float64)
    target[:, :3] = uniforms
    result = verify(
        tree, logits_of(*distributions, batch=batch), SAMPLING, VerifyUniforms(target, target)
    )
    first, accepted = result.tokens[:, 0], result.num_accepted > 0
    torch.testing.assert_close(first.bincount(minlength=4) / batch, P_ROOT)
    for child in children:
        after = result.tokens[first == child, 1]
        torch.testing.assert_close(after.bincount(minlength=4) / len(after), P_CHILD)
    assert set(first[accepted].tolist()) == set(children)


def test_accepting_chosen_children_with_p_over_q_is_not_lossless():
    """Negative control: the rule for drawn tokens, applied to the drafter's best two."""
    p = torch.tensor([0.5, 0.3, 0.15, 0.05])
    uniforms = all_uniforms(3)
    batch = len(uniforms)
    q = p.expand(batch, 3, -1)  # the drafter equals the target, its top-2 are offered
    tree = tree_of([9, 0, 1], [0, 0, 0], batch, draft_probs=q)
    result = verify(
        tree, logits_of(p, p, p, batch=batch), SAMPLING, VerifyUniforms(uniforms, uniforms)
    )
    first = result.tokens[:, 0].bincount(minlength=4) / batch
    assert float((first - p).abs().max()) > 0.2


# --- drawn children ----------------------------------------------------------------------------


def test_a_uniform_of_zero_rejects_a_token_of_probability_zero():
    p, q = torch.tensor([0.0, 1.0]), torch.tensor([1.0, 0.0])
    tree = tree_of([9, 0], [0, 0], draft_probs=q.expand(1, 2, -1))
    zeros = torch.zeros(1, 2, dtype=torch.float64)
    result = verify(tree, logits_of(p, p), SAMPLING, VerifyUniforms(zeros, zeros))
    assert token_lists(result) == [[1]]


def first_tokens(p, q, draws, uniforms):
    """[B] the first emitted token where the children `draws` [B, W] were drawn from q."""
    batch, num_children = draws.shape
    tokens = torch.cat([torch.full((batch, 1), 99), draws], dim=1)
    tree = DraftTree.build(
        tokens,
        torch.zeros_like(tokens),
        max_depth=1,
        draft_probs=q.expand(batch, num_children + 1, -1),
    )
    logits = p.log().expand(batch, num_children + 1, -1)
    return verify(tree, logits, SAMPLING, uniforms).tokens[:, 0]


def test_drawn_children_enumerated():
    """p = (.5, .3, .2), q = (.2, .3, .5): all thresholds lie on a grid of tenths."""
    p, q = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.3, 0.5])
    uniforms = all_uniforms(3)
    distribution = torch.zeros(3, dtype=torch.float64)
    for first, second in itertools.permutations(range(3), 2):
        weight = float(q[first] * q[second] / (1 - q[first]))
        draws = torch.tensor([first, second]).expand(len(uniforms), -1)
        target = uniforms[:, [0, 0]]
        accept = torch.cat([torch.zeros(len(uniforms), 1), uniforms[:, 1:]], dim=1)
        token = first_tokens(p, q, draws, VerifyUniforms(target, accept))
        distribution += weight * token.bincount(minlength=3).double() / len(uniforms)
    torch.testing.assert_close(distribution, p.double(), atol=1e-7, rtol=0)


def chi_square(tokens, p):
    counts = tokens.bincount(minlength=len(p)).numpy()
    return stats.chisquare(counts, (p.double() / p.double().sum()).numpy() * counts.sum()).pvalue


def random_case(seed, num_children, batch=100_000):
    generator = torch.Generator().manual_seed(seed)
    p = torch.randn(6, generator=generator).mul(1.5).softmax(-1)
    q = torch.randn(6, generator=generator).mul(1.5).softmax(-1)
    uniform = torch.rand(3, batch, num_children + 1, generator=generator, dtype=torch.float64)
    draws, _ = draw_without_replacement(q.expand(batch, -1), uniform[0, :, :num_children])
    return p, q, draws, VerifyUniforms(uniform[1], uniform[2])


@pytest.mark.parametrize("num_children", [1, 2, 3])
@pytest.mark.parametrize("seed", range(3))
def test_drawn_children_follow_the_target(seed, num_children):
    """Chi-square over 100,000 rows; false alarm 1e-6 per case."""
    p, q, draws, uniforms = random_case(seed, num_children)
    assert chi_square(first_tokens(p, q, draws, uniforms), p) > 1e-6


def test_pruning_drawn_children_by_score_is_not_lossless():
    """Negative control: of two drawn children only the drafter's better one is offered."""
    p, q, draws, uniforms = random_case(0, 2)
    better = draws.gather(1, q[draws].argmax(1, keepdim=True))
    fewer = VerifyUniforms(uniforms.target[:, :2], uniforms.accept[:, :2])
    tokens = first_tokens(p, q, better, fewer)
    assert chi_square(tokens, p) < 1e-12


def test_a_drawn_branch_follows_the_target_at_both_levels():
    """A chain of two drawn tokens; false alarm 1e-6 per test."""
    generator = torch.Generator().manual_seed(3)
    batch = 100_000
    distributions = torch.randn(4, 5, generator=generator).softmax(-1)
    p0, q0, p1, q1 = distributions
    uniform = torch.rand(8, batch, generator=generator, dtype=torch.float64)
    first, _ = draw_without_replacement(q0.expand(batch, -1), uniform[0, :, None])
    second, _ = draw_without_replacement(q1.expand(batch, -1), uniform[1, :, None])
    drafts = torch.cat([first, second], dim=1)
    tree = DraftTree.chain(
        torch.zeros(batch, dtype=torch.long),
        drafts,
        draft_probs=torch.stack([q0, q1]).expand(batch, -1, -1),
    )
    uniforms = VerifyUniforms(uniform[2:5].T, uniform[5:8].T)
    result = verify(tree, logits_of(p0, p1, p0, batch=batch), SAMPLING, uniforms)
    assert chi_square(result.tokens[:, 0], p0) > 1e-6
    assert chi_square(result.tokens[result.num_accepted > 0, 1], p1) > 1e-6


def test_equal_distributions_accept_every_drawn_token():
    p = torch.tensor([0.1, 0.2, 0.7])
    draws = torch.tensor([[0], [1], [2]])
    high = torch.full((3, 2), 1 - 2**-53, dtype=torch.float64)
    assert first_tokens(p, p, draws, VerifyUniforms(high, high)).tolist() == [0, 1, 2]


def test_children_that_hold_all_mass_leave_no_division_by_zero():
    """q covers p's support; the last child with positive mass is accepted."""
    p, q = torch.tensor([0.5, 0.5, 0.0]), torch.tensor([0.5, 0.25, 0.25])
    draws = torch.tensor([[2, 0], [2, 1], [0, 1]])
    high = torch.full((3, 3), 1 - 2**-53, dtype=torch.float64)
    tokens = first_tokens(p, q, draws, VerifyUniforms(high, high))
    assert set(tokens.tolist()) <= {0, 1}
