"""Capture: right features, right masks, the same bytes whether or not it was interrupted."""

import json
import shutil
from collections import namedtuple

import pytest
import torch
from omegaconf import OmegaConf

from eagle_lab.config import compose
from eagle_lab.data.answers import ANSWERS
from eagle_lab.data.batches import Batch
from eagle_lab.data.capture import capture
from eagle_lab.data.chat import ChatTemplate
from eagle_lab.data.prompts import Question
from eagle_lab.data.store import FeatureStore, StoreWriter
from eagle_lab.data.training_prompts import training_prompts
from eagle_lab.errors import UserError
from eagle_lab.runs.folder import RunFolder
from eagle_lab.targets import load
from eagle_lab.targets.load import load_target
from eagle_lab.targets.tiny import tiny_random
from eagle_lab.tasks import capture as capture_task
from eagle_lab.tasks.capture import run

SMALL = [
    "+experiment=capture",
    "target=tiny_random",
    "device=cpu",
    "data.num_prompts=12",
    "data.num_tokens=null",
    "data.batch_size=4",
    "data.max_new_tokens=6",
]


def captured(folder, *overrides):
    run(compose([*SMALL, f"output_dir={folder}", *overrides]))
    return FeatureStore.open(folder)


def ids_of(store):
    return [one.conversation_id for one in store]


