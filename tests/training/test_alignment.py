"""Which row counts at which step, and with what, against literals."""

from __future__ import annotations

import torch

from eagle_lab.data.batches import Document, PackedBatch, pack
from eagle_lab.training.alignment import counting_rows, next_tokens, take_step


def document(tokens: range, supervised: range) -> Document:
    """Token values are their own names; features repeat them, so that mix-ups show."""
    ids = torch.tensor(list(tokens))
    return Document(
        tokens=ids,
        supervised=torch.tensor([token in supervised for token in tokens]),
        features={"top": ids[:, None].float()},
    )


def example() -> PackedBatch:
    """Tokens 0 … 9, the assistant wrote 4 … 9."""
    return pack([document(range(10), range(4, 10))])


def test_supervised_labels_are_exactly_the_assistants_tokens() -> None:
    """Row t predicts token t + 2, and the labels are 4 … 9."""
    step = take_step(example(), 0)
    assert step.token_labels.tolist() == [4, 5, 6, 7, 8, 9]
    assert step.rows.tolist() == [2, 3, 4, 5, 6, 7]
    assert step.fed_tokens.tolist() == [3, 4, 5, 6, 7, 8]
    assert step.feature_labels.tolist() == [3, 4, 5, 6, 7, 8]
    assert step.positions.tolist() == [2, 3, 4, 5, 6, 7]


def test_shifting_once_too_often_or_too_little_is_seen() -> None:
    """The check above fails for masks shifted by 1 or 3 instead of 2."""
    batch = example()
    for wrong in (1, 3):
        mask = torch.roll(batch.supervised, -wrong)
        mask[len(mask) - wrong :] = False
        assert (mask.nonzero()[:, 0] + 2).tolist() != [4, 5, 6, 7, 8, 9]


def test_later_steps_shift_labels_masks_and_positions() -> None:
    step = take_step(example(), 2)
    assert step.rows.tolist() == [2, 3, 4, 5]
    assert step.fed_tokens.tolist() == [5, 6, 7, 8]
    assert step.feature_labels.tolist() == [5, 6, 7, 8]
    assert step.token_labels.tolist() == [6, 7, 8, 9]
    assert step.positions.tolist() == [4, 5, 6, 7]


def test_a_row_counts_while_all_its_labels_so_far_are_the_assistants() -> None:
    """Two assistant turns: rows stop counting where their draft would cross the user's turn."""
    one = document(range(10), range(0))
    one.supervised[:] = torch.tensor([0, 0, 1, 1, 0, 0, 1, 1, 1, 0], dtype=torch.bool)
    batch = pack([one])
    literal = [
        [1, 1, 0, 0, 1, 1, 1, 0, 0, 0],
        [1, 0, 0, 0, 1, 1, 0, 0, 0, 0],
        [0, 0, 0, 0, 1, 0, 0, 0, 0, 0],
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
    ]
    for step, expected in enumerate(literal):
        assert counting_rows(batch, step).int().tolist() == expected


def test_nothing_crosses_a_document() -> None:
    """Each document alone and packed: the same rows, tokens and labels."""
    parts = [document(range(10), range(4, 10)), document(range(20, 23), range(20, 23))]
    parts.append(document(range(30, 37), range(31, 35)))
    packed = pack(parts)
    for index in range(4):
        alone = [take_step(pack([part]), index) for part in parts]
        together = take_step(packed, index)
        for name in ("fed_tokens", "positions", "token_labels"):
            expected = torch.cat([getattr(step, name) for step in alone])
            assert getattr(together, name).tolist() == expected.tolist()
        assert packed.features["top"][together.feature_labels, 0].tolist() == [
            label - 1 for label in together.token_labels.tolist()
        ]


def test_step_zero_feeds_the_next_token_of_the_same_document() -> None:
    packed = pack([document(range(3), range(3)), document(range(10, 12), range(0))])
    assert next_tokens(packed).tolist() == [1, 2, 2, 11, 11]


def test_a_chosen_subset_of_rows_goes_on() -> None:
    step = take_step(example(), 1, torch.tensor([3, 5, 7]))
    assert step.rows.tolist() == [3, 5]  # row 7's second label would be token 10
