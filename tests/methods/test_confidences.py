"""Which drafted tokens count as judged, and how confident the drafter was of them."""

import pytest
import torch

from eagle_lab.drafters.eagle1.network import Eagle1
from eagle_lab.engine.draft_tree import DraftTree
from eagle_lab.engine.loop import decode
from eagle_lab.engine.record import Outcome, Record
from eagle_lab.engine.verify import Acceptance
from eagle_lab.methods.eagle_trees import EagleDynamic
from eagle_lab.methods.prompt_lookup import PromptLookup
from eagle_lab.targets.target import Target
from eagle_lab.targets.tiny import tiny_random
from tests.drafters.fakes import eagle1

PROMPTS = [[40, 41, 42], [7], list(range(100, 130))]


def example() -> DraftTree:
    """Root 7; children 1 (probability 0.5) and 2 (0.25); below 1 the node 3 (0.8)."""
    scores = torch.tensor([[1.0, 0.5, 0.25, 0.4]]).log()
    return DraftTree.build(
        torch.tensor([[7, 1, 2, 3]]), torch.tensor([[0, 0, 0, 1]]), max_depth=2, scores=scores
    )


def outcome(path: list[int], tokens: list[int]) -> Acceptance:
    num_accepted = torch.tensor([len([column for column in path if column])])
    return Acceptance(torch.tensor([path]), num_accepted, torch.tensor([tokens]))


@pytest.mark.parametrize(
    ("acceptance", "limit", "eos", "confidences", "accepted"),
    [
        (outcome([0, 1, 3], [1, 3, 9]), 10, set(), [0.5, 0.25, 0.8], [1, 0, 1]),
        (outcome([0, 1, 0], [1, 9, 0]), 10, set(), [0.5, 0.25, 0.8], [1, 0, 0]),
        (outcome([0, 2, 0], [2, 9, 0]), 10, set(), [0.5, 0.25], [0, 1]),
        (outcome([0, 0, 0], [9, 0, 0]), 10, set(), [0.5, 0.25], [0, 0]),
        (outcome([0, 1, 3], [1, 3, 9]), 1, set(), [0.5, 0.25], [1, 0]),
        (outcome([0, 1, 3], [1, 3, 9]), 10, {1}, [0.5, 0.25], [1, 0]),
    ],
    ids=["whole path", "second rejected", "sibling", "none", "cut by the limit", "cut by EOS"],
)
def test_judged_are_children_of_accepted_nodes_that_the_text_reached(
    acceptance, limit, eos, confidences, accepted
):
    record = Record([[1, 2]], limit, frozenset(eos), None, False, keep_confidences=True)
    tree = example()
    record.keep_confidences(tree, acceptance, Outcome.fetch(tree, acceptance).new_tokens)
    (generation,) = record.generations
    assert generation.draft_confidences == pytest.approx(confidences, abs=1e-4)
    assert generation.draft_accepted == accepted


def drafter_of(target: Target) -> Eagle1:
    return eagle1(target, inner_norm=True).to(target.dtype)


def test_confidences_on_the_real_loop():
    """Accepted ones are the accepted drafts; a tree of one node is judged once a cycle."""
    target = Target(*tiny_random("llama"))
    for depth, width, num_nodes in ((3, 4, 12), (1, 1, 1)):
        proposer = EagleDynamic(
            target, drafter_of(target), depth=depth, width=width, num_nodes=num_nodes
        )
        rows = decode(target, proposer, PROMPTS, max_new_tokens=30, keep_confidences=True)
        plain = decode(target, proposer, PROMPTS, max_new_tokens=30)
        assert [row.tokens for row in rows] == [row.tokens for row in plain]
        for row in rows:
            assert sum(row.draft_accepted) == sum(row.accepted_lengths)
            assert len(row.draft_accepted) == len(row.draft_confidences)
            assert all(0 < confidence <= 1 for confidence in row.draft_confidences)
            if num_nodes == 1:
                assert len(row.draft_confidences) == len(row.accepted_lengths)
        assert not any(row.draft_confidences for row in plain)


def test_a_method_without_scores_has_no_confidences():
    target = Target(*tiny_random("llama"))
    rows = decode(target, PromptLookup(), PROMPTS, keep_confidences=True, max_new_tokens=9)
    assert not any(row.draft_confidences for row in rows)
