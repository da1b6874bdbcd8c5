"""Several stores read as one."""

import pytest
import torch

from eagle_lab.data.store import FeatureStore, JoinedStore
from eagle_lab.errors import UserError
from tests.data.test_store import PARTS, SHARDS, writer_in


def store_of(folder, shards, parts=PARTS):
    writer = writer_in(folder, parts)
    for shard in shards:
        writer.add_shard(shard)
    writer.finish()
    return folder


def test_conversations_come_store_after_store(tmp_path):
    """Another prompt source is no obstacle."""
    other_prompts = {**PARTS, "data": {"prompts": "self_written", "seed": 3}}
    first = store_of(tmp_path / "first", SHARDS[:1])
    second = store_of(tmp_path / "second", SHARDS[1:], other_prompts)
    joined = JoinedStore.open([first, second])
    assert len(joined) == 6
    assert joined.lengths() == [5, 2, 9, 3, 7, 4]
    assert [joined[i].conversation_id for i in range(-6, 6)] == [f"c{i}" for i in range(6)] * 2
    assert torch.equal(joined[2].tokens, SHARDS[1][0].tokens)
    with pytest.raises(IndexError):
        joined[6]


def test_the_digest_tells_stores_apart(tmp_path):
    first = FeatureStore.open(store_of(tmp_path / "first", SHARDS[:1]))
    second = FeatureStore.open(store_of(tmp_path / "second", SHARDS[1:]))
    digests = {JoinedStore(stores).digest for stores in ([first], [second], [first, second])}
    assert len(digests) == 3


@pytest.mark.parametrize("part", ["target", "chat_template"])
def test_features_that_do_not_belong_together_are_refused(tmp_path, part):
    first = store_of(tmp_path / "first", SHARDS[:1])
    second = store_of(tmp_path / "second", SHARDS[1:], {**PARTS, part: "another"})
    with pytest.raises(UserError, match=f"{part} is {PARTS[part]} in one, another in the other"):
        JoinedStore.open([first, second])
