"""Acceptance counts: conditional is not joint, and counts pool where means do not."""

from __future__ import annotations

import pytest
import torch

from eagle_lab.training.metrics import AcceptanceCounts

CORRECT = torch.tensor([[1, 1, 0], [1, 0, 1], [0, 1, 1]])


def test_conditional_and_expected_tau() -> None:
    """A token that is right after a wrong one is never reached."""
    counts = AcceptanceCounts(3)
    counts.add(CORRECT)
    assert counts.conditional.tolist() == pytest.approx([2 / 3, 1 / 2, 0])
    assert counts.expected_tau == pytest.approx(2.0)


def test_batches_of_any_size_pool() -> None:
    whole, parts = AcceptanceCounts(3), AcceptanceCounts(3)
    whole.add(CORRECT)
    parts.add(CORRECT[:1])
    parts.add(CORRECT[1:])
    assert parts.conditional.tolist() == whole.conditional.tolist()


def test_a_chain_that_ends_early_is_not_a_rejection() -> None:
    counts = AcceptanceCounts(2)
    counts.add(torch.tensor([[1, 0], [1, 1]]), valid=torch.tensor([[1, 0], [1, 1]]))
    assert counts.conditional.tolist() == [1.0, 1.0]


def test_counting_depth_by_depth_is_the_same() -> None:
    counts = AcceptanceCounts(3)
    for depth, correct in enumerate(([1, 1, 0], [1, 0], [0])):
        counts.add_depth(depth, torch.tensor(correct, dtype=torch.bool))
    assert counts.expected_tau == pytest.approx(2.0)


def test_nothing_tried_is_no_acceptance() -> None:
    assert AcceptanceCounts(4).expected_tau == 1.0
