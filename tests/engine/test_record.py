"""What a cycle judged, counted on a tree that one can read."""

from __future__ import annotations

import pytest
import torch

from eagle_lab.engine.draft_tree import DraftTree
from eagle_lab.engine.loop import decode
from eagle_lab.engine.record import Outcome, Record
from eagle_lab.engine.verify import Acceptance
from eagle_lab.methods.prompt_lookup import PromptLookup
from eagle_lab.targets.target import Target
from eagle_lab.targets.tiny import tiny_random

TREE = DraftTree.from_branches(torch.tensor([5]), [[[1, 3], [2]]])  # columns: root 1 3 2


@pytest.mark.parametrize(
    ("path", "num_accepted", "num_judged"),
    [([0, 0, 0], 0, 1), ([0, 1, 0], 1, 2), ([0, 1, 2], 2, 2), ([0, 3, 0], 1, 1)],
    ids=["all rejected", "below 1 one more", "whole branch", "2 has no children"],
)
def test_judged_are_the_accepted_nodes_and_the_children_of_the_last(path, num_accepted, num_judged):
    counts = torch.tensor([num_accepted])
    kept = Acceptance.along(TREE, torch.tensor([path]), counts, torch.tensor([9]))
    outcome = Outcome.fetch(TREE, kept)
    assert outcome.num_judged == [num_judged]
    assert len(outcome.new_tokens[0]) == num_accepted + 1


@pytest.mark.parametrize(("limit", "judged"), [(10, 2), (2, 2), (1, 1)])
def test_after_the_end_of_the_text_nothing_is_judged(limit, judged):
    """One of two judged tokens is accepted; a limit of 1 leaves no room for the bonus token."""
    record = Record([[1]], limit, frozenset(), None, keep_features=False)
    record.emit(Outcome([[1, 9]], num_nodes=[3], num_judged=[2], moved=False))
    assert record.generations[0].judged_lengths == [judged]


def test_a_cycle_without_a_draft_judges_nothing():
    target = Target(*tiny_random("llama"), fast_layers=False)
    (row,) = decode(target, PromptLookup(), [[60, 61, 62, 63] * 4], max_new_tokens=30)
    lengths = zip(row.judged_lengths, row.accepted_lengths, row.emitted_lengths, strict=True)
    assert all(kept <= judged <= new for judged, kept, new in lengths)
    assert 0 in row.judged_lengths
    assert sum(row.judged_lengths) <= row.num_drafted
