"""The feature store gives back what was put in, and names what is damaged."""

import json
import pickle

import pytest
import torch
from safetensors.torch import load_file, save_file

from eagle_lab.data.store import (
    INDEX,
    Conversation,
    FeatureStore,
    JoinedStore,
    StoreWriter,
    file_sha256,
)
from eagle_lab.errors import UserError
from eagle_lab.targets.fingerprint import Fingerprint

WIDTH = 6
PARTS = {
    "target": "0123456789abcdef",
    "layers": None,
    "norm_state": "post_final_norm",
    "chat_template": "aa",
    "dtype": {"features": "float16", "computed": "float32", "device": "cpu"},
    "data": {"prompts": "training", "seed": 0},
}


def conversation(number: int, length: int) -> Conversation:
    generator = torch.Generator().manual_seed(number)
    return Conversation(
        tokens=torch.randint(0, 50_000, (length,), generator=generator),
        supervised=torch.arange(length) >= length // 2,
        features={"top": torch.randn(length - 1, WIDTH, generator=generator).half().float()},
        conversation_id=f"c{number}",
    )


SHARDS = [
    [conversation(0, 5), conversation(1, 2)],
    [conversation(2, 9)],
    [conversation(3, 3), conversation(4, 7), conversation(5, 4)],
]


def writer_in(folder, parts=PARTS, dtype=torch.float16):
    return StoreWriter(
        folder,
        Fingerprint(parts),
        feature_dtype=dtype,
        feature_widths={"top": WIDTH},
        details={"layers": None},
    )


def written(folder, shards=SHARDS, parts=PARTS):
    writer = writer_in(folder, parts)
    for shard in shards[writer.num_shards :]:
        writer.add_shard(shard)
    writer.finish(num_skipped=0)
    return folder


def as_early_version(folder):
    """The store as the first version wrote it: one feature, in a tensor of no name."""
    index = json.loads((folder / "index.json").read_text())
    index |= {"format": 1, "feature_width": index.pop("features")["top"]}
    for shard in index["shards"]:
        path = folder / shard["file"]
        tensors = load_file(path)
        tensors["features"] = tensors.pop("features.top")
        save_file(tensors, path)
        shard |= {"num_bytes": path.stat().st_size, "sha256": file_sha256(path)}
    (folder / "index.json").write_text(json.dumps(index))


def test_a_store_of_the_first_version_reads_alike(tmp_path):
    before = list(FeatureStore.open(written(tmp_path)))
    as_early_version(tmp_path)
    store = FeatureStore.open(tmp_path)
    assert store.feature_widths == {"top": WIDTH}
    for one, same in zip(store, before, strict=True):
        assert torch.equal(one.features["top"], same.features["top"])


def test_an_unfinished_store_of_the_first_version_goes_on_as_it_was_begun(tmp_path):
    written(tmp_path, SHARDS[:1])
    as_early_version(tmp_path)
    (tmp_path / INDEX).rename(tmp_path / f"{INDEX}.partial")
    store = FeatureStore.open(written(tmp_path))
    assert store.index["format"] == 1
    for one, same in zip(store, [one for shard in SHARDS for one in shard], strict=True):
        assert torch.equal(one.features["top"].float(), same.features["top"])


def flip_bit(path, place):
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


def test_every_conversation_comes_back(tmp_path):
    store = FeatureStore.open(written(tmp_path))
    everything = [one for shard in SHARDS for one in shard]
    assert len(store) == len(everything) == 6
    for stored, one in zip(store, everything, strict=True):
        assert stored.tokens.dtype == torch.int64
        assert stored.features["top"].dtype == torch.float16
        assert stored.conversation_id == one.conversation_id
        assert torch.equal(stored.tokens, one.tokens)
        assert torch.equal(stored.supervised, one.supervised)
        assert torch.equal(stored.features["top"].float(), one.features["top"])
    assert store[-1].conversation_id == "c5"
    assert store.lengths() == [5, 2, 9, 3, 7, 4]
    assert store.index["num_tokens"] == 30
    with pytest.raises(IndexError):
        store[6]


def test_a_store_travels_to_a_data_loader_worker(tmp_path):
    store = FeatureStore.open(written(tmp_path))
    other = pickle.loads(pickle.dumps(store))
    assert torch.equal(other[4].features["top"], store[4].features["top"])


@pytest.mark.parametrize("rows", [5, 3])
def test_a_feature_for_every_token_but_the_last(tmp_path, rows):
    one = conversation(0, 5)
    wrong = Conversation(one.tokens, one.supervised, {"top": torch.zeros(rows, WIDTH)}, "c0")
    with pytest.raises(ValueError, match="conversation c0"):
        writer_in(tmp_path).add_shard([wrong])


def test_a_truncated_shard_is_named_when_the_store_is_opened(tmp_path):
    shard = written(tmp_path) / "shards" / "00001.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(UserError, match=r"00001\.safetensors"):
        FeatureStore.open(tmp_path)
    shard.unlink()
    with pytest.raises(UserError, match=r"00001\.safetensors"):
        FeatureStore.open(tmp_path)


