"""Targets by name: what loads, and one line that names what does not."""

import json

import pytest
import torch

from eagle_lab.errors import UserError
from eagle_lab.targets import load
from eagle_lab.targets.load import choose_device, load_target, wants_graphs
from eagle_lab.targets.tiny import tiny_random


@pytest.fixture
def folder(tmp_path):
    """A tiny model saved as any Hugging Face model is."""
    model, tokenizer = tiny_random("qwen3", tied_head=True)
    model.save_pretrained(tmp_path / "tiny-qwen")
    tokenizer.save_pretrained(tmp_path / "tiny-qwen")
    return tmp_path / "tiny-qwen"


@pytest.mark.parametrize("as_path", [False, True])
def test_a_saved_model_scores_like_the_one_in_memory(folder, as_path):
    arguments = {"name": "hf", "path": folder} if as_path else {"name": str(folder)}
    loaded = load_target(**arguments, device="cpu")
    reference, _ = tiny_random("qwen3", tied_head=True)
    prompt = list(range(40, 60))
    scores = loaded.prefill([prompt], loaded.new_cache(1))
    expected = reference(torch.tensor([prompt])).logits[0, -1]
    torch.testing.assert_close(scores.logits[0, 0], expected, atol=1e-4, rtol=1e-4)
    assert (loaded.name, loaded.eos_ids, loaded.context_length) == ("tiny-qwen", {2}, 2048)
    assert loaded.tokenizer.chat_template


def test_dtype_and_threads():
    before = torch.get_num_threads()
    try:
        target = load_target("tiny_random", device="cpu", dtype="bfloat16", threads=1)
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)
    assert (target.dtype, target.name) == (torch.bfloat16, "tiny_random")


def test_the_default_target_comes_from_its_own_loader(folder, monkeypatch):
    monkeypatch.setattr(load, "smollm2_folder", lambda: folder)
    assert load_target("smollm2_135m", device="cpu").name == "SmolLM2-135M-Instruct"


def refusal(**arguments) -> str:
    """The one line that says why a target is not loaded."""
    with pytest.raises(UserError) as error:
        load_target(**arguments)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(
    ("arguments", "value", "nearest"),
    [
        ({"name": "smolm2_135m"}, "smolm2_135m", "smollm2_135m"),
        ({"name": "tiny_randm"}, "tiny_randm", "tiny_random"),
        ({"name": "./no/such/folder"}, "./no/such/folder", ""),
        ({"name": "a/b/c"}, "a/b/c", ""),
        ({"name": "tiny_random", "dtype": "float23"}, "float23", "float32"),
        ({"name": "tiny_random", "device": "gpu"}, "gpu", "cpu"),
        ({"name": "tiny_random", "attention": "flash"}, "flash", "split"),
        ({"name": "tiny_random", "threads": 0}, "threads=0", ""),
        ({"name": "tiny_random", "architecture": "llama4"}, "llama4", "llama"),
        ({"name": "tiny_random", "device": "cpu", "graphs": True}, "graphs=true", "auto"),
    ],
)
def test_a_wrong_value_is_named_with_the_nearest_right_one(arguments, value, nearest):
    line = refusal(**arguments)
    assert value in line and nearest in line.replace(value, "")


def change_config(folder, **changes):
    path = folder / "config.json"
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))


def need_own_code(folder):
    change_config(folder, model_type="own", auto_map={"AutoConfig": "own.OwnConfig"})
    (folder / "own.py").write_text("raise RuntimeError('was run')")


def cut_weights(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:200])


DAMAGES = {
    "config.json": lambda folder: (folder / "config.json").unlink(),
    "pytorch_model.bin": lambda folder: (folder / "model.safetensors").rename(
        folder / "pytorch_model.bin"
    ),
    "tiny-qwen": cut_weights,
    "tokenizer": lambda folder: [path.unlink() for path in folder.glob("tokenizer*")],
    "causal": lambda folder: change_config(folder, model_type="no_such_model"),
    "encoder-decoder": lambda folder: (folder / "config.json").write_text('{"model_type": "t5"}'),
    "max_position_embeddings": lambda folder: (folder / "config.json").write_text(
        '{"model_type": "vit"}'
    ),
    "trust_remote_code=true": need_own_code,
}


@pytest.mark.parametrize("missing", DAMAGES)
def test_a_folder_that_is_no_target_is_named_with_what_it_lacks(folder, missing):
    DAMAGES[missing](folder)
    line = refusal(name=str(folder), device="cpu")
    assert str(folder) in line
    assert missing in line


def test_a_hub_model_without_network_is_named(monkeypatch):
    def fail(*_args, **_kwargs):
        raise OSError("We couldn't connect to the hub\nand found nothing in the cache.")

    monkeypatch.setattr("transformers.AutoConfig.from_pretrained", fail)
    assert "someone/model" in refusal(name="someone/model")


def test_cuda_is_taken_where_it_is(monkeypatch):
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("auto") == cpu
    with pytest.raises(UserError, match="device=cuda"):
        choose_device("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert [choose_device(name) for name in ("auto", "cuda", "cpu")] == [cuda, cuda, cpu]
    graphs = [wants_graphs(graphs, cuda) for graphs in (None, True, False)]
    assert graphs == [True, True, False]
    assert [wants_graphs(graphs, cpu) for graphs in (None, False)] == [False, False]
