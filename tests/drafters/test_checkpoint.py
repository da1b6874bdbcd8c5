"""The drafter folder: what is in it, strict loading, and which target it fits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from eagle_lab.drafters.checkpoint import load_drafter, save_drafter
from eagle_lab.drafters.eagle1.network import Eagle1
from eagle_lab.drafters.folder import read_config
from eagle_lab.errors import UserError
from tests.drafters.fakes import FakeTarget, causal_attend, eagle1

KEPT = torch.tensor([0, 3, 7, 8])


@pytest.fixture
def saved(tmp_path: Path) -> tuple[Eagle1, Path]:
    target = FakeTarget()
    drafter = eagle1(target, KEPT, inner_norm=True)
    folder = save_drafter(
        drafter, tmp_path / "drafter", target=target, training_summary={"epochs": 3}
    )
    return drafter, folder


def test_a_saved_drafter_computes_the_same(saved: tuple[Eagle1, Path]) -> None:
    drafter, folder = saved
    loaded, matches = load_drafter(folder, FakeTarget())
    assert matches and not loaded.training
    inputs = torch.tensor([[3, 1]]), torch.randn(1, 2, 16), torch.arange(2)[None]
    hidden = drafter(*inputs, causal_attend)
    torch.testing.assert_close(loaded(*inputs, causal_attend), hidden, rtol=0, atol=0)
    torch.testing.assert_close(loaded.logits(hidden), drafter.logits(hidden), rtol=0, atol=0)


def test_the_folder_holds_drafter_tensors_only(saved: tuple[Eagle1, Path]) -> None:
    drafter, folder = saved
    assert sorted(file.name for file in folder.iterdir()) == ["config.json", "model.safetensors"]
    assert len({file.stat().st_mode for file in folder.iterdir()}) == 1  # who may read one, both
    state = load_file(folder / "model.safetensors")
    assert set(state) == set(drafter.state_dict())
    assert state["d2t"].tolist() == [0, 2, 5, 5]
    described = json.loads((folder / "config.json").read_text())
    assert described["kind"] == "eagle1"
    assert described["dimensions"]["rope_parameters"]["rope_theta"] == 5e6
    assert described["switches"] == {"inner_norm": True, "draft_vocab_size": 4, "fc_bias": False}
    assert described["target"] == {"name": "fake", "fingerprint": "fake-0"}
    assert read_config(folder)["training"] == {"epochs": 3}


def test_half_precision_is_only_for_floats(saved: tuple[Eagle1, Path], tmp_path: Path) -> None:
    drafter, _ = saved
    folder = save_drafter(
        drafter, tmp_path / "half", target=FakeTarget(), training_summary={}, dtype=torch.float16
    )
    state = load_file(folder / "model.safetensors")
    assert state["fc.weight"].dtype == torch.float16 and state["d2t"].dtype == torch.int64
    assert load_drafter(folder, FakeTarget())[0].fc.weight.dtype == torch.float32


def test_saving_again_replaces_the_folder(saved: tuple[Eagle1, Path]) -> None:
    drafter, folder = saved
    save_drafter(drafter, folder, target=FakeTarget(), training_summary={"epochs": 4})
    assert read_config(folder)["training"] == {"epochs": 4}
    assert [file.name for file in folder.parent.iterdir()] == ["drafter"]


def test_other_shapes_are_an_error_naming_both(saved: tuple[Eagle1, Path]) -> None:
    with pytest.raises(UserError, match="16.*20"):
        load_drafter(saved[1], FakeTarget(hidden_size=20))
    with pytest.raises(UserError, match="12.*13"):
        load_drafter(saved[1], FakeTarget(vocab_size=13))


def test_rounded_weights_are_the_nearest_half_precision_has(saved: tuple[Eagle1, Path]) -> None:
    drafter, folder = saved
    rounded, _ = load_drafter(folder, FakeTarget(), rounded=True)
    for ours, exact in zip(rounded.parameters(), drafter.parameters(), strict=True):
        assert torch.equal(ours, exact.bfloat16().float())
    assert rounded.attached is not None and drafter.attached is not None
    head = drafter.attached.head_weight
    assert torch.equal(rounded.attached.head_weight, head.bfloat16().float())
    rounded.to(torch.float32)  # the head is taken anew, and rounded once more
    assert torch.equal(rounded.attached.head_weight, head.bfloat16().float())


def test_another_fingerprint_of_the_same_shapes_warns(saved: tuple[Eagle1, Path]) -> None:
    with pytest.warns(UserWarning, match="fake-0.*fake-1"):
        _, matches = load_drafter(saved[1], FakeTarget(fingerprint="fake-1"))
    assert not matches


def test_what_is_no_drafter_folder_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(UserError, match=path.name):
            load_drafter(path, FakeTarget())


def test_damage_is_named(saved: tuple[Eagle1, Path]) -> None:
    weights, config = saved[1] / "model.safetensors", saved[1] / "config.json"
    good = load_file(weights)
    fewer = {name: tensor for name, tensor in good.items() if name != "fc.weight"}
    extra = {**good, "lm_head.weight": torch.zeros(2)}
    reshaped = {**good, "fc.weight": torch.zeros(3, 3)}
    for state, name in ((fewer, "fc.weight"), (extra, "lm_head.weight"), (reshaped, "fc.weight")):
        save_file(state, weights)
        with pytest.raises(UserError, match=name):
            load_drafter(saved[1], FakeTarget())
    weights.write_bytes(weights.read_bytes()[:100])
    with pytest.raises(UserError, match=r"model\.safetensors"):
        load_drafter(saved[1], FakeTarget())
    described = json.loads(config.read_text())
    config.write_text(json.dumps({**described, "kind": "eagle"}))
    with pytest.raises(UserError, match="'eagle'.*'eagle1'"):
        load_drafter(saved[1], FakeTarget())
    for path in ("nowhere.Toy", "json.JSONDecoder"):  # not there; no drafter
        config.write_text(json.dumps({**described, "class": path}))
        with pytest.raises(UserError, match=path):
            load_drafter(saved[1], FakeTarget())
    del described["dimensions"]["head_dim"]
    config.write_text(json.dumps(described))
    with pytest.raises(UserError, match="head_dim"):
        load_drafter(saved[1], FakeTarget())
    config.write_text("{}")
    with pytest.raises(UserError, match=r"config\.json.*'kind'"):
        load_drafter(saved[1], FakeTarget())
    config.write_text("{")
    with pytest.raises(UserError, match=r"config\.json"):
        load_drafter(saved[1], FakeTarget())
