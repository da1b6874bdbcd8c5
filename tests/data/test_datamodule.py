"""What becomes of a store: skipped, cut, refused, counted."""

from __future__ import annotations

import itertools

import pytest
import torch

from eagle_lab.data.datamodule import DrafterDataModule, check_store
from eagle_lab.errors import UserError
from tests.drafters.fakes import FakeTarget
from tests.training.fakes import FakeStore, fake_data, trainer


def data_of(store: FakeStore, **changes: int | float | str | None) -> DrafterDataModule:
    small = {"batch_tokens": 20, "val_fraction": 0.25}
    return DrafterDataModule(store, trainer(**{**small, **changes}))


def test_conversations_without_a_label_are_skipped_and_counted() -> None:
    """Also where the only assistant tokens are the first two, which no row predicts."""
    store = FakeStore([9] * 8)
    store[1].supervised[:] = False
    store[2].supervised[2:] = False
    store[2].supervised[:2] = True
    data = data_of(store, max_length=8)
    assert data.counts.num_conversations == 8
    assert data.counts.num_skipped == 2
    assert data.counts.num_cut == 8
    assert not {1, 2} & {*data.train_indices, *data.val_indices}
    assert data.counts.num_train + data.counts.num_val == 6


def test_an_all_zero_mask_stops_the_run() -> None:
    store = FakeStore([9] * 4)
    for conversation in store.conversations:
        conversation.supervised[:] = False
    with pytest.raises(UserError, match=" 4 "):
        data_of(store)


def test_every_batch_has_labels_and_the_counts_say_how_many() -> None:
    data = fake_data([9, 12, 15, 6, 30, 8, 9, 20])
    num_labels, num_tokens = 0, 0
    for batch in data.train_dataloader():
        num_labels += int((batch.supervised & (batch.positions >= 2)).sum())
        num_tokens += len(batch.tokens)
    assert num_labels == data.counts.num_train_labels
    assert num_tokens == data.counts.num_train_tokens


def test_token_counts_see_training_answers_only() -> None:
    data = fake_data([9, 12, 15, 6, 30, 8, 9, 20])
    expected = torch.zeros(12, dtype=torch.long)
    for index in data.train_indices:
        stored = data.store[index]
        for token, supervised in zip(stored.tokens, stored.supervised, strict=True):
            expected[token] += int(supervised)
    assert data.token_counts(12).tolist() == expected.tolist()


def test_max_tokens_takes_nested_shares_spread_over_all_stores() -> None:
    """Two stores of 300 conversations each end to end; every share validates on the same ones.

    A share of 100 of the 450 training conversations holds 50 ± 4.4 of the first store (drawn
    without replacement): outside 28 … 72 with a probability below 1e-6 (and the seed is fixed).
    """
    store = FakeStore([10] * 600)
    shares = [data_of(store, max_tokens=size) for size in (105, 1000, 2004, 9999, None)]
    assert [share.counts.num_train_tokens for share in shares] == [100, 1000, 2000, 4500, 4500]
    for smaller, larger in itertools.pairwise(shares):
        assert set(smaller.train_indices) <= set(larger.train_indices)
        assert smaller.val_indices == larger.val_indices
    of_first = sum(index < 300 for index in shares[1].train_indices)
    assert 28 <= of_first <= 72


def test_one_conversation_is_trained_on_however_few_tokens_are_asked_for() -> None:
    assert data_of(FakeStore([10] * 20), max_tokens=1).counts.num_train == 1


def test_whole_texts_can_be_learned_and_held_out_are_answers_all_the_same() -> None:
    store = FakeStore([9, 12, 15, 6, 30, 8, 9, 20])
    answers, whole = data_of(store), data_of(store, supervise="all")
    assert whole.train_indices == answers.train_indices
    assert whole.val_indices == answers.val_indices
    assert all(batch.supervised.all() for batch in whole.train_batches())
    of_val = [[b.supervised.tolist() for b in data.val_dataloader()] for data in (answers, whole)]
    assert of_val[0] == of_val[1]
    lengths = store.lengths()
    assert whole.counts.num_train_labels == sum(lengths[i] - 2 for i in whole.train_indices)
    assert whole.counts.num_train_labels > answers.counts.num_train_labels
    # The draft vocabulary stays that of the answers
    assert whole.token_counts(12).tolist() == answers.token_counts(12).tolist()


def test_a_store_of_another_target_is_refused() -> None:
    """Contract 9: both fingerprints are named."""
    check_store(FakeStore([9]), FakeTarget())
    with pytest.raises(UserError, match="fake-1.*fake-0"):
        check_store(FakeStore([9], target="fake-1"), FakeTarget())


def test_a_store_without_a_feature_that_is_read_is_refused_by_name() -> None:
    with pytest.raises(UserError, match="fused"):
        check_store(FakeStore([9]), FakeTarget(), ["top", "fused"])


def test_settings_out_of_range_are_named() -> None:
    with pytest.raises(UserError, match="trainer.supervise 'answer'.*'answers'"):
        data_of(FakeStore([9] * 4), supervise="answer")
    with pytest.raises(UserError, match="batch_tokens=0"):
        data_of(FakeStore([9] * 4), batch_tokens=0)