@pytest.fixture(scope="module")
def target():
    return load_target("tiny_random", device="cpu")


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Greedy and sampled conversations of one and two turns, features in float32."""
    folder = tmp_path_factory.mktemp("capture") / "store"
    return captured(folder, "data.feature_dtype=float32")


@torch.no_grad()
def plain_states(tokens, **changes):
    """hidden_states of the model as transformers ships it."""
    model, _ = tiny_random("llama", **changes)
    return model(tokens[None], output_hidden_states=True, use_cache=False)


def test_features_are_the_states_of_the_whole_conversation(store):
    """In float32, with the noise of another order of sums."""
    for one in store:
        states = plain_states(one.tokens).hidden_states[-1][0]
        torch.testing.assert_close(one.features["top"], states[:-1], atol=1e-4, rtol=1e-4)


def test_the_head_over_the_stored_feature_gives_the_logits(store, target):
    """Post-norm features do, to 1e-5 of the largest logit; un-normed states do not."""
    assert store.index["norm_state"] == "post_final_norm"
    one = store[0]
    output = plain_states(one.tokens)
    logits = output.logits[0, :-1]
    error = (target.head(one.features["top"]) - logits).abs().max() / logits.abs().max()
    assert error < 1e-5
    before_norm = []
    model, _ = tiny_random("llama")
    model.model.norm.register_forward_pre_hook(lambda _, args: before_norm.append(args[0]))
    with torch.no_grad():
        model(one.tokens[None])
    assert (target.head(before_norm[0][0, :-1]) - logits).abs().max() > 0.1


@pytest.mark.parametrize(("dtype", "relative"), [("float16", 2.0**-11), ("bfloat16", 2.0**-8)])
def test_half_precision_features_are_within_their_rounding(store, tmp_path, dtype, relative):
    """Each number is off by at most half a unit in its last place: 2^-11 or 2^-8 of its size."""
    half = captured(tmp_path / "half", f"data.feature_dtype={dtype}")
    for one, exact in zip(half, store, strict=True):
        assert str(one.features["top"].dtype) == f"torch.{dtype}"
        assert torch.equal(one.tokens, exact.tokens)
        limit = relative * exact.features["top"].abs() + 1e-7
        assert ((one.features["top"].float() - exact.features["top"]).abs() <= limit).all()


def test_fused_layers_are_the_inputs_of_those_layers(tmp_path):
    fused = captured(
        tmp_path / "fused",
        "target.feature_layers=[2,4,5]",
        "data.features=[top,fused]",
        "data.feature_dtype=float32",
    )
    assert fused.index["layers"] == [2, 4, 5]
    assert fused.index["norm_state"]["fused"] == "un_normed_layer_inputs"
    assert fused.feature_widths == {"top": 48, "fused": 3 * 48}
    one = fused[3]
    states = plain_states(one.tokens).hidden_states
    expected = torch.cat([states[layer][0, :-1] for layer in (2, 4, 5)], dim=-1)
    torch.testing.assert_close(one.features["fused"], expected, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(one.features["top"], states[-1][0, :-1], atol=1e-4, rtol=1e-4)


def test_exactly_the_assistants_tokens_are_supervised(store, target):
    """One span for each turn; the last begins after its prompt and holds the sampled tokens."""
    template = ChatTemplate(target.tokenizer)
    questions = {q.question_id: q for q in training_prompts(12, 0)}
    two_turns = 0
    for one in store:
        question = questions[one.conversation_id]
        starts = (one.supervised.int().diff() == 1).sum()
        assert starts == len(question.turns)
        assert bool(one.supervised[-1])
        prompt = template.encode(question.conversation())
        assert one.tokens[: len(prompt)].tolist() == prompt
        assert not one.supervised[: len(prompt)].any()
        assert bool(one.supervised[len(prompt)])
        if len(question.turns) == 2:
            two_turns += 1
            spans = one.supervised.int().diff().nonzero().flatten().tolist()
            assert one.supervised[spans[1] + 1 : spans[2] + 1].sum() == 0
        else:
            assert one.supervised[len(prompt) :].all()
            assert len(one.tokens) - len(prompt) <= 6
    assert 0 < two_turns < len(store)


def test_all_questions_are_there_once_and_some_are_sampled(store):
    assert sorted(ids_of(store)) == sorted(q.question_id for q in training_prompts(12, 0))
    assert {shard["sampled"] for shard in store.index["shards"]} == {True, False}


def interrupt(monkeypatch, num_shards, folder, *overrides):
    """A capture that ends like a kill: while the shard after `num_shards` is written."""
    add_shard = StoreWriter.add_shard

    def stop(writer, conversations, **facts):
        if writer.num_shards == num_shards:
            torn = writer.folder / "shards" / f"{num_shards:05d}.safetensors.partial"
            torn.write_bytes(b"torn")
            raise KeyboardInterrupt
        add_shard(writer, conversations, **facts)

    with monkeypatch.context() as patch:
        patch.setattr(StoreWriter, "add_shard", stop)
        with pytest.raises(KeyboardInterrupt):
            captured(folder, *overrides)


@pytest.mark.parametrize("num_shards", [0, 1, 3])
def test_killed_and_restarted_it_ends_with_the_same_bytes(store, tmp_path, monkeypatch, num_shards):
    folder = tmp_path / "killed"
    interrupt(monkeypatch, num_shards, folder, "data.feature_dtype=float32")
    assert len(list((folder / "shards").glob("*.safetensors"))) == num_shards
    with pytest.raises(UserError, match="killed"):
        FeatureStore.open(folder)
    resumed = captured(folder, "data.feature_dtype=float32")
    assert len(resumed.index["shards"]) == len(store.index["shards"]) > 3
    for shard in store.index["shards"]:
        assert (folder / shard["file"]).read_bytes() == (store.folder / shard["file"]).read_bytes()
    differing = {key for key in store.index if store.index[key] != resumed.index[key]}
    assert differing <= {"provenance"}
    assert not list(folder.rglob("*.partial"))


def test_a_kill_between_the_index_and_the_end_of_the_run_is_made_good(tmp_path, monkeypatch):
    def stop(*_args, **_kwargs):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "finish", stop)
        with pytest.raises(KeyboardInterrupt):
            captured(tmp_path / "run")
    captured(tmp_path / "run")
    record = json.loads((tmp_path / "run" / "provenance.json").read_text())
    assert record["status"] == "finished"


def test_a_finished_capture_is_left_alone(tmp_path):
    first = captured(tmp_path / "run")
    index = (first.folder / "index.json").read_bytes()
    captured(tmp_path / "run")
    assert (first.folder / "index.json").read_bytes() == index


def test_another_target_under_the_same_name_starts_no_mixed_store(tmp_path, monkeypatch):
    """Settings are the same, weights are not: the store is refused and nothing is touched."""
    folder = tmp_path / "run"
    interrupt(monkeypatch, 1, folder)
    monkeypatch.setattr(
        load, "tiny_random", lambda name, tied_head: tiny_random(name, tied_head=tied_head, seed=1)
    )
    with pytest.raises(UserError, match="target"):
        captured(folder)


@pytest.mark.parametrize(
    "change", ["target.architecture=qwen3", "data.features=[top,fused]", "data.temperature=0.7"]
)
def test_other_settings_in_the_same_folder_are_refused_by_name(tmp_path, monkeypatch, change):
    folder = tmp_path / "run"
    interrupt(monkeypatch, 1, folder)
    with pytest.raises(UserError, match=change.partition("=")[0]):
        captured(folder, change)
    assert len(captured(folder, change, "overwrite=true")) == 12


def test_it_ends_after_the_batch_that_reaches_the_number_of_tokens(tmp_path):
    store = captured(tmp_path / "run", "data.num_prompts=null", "data.num_tokens=60")
    numbers = [shard["num_supervised"] for shard in store.index["shards"]]
    assert sum(numbers[:-1]) < 60 <= sum(numbers)


def test_it_asks_for_no_batch_that_it_does_not_need(tmp_path):
    """A batch may cost much to plan, when its prompts are yet to be written."""

    def batches():
        yield Batch(("first",))
        raise AssertionError("asked for a second batch")

    class Writer:
        num_shards, num_supervised = 0, 0

        def add_shard(self, conversations, *, sampled):
            self.num_supervised += len(conversations)

    capture(lambda batch, on_tokens: ["answer"], batches(), Writer(), max_tokens=1)


def test_an_unfinished_capture_may_end_earlier_and_is_then_whole(tmp_path, monkeypatch, store):
    folder = tmp_path / "run"
    interrupt(monkeypatch, 2, folder)
    ended = captured(folder, "data.num_tokens=1")
    assert len(ended.index["shards"]) == 2
    assert ids_of(ended) == ids_of(store)[: len(ended)]
    assert OmegaConf.load(folder / "config.yaml").data.num_tokens == 1
    with pytest.raises(UserError, match=r"data\.num_tokens"):
        captured(folder)


def test_greedy_alone(tmp_path):
    store = captured(tmp_path / "run", "data.sampled_share=0", "data.temperature=0")
    assert not any(shard["sampled"] for shard in store.index["shards"])


def test_a_question_has_the_same_answer_in_any_batch(store, tmp_path):
    """Uniforms belong to the question, so sampled text, too, ignores its neighbours."""
    other = captured(tmp_path / "run", "data.batch_size=7")
    answers = {one.conversation_id: one.tokens.tolist() for one in store}
    assert {one.conversation_id: one.tokens.tolist() for one in other} == answers


def test_features_captured_anew_from_the_answers(store, tmp_path):
    """Equal tokens and masks, equal features up to the order of sums."""
    again = captured(
        tmp_path / "again",
        f"data.answers={store.folder / ANSWERS}",
        "data.num_prompts=null",
        "data.feature_dtype=float32",
        "data.batch_size=5",
    )
    first = {one.conversation_id: one for one in store}
    assert len(again) == len(first)
    for one in again:
        before = first[one.conversation_id]
        assert torch.equal(one.tokens, before.tokens)
        assert torch.equal(one.supervised, before.supervised)
        torch.testing.assert_close(
            one.features["top"], before.features["top"], atol=1e-4, rtol=1e-4
        )


def test_answers_are_small(store):
    """Two bytes a token and a header, against 4 x 48 for the features."""
    content = (store.folder / ANSWERS).read_bytes()
    header = 8 + int.from_bytes(content[:8], "little")
    assert len(content) - header < 3 * store.index["num_tokens"]


def test_written_chats_are_captured_as_they_are(tmp_path, target):
    chats = tmp_path / "chats.jsonl"
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello you"}]
    rows = [{"messages": messages}, {"messages": messages[:1]}]
    chats.write_text("".join(json.dumps(row) + "\n" for row in rows))
    store = captured(tmp_path / "run", f"data.answers={chats}", "data.num_prompts=null")
    assert len(store) == 1
    assert store.index["num_skipped"] == 1
    assert target.tokenizer.decode(store[0].tokens[store[0].supervised]) == "Hello you<|im_end|>"


def questions_file(path, lengths, turns=1):
    rows = [
        {"question_id": i, "category": "a", "turns": ["x" * length] * turns}
        for i, length in enumerate(lengths)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_prompts_that_do_not_fit_are_skipped_and_counted(tmp_path):
    path = questions_file(tmp_path / "questions.jsonl", [50, 3000, 20])
    store = captured(tmp_path / "run", f"data.prompts={path}", "data.num_prompts=null")
    assert ids_of(store) == ["2", "0"]
    assert store.index["num_skipped"] == 1


def test_no_prompt_fits(tmp_path):
    path = questions_file(tmp_path / "questions.jsonl", [3000])
    with pytest.raises(UserError, match="2048"):
        captured(tmp_path / "run", f"data.prompts={path}", "data.num_prompts=null")


def test_a_conversation_ends_before_a_turn_that_does_not_fit(tmp_path):
    """Two turns of 1200 bytes: the second does not fit 2048, the first is kept with features."""
    path = questions_file(tmp_path / "questions.jsonl", [1200, 30], turns=2)
    store = captured(
        tmp_path / "run",
        f"data.prompts={path}",
        "data.num_prompts=null",
        "data.feature_dtype=float32",
        "data.sampled_share=0",
    )
    by_id = {one.conversation_id: one for one in store}
    assert len(by_id["0"].tokens) < 1300
    assert (by_id["1"].supervised.int().diff() == 1).sum() == 2
    states = plain_states(by_id["0"].tokens).hidden_states[-1][0]
    torch.testing.assert_close(by_id["0"].features["top"], states[:-1], atol=1e-4, rtol=1e-4)


def test_a_disk_that_is_too_small_is_seen_before_anything_runs(tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**6, 10**6 - 1000, 1000))
    with pytest.raises(UserError, match=r"1\.0 kB"):
        captured(tmp_path / "run")
    assert not list((tmp_path / "run").rglob("*.safetensors"))


def test_the_estimate_of_the_disk_is_an_upper_bound(store, tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(
        "eagle_lab.tasks.capture.check_disk", lambda folder, needed: seen.append(needed)
    )
    run_store = captured(tmp_path / "run", "data.feature_dtype=float32")
    size = sum(path.stat().st_size for path in (run_store.folder / "shards").iterdir())
    assert size < seen[0] < 3 * size


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("data.max_new_tokens=0", r"data\.max_new_tokens=0"),
        ("data.sampled_share=1.5", r"data\.sampled_share=1\.5"),
        ("data.temperature=0", r"data\.temperature"),
        ("data.batch_size=0", r"data\.batch_size=0"),
        ("data.num_prompts=0", r"data\.num_prompts=0"),
        ("data.num_tokens=0", r"data\.num_tokens=0"),
        ("data.num_prompts=null", r"data\.num_tokens"),
        ("data.feature_dtype=float8", "'float32'"),
        ("data.prompts=bench8", "'bench80'"),
        ("data.answers=/no/such", "/no/such"),
    ],
)
def test_a_wrong_value_is_named(tmp_path, override, named):
    with pytest.raises(UserError, match=named):
        captured(tmp_path / "run", override)


def self_writing(target, seed, after):
    """In place of the target's own prompts."""
    for number in range(len(after), 10**6):
        yield Question(f"self-{seed}-{number}", "self_written", (f"Write about {number}.",))


def test_prompts_the_target_writes_itself_are_kept_in_the_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(capture_task, "self_written_prompts", self_writing)
    folder = tmp_path / "run"
    overrides = ["data.prompts=self_written", "data.num_prompts=9"]
    interrupt(monkeypatch, 1, folder, *overrides)
    store = captured(folder, *overrides)
    rows = [json.loads(line) for line in (folder / "prompts.jsonl").read_text().splitlines()]
    assert sorted(ids_of(store)) == sorted(row["question_id"] for row in rows)
    assert len(rows) == 9


def test_the_first_shard_waits_for_few_prompts_that_the_target_writes(tmp_path, monkeypatch):
    """Those of one batch, or the 64 from which the size of the store is estimated."""
    monkeypatch.setattr(capture_task, "self_written_prompts", self_writing)
    folder = tmp_path / "run"
    overrides = ["data.prompts=self_written", "data.num_prompts=400", "data.batch_size=40"]
    interrupt(monkeypatch, 0, folder, *overrides)
    assert len((folder / "prompts.jsonl.partial").read_text().splitlines()) == 64
