"""`+experiment=train` from a captured store to a drafter folder, on a random target."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from eagle_lab.config import compose, settings_of
from eagle_lab.data.store import FeatureStore
from eagle_lab.drafters.checkpoint import load_drafter
from eagle_lab.errors import UserError
from eagle_lab.runs import terminal
from eagle_lab.runs.folder import RunFolder
from eagle_lab.targets.load import load_target
from eagle_lab.targets.target import Target
from eagle_lab.tasks import train
from tests.tasks.stores import store_of

SMALL = [
    "+experiment=train",
    "target=tiny_random",
    "device=cpu",
    "trainer.max_epochs=2",
    "trainer.batch_tokens=60",
    "trainer.val_fraction=0.2",
    "trainer.warmup_steps=2",
    "trainer.log_every_steps=2",
    "drafter.draft_vocab_size=40",
]


@pytest.fixture(scope="module")
def target() -> Target:
    return load_target("tiny_random", device="cpu")


@pytest.fixture(scope="module")
def store(target: Target, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return store_of(target, tmp_path_factory.mktemp("store"))


def overrides(store: Path, output_dir: Path, *more: str) -> list[str]:
    return [*SMALL, f"data.store={store}", f"output_dir={output_dir}", *more]


def test_the_task_leaves_a_drafter_and_its_curve(
    store: Path, target: Target, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    with terminal.messages_shown():  # as the command line does
        train.run(compose(overrides(store, out)))
    drafter, matches = load_drafter(out / "drafter", target)
    assert matches
    assert drafter.config.draft_vocab_size == 40
    described = json.loads((out / "drafter" / "config.json").read_text())
    summary = json.loads((out / "summary.json").read_text())
    assert described["training"] == summary
    assert summary["start"] == "least squares"
    assert summary["draft_vocabulary"]["size"] == 40
    assert 0 < summary["draft_vocabulary"]["coverage"] <= 1
    card = (out / "drafter" / "README.md").read_text()
    assert described["target"]["fingerprint"] in card
    assert f"{summary['validation']['val_tau']:.3f}" in card
    assert summary["data"]["num_conversations"] == 12
    with (out / "summary.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["epoch"]) for row in rows] == [0, 0, 1]
    assert rows[0]["step"] == "0"  # the start, before any step
    assert max(float(row["val_tau"]) for row in rows[1:]) == summary["validation"]["val_tau"]
    with (out / "training_curve.csv").open() as file:
        curve = list(csv.DictReader(file))
    assert {row["loss"] != "" for row in curve} == {True, False}  # steps and validations
    said = capsys.readouterr().out
    assert "12 conversations" in said
    assert "tokens/s" in said
    # The same command again has nothing to do
    before = (out / "drafter" / "model.safetensors").stat().st_mtime_ns
    train.run(compose(overrides(store, out)))
    assert (out / "drafter" / "model.safetensors").stat().st_mtime_ns == before

    # A warm start keeps switches and vocabulary of the drafter it starts from
    warm = tmp_path / "warm"
    train.run(
        compose(
            overrides(
                store,
                warm,
                f"trainer.init_from={out / 'drafter'}",
                "drafter.inner_norm=false",
                "trainer.max_epochs=1",
                "trainer.ttt_steps=2",
                "trainer.save_precision=float16",
            )
        )
    )
    with safe_open(warm / "drafter" / "model.safetensors", framework="pt") as file:
        assert file.get_tensor("fc.weight").dtype == torch.float16
    again, _ = load_drafter(warm / "drafter", target)
    assert again.config == drafter.config
    assert again.d2t is not None and drafter.d2t is not None
    assert torch.equal(again.d2t, drafter.d2t)
    # … and its folder tells of both runs
    second = json.loads((warm / "drafter" / "config.json").read_text())["training"]
    assert second["earlier_stages"] == [summary]
    assert second["start"] == "the stage before"
    assert second["recipe"]["ttt_steps"] == 2
    assert str(tmp_path) not in (warm / "drafter" / "config.json").read_text()
    assert "| setting | stage 1 | stage 2 |" in (warm / "drafter" / "README.md").read_text()

    # A third run, of whole texts, makes a chain of three
    third = tmp_path / "third"
    more = (f"trainer.init_from={warm / 'drafter'}", "trainer.supervise=all")
    train.run(compose(overrides(store, third, *more)))
    stages = json.loads((third / "summary.json").read_text())["earlier_stages"]
    assert [stage["recipe"]["ttt_steps"] for stage in stages] == [1, 2]
    assert "earlier_stages" not in stages[1]


def test_an_interrupted_task_goes_on_to_the_same_drafter(
    store: Path, target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    straight, resumed = tmp_path / "straight", tmp_path / "resumed"
    train.run(compose(overrides(store, straight)))
    write_curve: Callable[..., None] = train.write_curve

    def interrupted(folder: RunFolder, train_rows: list[Any], val_rows: list[Any]) -> None:
        import signal

        write_curve(folder, train_rows, val_rows)
        if train_rows and train_rows[-1]["step"] == 6:
            signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(train, "write_curve", interrupted)
        with pytest.raises(KeyboardInterrupt):
            train.run(compose(overrides(store, resumed)))
    assert not (resumed / "drafter").exists()
    train.run(compose(overrides(store, resumed)))
    weights = "drafter/model.safetensors"
    assert (resumed / weights).read_bytes() == (straight / weights).read_bytes()


def test_bad_input_is_one_line(store: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="data.store is not set"):
        train.run(compose([*SMALL, f"output_dir={tmp_path / 'a'}"]))
    with pytest.raises(UserError, match="fingerprint"):
        train.run(compose(overrides(store, tmp_path / "b", "target.architecture=qwen3")))
    with pytest.raises(UserError, match="not a drafter folder"):
        train.run(compose(overrides(store, tmp_path / "c", f"trainer.init_from={tmp_path}")))
    with pytest.raises(UserError, match="schedule 'cosin'.*Did you mean 'cosine'"):
        train.run(compose(overrides(store, tmp_path / "d", "trainer.schedule=cosin")))


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("drafter.kind=eagle9", "unknown drafter.kind 'eagle9'"),
        ("trainer.max_minutes=0", "trainer.max_minutes=0.0; allowed: above 0"),
        ("trainer.batch_tokens=0", "trainer.batch_tokens=0"),
        ("trainer.save_precision=int3", "trainer.save_precision 'int3'"),
    ],
)
def test_values_are_checked_before_a_target_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, override: str, words: str
) -> None:
    def load(_: object) -> Target:
        raise AssertionError("a target was loaded")

    monkeypatch.setattr(train, "target_from", load)
    with pytest.raises(UserError, match=words):
        train.run(compose([*overrides(tmp_path / "store", tmp_path / "run"), override]))
    assert not (tmp_path / "run").exists()


def test_a_mistake_does_not_cost_the_run_it_would_replace(store: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    train.run(compose(overrides(store, folder)))
    with pytest.raises(UserError, match="no feature store at 'tpyo'"):
        train.run(compose(overrides(Path("tpyo"), folder, "overwrite=true")))
    assert (folder / "drafter").is_dir()


def test_a_corrupt_shard_is_named_and_not_trained_on(store: Path, tmp_path: Path) -> None:
    copy = tmp_path / "store"
    (copy / "shards").mkdir(parents=True)
    (copy / "index.json").write_bytes((store / "index.json").read_bytes())
    name = "shards/00000.safetensors"
    data = bytearray((store / name).read_bytes())
    data[-5] ^= 1
    (copy / name).write_bytes(data)
    assert len(FeatureStore.open(copy)) == 12
    with pytest.raises(UserError, match="00000.safetensors"):
        train.run(compose(overrides(copy, tmp_path / "run")))
    assert not (tmp_path / "run" / "drafter").exists()


@pytest.mark.parametrize(
    "name",
    ["train", "train_plain", "train_smollm2_eagle1", "train_gpu_1b", "train_gpu_8b"],
)
def test_every_recipe_makes_valid_settings(name: str) -> None:
    hub = ["target.name=org/model"] if "gpu" in name else []
    config = compose([f"+experiment={name}", "output_dir=x", *hub])
    assert config.task == "train"
    trainer = settings_of(config.trainer)
    assert trainer.learning_rate > 0
    assert trainer.max_epochs is not None
    if name == "train_plain":
        assert not config.drafter.inner_norm
        assert config.drafter.draft_vocab_size is None
        assert not config.trainer.least_squares_start
        assert (trainer.beta1, trainer.beta2) == (0.9, 0.95)
        assert (trainer.learning_rate, trainer.warmup_steps) == (3e-5, 2000)
        assert (trainer.feature_weight, trainer.token_weight) == (1.0, 0.1)