@pytest.mark.parametrize("place", [3, 20, -1])
def test_a_flipped_bit_is_named_and_its_shard_not_read(tmp_path, place):
    """Whether it hits the length, the header or a feature; other shards stay readable."""
    flip_bit(written(tmp_path) / "shards" / "00002.safetensors", place)
    store = FeatureStore.open(tmp_path)
    assert store[2].conversation_id == "c2"
    with pytest.raises(UserError, match=r"00002\.safetensors"):
        store[4]


def test_an_unfinished_or_missing_store_is_refused(tmp_path):
    with pytest.raises(UserError, match="nothing"):
        FeatureStore.open(tmp_path / "nothing")
    writer_in(tmp_path).add_shard(SHARDS[0])
    with pytest.raises(UserError, match=tmp_path.name):
        FeatureStore.open(tmp_path)


@pytest.mark.parametrize("text", ["{", '{"format": 99}'])
def test_a_torn_or_foreign_index_is_named(tmp_path, text):
    (tmp_path / INDEX).write_text(text)
    with pytest.raises(UserError, match=r"index\.json"):
        FeatureStore.open(tmp_path)


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"target": "fedcba9876543210"}, "target"),
        ({"chat_template": "bb"}, "chat_template"),
        ({"layers": [2, 4, 5]}, "layers"),
        ({"norm_state": "un_normed_layer_inputs"}, "norm_state"),
        ({"data": {"prompts": "training", "seed": 1}}, "data.seed"),
        ({"dtype": {**PARTS["dtype"], "computed": "bfloat16"}}, "dtype.computed"),
    ],
)
@pytest.mark.parametrize("finished", [True, False])
def test_other_settings_never_reuse_a_store(tmp_path, changed, named, finished):
    writer = writer_in(tmp_path)
    writer.add_shard(SHARDS[0])
    if finished:
        writer.finish()
    before = sorted(path.name for path in tmp_path.rglob("*"))
    with pytest.raises(UserError) as error:
        writer_in(tmp_path, {**PARTS, **changed})
    assert named in str(error.value)
    assert sorted(path.name for path in tmp_path.rglob("*")) == before


def test_a_store_goes_on_after_its_last_whole_shard(tmp_path):
    """Torn leftovers of a killed writer are written again; the bytes are those of one go."""
    whole = written(tmp_path / "whole")
    writer = writer_in(tmp_path / "killed")
    for shard in SHARDS[:2]:
        writer.add_shard(shard)
    shards = tmp_path / "killed" / "shards"
    (shards / "00002.safetensors.partial").write_bytes(b"half")
    (shards / "00002.safetensors").write_bytes(b"written, but not yet in the index")
    flip_bit(shards / "00001.safetensors", -1)
    assert writer_in(tmp_path / "killed").num_shards == 1
    written(tmp_path / "killed")
    for path in sorted((whole / "shards").iterdir()):
        assert (shards / path.name).read_bytes() == path.read_bytes()
    assert json.loads((tmp_path / "killed" / INDEX).read_text()) == json.loads(
        (whole / INDEX).read_text()
    )
    assert not list((tmp_path / "killed").rglob("*.partial"))


def test_a_finished_store_stays_as_it_is(tmp_path):
    index = (written(tmp_path) / INDEX).read_bytes()
    writer = writer_in(tmp_path)
    assert writer.finished
    writer.finish(num_skipped=7)
    assert (tmp_path / INDEX).read_bytes() == index


def test_a_feature_too_large_for_half_precision_is_an_error(tmp_path):
    one = conversation(0, 5)
    large = Conversation(one.tokens, one.supervised, {"top": one.features["top"] + 70_000}, "c0")
    with pytest.raises(UserError, match="feature_dtype=bfloat16"):
        writer_in(tmp_path).add_shard([large])
    writer_in(tmp_path, dtype=torch.bfloat16).add_shard([large])


def test_conversations_come_store_after_store(tmp_path):
    """Another prompt source is no obstacle."""
    other_prompts = {**PARTS, "data": {"prompts": "self_written", "seed": 3}}
    first = written(tmp_path / "first", SHARDS[:1])
    second = written(tmp_path / "second", SHARDS[1:], other_prompts)
    joined = JoinedStore.open([first, second])
    assert len(joined) == 6
    assert joined.lengths() == [5, 2, 9, 3, 7, 4]
    assert [joined[i].conversation_id for i in range(-6, 6)] == [f"c{i}" for i in range(6)] * 2
    assert torch.equal(joined[2].tokens, SHARDS[1][0].tokens)
    with pytest.raises(IndexError):
        joined[6]


def test_the_digest_tells_stores_apart(tmp_path):
    first = FeatureStore.open(written(tmp_path / "first", SHARDS[:1]))
    second = FeatureStore.open(written(tmp_path / "second", SHARDS[1:]))
    digests = {JoinedStore(stores).digest for stores in ([first], [second], [first, second])}
    assert len(digests) == 3


@pytest.mark.parametrize("part", ["target", "chat_template"])
def test_features_that_do_not_belong_together_are_refused(tmp_path, part):
    first = written(tmp_path / "first", SHARDS[:1])
    second = written(tmp_path / "second", SHARDS[1:], {**PARTS, part: "another"})
    with pytest.raises(UserError, match=f"{part} is {PARTS[part]} .* another"):
        JoinedStore.open([first, second])
