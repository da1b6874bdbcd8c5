"""Targets by name: what loads, and the one line that says why something does not."""

import json
import subprocess
import sys

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


@pytest.fixture
def offline(monkeypatch):
    """The hub cannot be reached and holds nothing in its cache."""

    def fail(*_args, **_kwargs):
        raise OSError("We couldn't connect to the hub\nand found nothing in the cache.")

    monkeypatch.setattr("transformers.AutoConfig.from_pretrained", fail)


@pytest.mark.parametrize("as_path", [False, True])
def test_a_saved_model_scores_like_the_one_in_memory(folder, as_path):
    named = {"name": "hf", "path": folder} if as_path else {"name": str(folder)}
    loaded = load_target(**named, device="cpu")
    reference, _ = tiny_random("qwen3", tied_head=True)
    prompt = list(range(40, 60))
    scores = loaded.prefill([prompt], loaded.new_cache(1))
    expected = reference(torch.tensor([prompt])).logits[0, -1]
    torch.testing.assert_close(scores.logits[0, 0], expected, atol=1e-4, rtol=1e-4)
    assert loaded.name == "tiny-qwen"
    assert loaded.eos_ids == {2}
    assert loaded.context_length == 2048
    assert loaded.tokenizer.chat_template


def test_dtype_layers_and_threads():
    before = torch.get_num_threads()
    try:
        target = load_target(
            "tiny_random", device="cpu", dtype="bfloat16", feature_layers=[2, 4], threads=1
        )
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)
    assert target.dtype == torch.bfloat16
    assert target.feature_width == 2 * target.hidden_size
    assert target.name == "tiny_random"


def test_the_same_weights_have_one_fingerprint_in_any_precision(folder):
    half = load_target(str(folder), device="cpu", dtype="bfloat16").fingerprint
    assert load_target(str(folder), device="cpu").fingerprint == half
    assert load_target("tiny_random", device="cpu", architecture="qwen3").fingerprint != half


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ({"name": "smolm2_135m"}, "Did you mean 'smollm2_135m'"),
        ({"name": "tiny_randm"}, "Did you mean 'tiny_random'"),
        ({"name": "./no/such/folder"}, "no model folder at './no/such/folder'"),
        ({"name": "a/b/c"}, "no model folder at 'a/b/c'"),
        ({"name": "tiny_random", "dtype": "float23"}, "Did you mean 'float32'"),
        (
            {"name": "tiny_random", "device": "gpu"},
            "unknown device 'gpu'; allowed: auto, cpu, cuda",
        ),
        ({"name": "tiny_random", "threads": 0}, "threads=0"),
        ({"name": "tiny_random", "architecture": "llama4"}, "Did you mean 'llama'"),
        ({"name": "tiny_random", "feature_layers": [4, 2]}, "strictly increasing"),
    ],
)
def test_a_wrong_value_is_named(arguments, line):
    with pytest.raises(UserError) as error:
        load_target(**arguments)
    assert line in str(error.value)
    assert "\n" not in str(error.value)


def test_cuda_that_is_not_there(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("auto") == torch.device("cpu")
    with pytest.raises(UserError, match="device=cuda, but torch finds no CUDA device"):
        choose_device("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert choose_device("auto") == choose_device("cuda") == torch.device("cuda")
    assert choose_device("cpu") == torch.device("cpu")


def test_a_folder_that_is_no_model(tmp_path):
    with pytest.raises(UserError, match=r"is no model folder: it has no config\.json"):
        load_target(str(tmp_path))


def test_only_safetensors_are_read(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"no safetensors weights \(found: pytorch_model\.bin\)"):
        load_target(str(folder))


def test_damaged_weights(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(UserError, match="cannot be loaded as a model with tokenizer"):
        load_target(str(folder), device="cpu")


def test_no_tokenizer(folder):
    for path in folder.glob("tokenizer*"):
        path.unlink()
    with pytest.raises(UserError, match="has no tokenizer that knows words"):
        load_target(str(folder), device="cpu")


def change_config(folder, **changes):
    path = folder / "config.json"
    config = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))


def test_a_model_that_is_not_causal(folder):
    path = folder / "config.json"
    path.write_text(json.dumps({"model_type": "vit"}))
    with pytest.raises(UserError, match="cannot be|no causal language model|how long its context"):
        load_target(str(folder), device="cpu")
    path.write_text(json.dumps({"model_type": "t5"}))
    with pytest.raises(UserError, match="encoder-decoder"):
        load_target(str(folder), device="cpu")


def test_an_unknown_architecture(folder):
    change_config(folder, model_type="no_such_model")
    with pytest.raises(UserError, match="no causal language model that this transformers"):
        load_target(str(folder), device="cpu")


def test_code_that_comes_with_a_model_needs_permission(folder):
    change_config(folder, model_type="own", auto_map={"AutoConfig": "own.OwnConfig"})
    (folder / "own.py").write_text("raise RuntimeError('was run')")
    with pytest.raises(UserError, match=r"allow it with target\.trust_remote_code=true"):
        load_target(str(folder), device="cpu")


def test_an_unknown_context_length(folder, monkeypatch):
    class Config:
        def get_text_config(self):
            return self

    monkeypatch.setattr("transformers.AutoConfig.from_pretrained", lambda *_, **__: Config())
    with pytest.raises(UserError, match="does not say how long its context is"):
        load_target(str(folder))


@pytest.mark.usefixtures("offline")
def test_a_hub_model_without_network():
    with pytest.raises(UserError, match="could not get 'someone/model' from the hub") as error:
        load_target("someone/model")
    assert "\n" not in str(error.value)


def test_the_default_target_comes_from_its_own_loader(folder, monkeypatch):
    monkeypatch.setattr(load, "smollm2_folder", lambda: folder)
    assert load_target("smollm2_135m", device="cpu").name == "SmolLM2-135M-Instruct"


@pytest.mark.parametrize(
    ("asked", "device", "wanted"),
    [(None, "cpu", False), (False, "cuda", False), (None, "cuda", True), (True, "cuda", True)],
)
def test_graphs_are_captured_where_there_is_a_gpu(asked, device, wanted):
    assert wants_graphs(asked, torch.device(device)) is wanted


def test_graphs_asked_for_on_a_cpu_are_refused():
    with pytest.raises(UserError, match="need a GPU"):
        load_target("tiny_random", device="cpu", graphs=True)


def test_the_kernels_leave_torch_its_threads() -> None:
    """Numba's start gives OpenMP all cores, and torch counts by OpenMP."""
    code = (
        "import torch\n"
        "from eagle_lab.targets.load import load_target\n"
        "target = load_target('tiny_random', device='cpu', threads=1, fast_layers=True)\n"
        "target.extend(torch.ones(1, 3).long(), torch.tensor([3]), target.new_cache(1))\n"
        "print(torch.get_num_threads())\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300
    )
    assert run.stdout.strip() == "1"
