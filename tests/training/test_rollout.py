"""Training-time test steps against drafting each row's chain by itself, one call per token."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from eagle_lab.data.batches import PackedBatch, pack
from eagle_lab.drafters.eagle1.network import Eagle1
from eagle_lab.training.alignment import next_tokens
from eagle_lab.training.attention import training_test_mask
from eagle_lab.training.rollout import Rollout
from tests.drafters.fakes import causal_attend
from tests.training.fakes import batch_of, documents, new_drafter

LENGTHS = [9, 3, 12, 2, 6]


def chain_by_hand(drafter: Eagle1, batch: PackedBatch, row: int, step: int) -> Tensor:
    """f̂ of `row` at `step`: true pairs up to the row, then its own outputs, causal attention."""
    start = row - int(batch.positions[row])
    tokens, features = next_tokens(batch), batch.features["top"]
    fed = features[start : row + 1]
    for _ in range(step + 1):
        num = len(fed)
        outputs = drafter(
            tokens[None, start : start + num], fed[None], torch.arange(num)[None], causal_attend
        )[0]
        fed = torch.cat((fed, outputs[-1:]))
    return fed[-1]


def test_mask_is_causal_for_step_zero_and_diagonal_after() -> None:
    """The drawing of attention.py, literally."""
    literal = [
        [1, 0, 0, 1, 0, 0, 1, 0, 0],
        [1, 1, 0, 0, 1, 0, 0, 1, 0],
        [1, 1, 1, 0, 0, 1, 0, 0, 1],
    ]
    assert training_test_mask(torch.arange(3), 3, 2).int().tolist() == literal
    # Rows 1 and 3 of four go on: all their step-0 past, their own keys after
    fewer = training_test_mask(torch.tensor([1, 3]), 4, 1)
    assert fewer.int().tolist() == [[1, 1, 0, 0, 1, 0], [1, 1, 1, 1, 0, 1]]


@pytest.mark.parametrize("inner_norm", [False, True])
def test_every_step_is_what_drafting_the_chain_gives(inner_norm: bool) -> None:
    batch, drafter = batch_of(LENGTHS), new_drafter(inner_norm=inner_norm)
    rollout = Rollout(drafter, batch)
    compared = 0
    for index in range(4):
        step, predicted = rollout.advance()
        for row, output in zip(step.rows.tolist(), predicted, strict=True):
            expected = chain_by_hand(drafter, batch, row, index)
            torch.testing.assert_close(output, expected, rtol=1e-3, atol=1e-3)
            compared += 1
    assert compared > 20


def test_packed_documents_give_each_documents_own_result() -> None:
    """Outputs of every step, and the gradient of their sum."""
    parts, drafter = documents(LENGTHS), new_drafter()

    def outputs_and_gradient(batches: list[PackedBatch]) -> tuple[list[Tensor], Tensor]:
        drafter.zero_grad()
        steps: list[list[Tensor]] = [[], [], []]
        for batch in batches:
            rollout = Rollout(drafter, batch)
            for index in range(3):
                steps[index].append(rollout.advance()[1])
        outputs = [torch.cat(step) for step in steps]
        sum(output.square().sum() for output in outputs).backward()  # type: ignore[union-attr]
        assert drafter.fc.weight.grad is not None
        return outputs, drafter.fc.weight.grad.clone()

    packed, packed_gradient = outputs_and_gradient([pack(parts)])
    alone, alone_gradient = outputs_and_gradient([pack([part]) for part in parts])
    for ours, theirs in zip(packed, alone, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(packed_gradient, alone_gradient, rtol=1e-3, atol=1e-3)


def test_a_neighbours_content_changes_nothing() -> None:
    parts, drafter = documents(LENGTHS), new_drafter()
    first = Rollout(drafter, pack(parts)).advance()[1]
    parts[0].features["top"][:] = 99.0
    second = Rollout(drafter, pack(parts)).advance()[1]
    own = int((first != second).any(-1).sum())
    assert 0 < own <= LENGTHS[0]
    torch.testing.assert_close(first[own:], second[own:], rtol=0, atol=0)


def test_rows_left_out_change_nothing_for_the_others() -> None:
    batch, drafter = batch_of(LENGTHS), new_drafter()
    everyone, some = Rollout(drafter, batch), Rollout(drafter, batch)
    rows = everyone.advance()[0].rows
    some.advance()
    chosen = rows[::2]
    step, expected = everyone.advance()
    fewer, outputs = some.advance(among=chosen)
    kept = torch.isin(step.rows, chosen)
    assert fewer.rows.tolist() == step.rows[kept].tolist()
    torch.testing.assert_close(outputs, expected[kept], rtol=1e-5, atol=1e-5)


def test_a_step_without_rows_is_empty() -> None:
    rollout = Rollout(new_drafter(), batch_of([3, 3]))
    for _ in range(3):
        step, output = rollout.advance()
    assert len(step.rows) == 0
    assert output.shape == (0, 16)
