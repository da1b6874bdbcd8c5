"""The GGUF file holds the target; without the package the method says what it lacks."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from eagle_lab.bench.peers.llama_cpp import LlamaCpp, gguf_of, write_gguf
from eagle_lab.engine.loop import decode
from eagle_lab.errors import Infeasible, Missing, UserError
from eagle_lab.methods.vanilla import Vanilla
from eagle_lab.targets.target import Target
from eagle_lab.targets.tiny import tiny_random

PROMPTS = [[40, 41, 42], [60, 61, 62, 63, 60, 61], [7]]
INSTALLED = importlib.util.find_spec("llama_cpp") is not None


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EAGLE_LAB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.parametrize("tied_head", [False, True])
def test_what_is_written_is_read_back_by_transformers(cache: Path, tied_head: bool) -> None:
    """Its reader turns names and the order of rotary dimensions back by code of its own."""
    target = Target(*tiny_random("llama", tied_head=tied_head))
    path = gguf_of(target)
    assert path.parent == cache
    read = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name)
    ours, theirs = target.model.state_dict(), read.state_dict()
    assert set(ours) == set(theirs)
    for name, weight in ours.items():
        torch.testing.assert_close(theirs[name], weight, atol=0, rtol=0, msg=name)
    config = read.config
    for key in (
        "num_key_value_heads",
        "rms_norm_eps",
        "vocab_size",
        "intermediate_size",
        "head_dim",
    ):
        assert getattr(config, key) == pytest.approx(getattr(target.config, key))
    assert config.rope_parameters["rope_theta"] == target.config.rope_parameters["rope_theta"]


def test_the_file_is_written_once(cache: Path) -> None:
    target = Target(*tiny_random("llama"))
    written = gguf_of(target).stat().st_mtime_ns
    assert gguf_of(target).stat().st_mtime_ns == written
    assert [path.suffix for path in cache.iterdir()] == [".gguf"]


def test_other_architectures_need_a_file_of_their_own(tmp_path: Path) -> None:
    with pytest.raises(Infeasible, match=r"type gemma2.*method\.llama_cpp\.path=FILE"):
        write_gguf(Target(*tiny_random("gemma2")), tmp_path / "x.gguf")


@pytest.mark.skipif(INSTALLED, reason="llama-cpp-python is installed")
def test_without_the_package_it_is_missing() -> None:
    with pytest.raises(Missing, match="pip install llama-cpp-python"):
        LlamaCpp(Target(*tiny_random("llama")))


@pytest.mark.skipif(not INSTALLED, reason="llama-cpp-python is not installed")
def test_greedy_equals_vanilla() -> None:
    target = Target(*tiny_random("llama"))
    rows = LlamaCpp(target).generate(PROMPTS, max_new_tokens=16)
    expected = decode(target, Vanilla(), PROMPTS, max_new_tokens=16)
    assert [row.tokens for row in rows] == [row.tokens for row in expected]
    assert {tuple(row.emitted_lengths) for row in rows} == {(1,) * 15}


@pytest.mark.skipif(not INSTALLED, reason="llama-cpp-python is not installed")
def test_what_it_cannot_load_or_hold_is_named(tmp_path: Path) -> None:
    target = Target(*tiny_random("llama"))
    with pytest.raises(UserError, match=r"method\.llama_cpp\.path=/nowhere"):
        LlamaCpp(target, path="/nowhere/x.gguf")
    (tmp_path / "x.gguf").write_bytes(b"no model")
    with pytest.raises(UserError, match="llama.cpp cannot load"):
        LlamaCpp(target, path=str(tmp_path / "x.gguf"))
    short = LlamaCpp(target, context_length=8)
    assert short.context_length == 8  # what a bench looks at before it runs
    with pytest.raises(UserError, match=r"context_length=8"):
        short.generate([[5]], max_new_tokens=8)
