"""Splitting by conversation, packing, and the order of batches."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle_lab.data.batches import PackedBatchSampler, pack
from eagle_lab.data.datamodule import DocumentDataset, split_conversations
from eagle_lab.errors import UserError
from tests.training.fakes import FakeStore


def test_a_split_is_disjoint_and_complete() -> None:
    """12501 conversations, a fifth held out."""
    train, val = split_conversations([f"c{i}" for i in range(12501)], val_fraction=0.2, seed=0)
    assert len(val) == 2500
    assert not set(train) & set(val)
    assert sorted(train + val) == list(range(12501))


def test_sequences_of_one_conversation_stay_together() -> None:
    ids = [f"c{i % 50}" for i in range(200)]
    train, val = split_conversations(ids, val_fraction=0.2, seed=3)
    assert not {ids[i] for i in train} & {ids[i] for i in val}
    assert len({ids[i] for i in val}) == 10


def test_a_split_depends_on_the_seed_alone() -> None:
    ids = [f"c{i}" for i in range(100)]
    _, val = split_conversations(ids, val_fraction=0.1, seed=0)
    _, reversed_val = split_conversations(ids[::-1], val_fraction=0.1, seed=0)
    assert {ids[i] for i in val} == {ids[::-1][i] for i in reversed_val}
    assert split_conversations(ids, val_fraction=0.1, seed=1)[1] != val


@pytest.mark.parametrize("fraction", [0.001, 0.999])
def test_each_side_gets_at_least_one(fraction: float) -> None:
    train, val = split_conversations(["a", "b", "c"], val_fraction=fraction, seed=0)
    assert train
    assert val


def test_what_cannot_be_split_says_so() -> None:
    with pytest.raises(UserError):
        split_conversations(["a", "a"], val_fraction=0.5, seed=0)
    with pytest.raises(UserError, match="val_fraction=1.5"):
        split_conversations(["a", "b"], val_fraction=1.5, seed=0)


def test_documents_lie_end_to_end() -> None:
    store = FakeStore([5, 4, 9])
    dataset = DocumentDataset(store, [0, 2], max_length=6)
    assert dataset.lengths == [5, 6]
    batch = pack([dataset[0], dataset[1]])
    assert batch.lengths == [5, 6]
    assert batch.positions.tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 5]
    assert batch.document.tolist() == [0] * 5 + [1] * 6
    assert batch.tokens.tolist() == store[0].tokens.tolist() + store[2].tokens[:6].tolist()
    # A whole conversation's last token has no feature, a cut one's has
    torch.testing.assert_close(batch.features["top"][:4], store[0].features["top"])
    assert batch.features["top"][4].abs().sum() == 0
    torch.testing.assert_close(batch.features["top"][5:], store[2].features["top"][:6])


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(3, 50), min_size=1, max_size=40),
    batch_tokens=st.integers(1, 200),
    epoch=st.integers(0, 3),
)
def test_an_epoch_holds_every_document_once(
    lengths: list[int], batch_tokens: int, epoch: int
) -> None:
    sampler = PackedBatchSampler(lengths, batch_tokens=batch_tokens, seed=0, shuffle=True)
    batches = sampler.batches_of(epoch)
    assert len(batches) == len(sampler)
    assert all(batches)
    assert sorted(item for batch in batches for item in batch) == list(range(len(lengths)))


def test_batches_hold_their_share_of_the_tokens() -> None:
    lengths = [10 + i % 7 for i in range(300)]
    sampler = PackedBatchSampler(lengths, batch_tokens=100, seed=0, shuffle=True)
    share = sum(lengths) / len(sampler)
    assert 95 < share < 105
    sizes = [sum(lengths[i] for i in batch) for batch in sampler.batches_of(0)]
    assert max(sizes) <= share + max(lengths)


def test_epochs_differ_and_repeat_with_the_seed() -> None:
    def order(seed: int) -> list[list[list[int]]]:
        sampler = PackedBatchSampler([5] * 40, batch_tokens=25, seed=seed, shuffle=True)
        return [list(sampler) for _ in range(2)]

    first = order(0)
    assert first[0] != first[1]
    assert order(0) == first
    assert order(1) != first


def test_order_goes_on_where_it_stopped() -> None:
    def fresh() -> PackedBatchSampler:
        return PackedBatchSampler([5] * 40, batch_tokens=25, seed=0, shuffle=True)

    straight = [batch for sampler in [fresh()] for _ in range(2) for batch in sampler]
    for stop in range(1, len(straight)):
        sampler, seen = fresh(), []
        while len(seen) < stop:
            for batch in sampler:
                seen.append(batch)
                if len(seen) == stop:
                    break
        resumed = fresh()
        resumed.load_state_dict(sampler.state_dict())
        while len(seen) < len(straight):
            seen.extend(resumed)
        assert seen == straight
