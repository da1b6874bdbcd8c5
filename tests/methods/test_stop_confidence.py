"""Drafts end where the drafter doubts them."""

import pytest
import torch

from eagle_lab.drafters.eagle1.network import Eagle1
from eagle_lab.engine.loop import decode
from eagle_lab.errors import UserError
from eagle_lab.methods.eagle import EagleChain
from eagle_lab.methods.eagle_trees import EagleDynamic
from eagle_lab.targets.target import Target
from eagle_lab.targets.tiny import tiny_random
from tests.drafters.fakes import eagle1

PROMPTS = [[40, 41, 42], [60, 61, 62, 63] * 4, [7], list(range(100, 140))]


@pytest.fixture(scope="module")
def target() -> Target:
    return Target(*tiny_random("llama"))


@pytest.fixture(scope="module")
def drafter(target: Target) -> Eagle1:
    """Untrained; its best guesses have probabilities around 0.02."""
    return eagle1(target, inner_norm=True)


def spied(proposer, trees):
    """`proposer`, leaving each tree it proposes in `trees`."""
    propose = proposer.propose

    def note(context):
        trees.append(propose(context))
        return trees[-1]

    proposer.propose = note
    return proposer


@pytest.mark.parametrize("sizes", [{"num_draft_tokens": 4}, None])
def test_what_the_drafter_doubts_is_not_drafted(target, drafter, sizes):
    """A threshold above every confidence drafts nothing, one below all of them everything."""

    def drafted(threshold):
        options = {"stop_confidence": threshold}
        if sizes:
            proposer = EagleChain(target, drafter, **sizes, **options)
        else:
            proposer = EagleDynamic(target, drafter, depth=4, width=3, num_nodes=12, **options)
        trees = []
        decode(target, spied(proposer, trees), PROMPTS, max_new_tokens=12)
        return trees

    never, some, always = drafted(0.0), drafted(3e-4), drafted(0.999)
    most = 4 if sizes else 12
    assert all(tree.num_nodes().tolist() == [most] * len(tree.tokens) for tree in never)
    assert all(tree.num_columns == 1 for tree in always)
    counts = [count for tree in some for count in tree.num_nodes().tolist()]
    assert 0 < sum(counts) < most * len(counts)
    ragged = [tree for tree in some if len(set(tree.num_nodes().tolist())) > 1]
    assert ragged  # rows of one batch end at different depths


def test_a_stopped_chain_ends_before_its_path_gets_too_improbable(target, drafter):
    """Each path's probability, recomputed from the full distributions, frames the threshold."""
    threshold = 1e-5
    trees, full = [], []
    stopping = spied(EagleChain(target, drafter, stop_confidence=threshold), trees)
    decode(target, stopping, [PROMPTS[0]], max_new_tokens=2)
    plain = EagleChain(target, drafter)
    logits, head = [], drafter.logits

    def noted(hidden):
        logits.append(head(hidden))
        return logits[-1]

    drafter.logits = noted
    try:
        decode(target, spied(plain, full), [PROMPTS[0]], max_new_tokens=2)
    finally:
        del drafter.logits
    best = [float(step[0, 0].softmax(-1).max()) for step in logits[:5]]
    path = torch.tensor(best).cumprod(0)
    num_kept = int((path >= threshold).sum())
    assert 0 < num_kept < 5
    assert trees[0].num_nodes().tolist() == [num_kept]
    expected = full[0].tokens[:, : num_kept + 1]
    assert trees[0].tokens[:, : num_kept + 1].tolist() == expected.tolist()


@pytest.mark.parametrize("value", [-0.1, 1.0])
def test_impossible_settings_are_named(target, drafter, value):
    with pytest.raises(UserError, match=f"stop_confidence={value}"):
        EagleChain(target, drafter, stop_confidence=value)
    with pytest.raises(UserError, match=f"stop_confidence={value}"):
        EagleDynamic(target, drafter, depth=2, width=2, num_nodes=2, stop_confidence=value)
    with pytest.raises(UserError, match="num_draft_tokens=0"):
        EagleChain(target, drafter, num_draft_tokens=0)
