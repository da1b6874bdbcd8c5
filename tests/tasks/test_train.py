"""`+experiment=train` and `train_draft` from a captured store to a folder, on a random target."""

from __future__ import annotations

import csv
import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from eagle_lab.config import compose, settings_of
from eagle_lab.drafters.checkpoint import load_drafter
from eagle_lab.errors import UserError
from eagle_lab.runs.folder import RunFolder
from eagle_lab.targets.load import load_target
from eagle_lab.targets.target import Target
from eagle_lab.tasks import bench, train
from tests.tasks.stores import store_of

COMMON = [
    "target=tiny_random", "device=cpu", "trainer.max_epochs=2", "trainer.batch_tokens=60",
    "trainer.val_fraction=0.2", "trainer.warmup_steps=2", "trainer.log_every_steps=2",
]  # fmt: skip
SMALL = ["+experiment=train", *COMMON, "drafter.draft_vocab_size=40"]
DRAFT_MODEL = ["+experiment=train_draft", *COMMON, "draft_model.num_layers=3"]


@pytest.fixture(scope="module")
def target() -> Target:
    return load_target("tiny_random", device="cpu")


@pytest.fixture(scope="module")
def store(target: Target, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return store_of(target, tmp_path_factory.mktemp("store"))


def overrides(store: Path, output_dir: Path, *more: str, small: list[str] = SMALL) -> list[str]:
    return [*small, f"data.store={store}", f"output_dir={output_dir}", *more]


def test_the_task_leaves_a_drafter_and_its_curve(
    store: Path, target: Target, tmp_path: Path
) -> None:
    out = tmp_path / "run"
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


def test_a_draft_model_drafts_in_a_bench(store: Path, target: Target, tmp_path: Path) -> None:
    out = tmp_path / "run"
    train.run_draft_model(compose(overrides(store, out, small=DRAFT_MODEL)))
    model = load_target(str(out / "draft_model"), device="cpu")
    assert model.num_layers == 3
    assert model.eos_ids == target.eos_ids
    assert torch.equal(model.head_weight, target.head_weight)  # frozen
    first = model.model.get_decoder().layers[0].mlp.up_proj.weight
    assert not torch.equal(first, target.model.get_decoder().layers[0].mlp.up_proj.weight)
    summary = json.loads((out / "summary.json").read_text())
    with (out / "summary.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["epoch"]) for row in rows] == [0, 0, 1]
    assert max(float(row["val_tau"]) for row in rows[1:]) == summary["validation"]["val_tau"]
    asked = [
        "+experiment=bench", "method=[speculative]", "target=tiny_random", "device=cpu",
        "eval.num_questions=1", "eval.turns=1", "eval.max_new_tokens=8", "eval.timing=false",
        f"output_dir={tmp_path / 'bench'}",
        f"method.speculative.draft_model={out / 'draft_model'}",
    ]  # fmt: skip
    bench.run(compose(asked))
    with (tmp_path / "bench" / "summary.csv").open() as file:
        found = {row["method"]: row for row in csv.DictReader(file)}
    assert found["speculative"]["greedy_match_rate"] == "1.0"
    assert found["speculative"]["depth"] == "5"
    assert found["speculative"]["drafter"] == str(out / "draft_model")


@pytest.mark.parametrize(
    ("run", "small", "weights"),
    [
        (train.run, SMALL, "drafter/model.safetensors"),
        (train.run_draft_model, DRAFT_MODEL, "draft_model/model.safetensors"),
    ],
    ids=["drafter", "draft_model"],
)
def test_an_interrupted_task_goes_on_to_the_same_weights(
    run: Callable[..., None],
    small: list[str],
    weights: str,
    store: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    straight, resumed = tmp_path / "straight", tmp_path / "resumed"
    run(compose(overrides(store, straight, small=small)))
    write_curve: Callable[..., None] = train.write_curve

    def interrupted(folder: RunFolder, train_rows: list[Any], val_rows: list[Any]) -> None:
        write_curve(folder, train_rows, val_rows)
        if train_rows and train_rows[-1]["step"] == 6:
            signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(train, "write_curve", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(compose(overrides(store, resumed, small=small)))
    assert not (resumed / weights).parent.exists()
    run(compose(overrides(store, resumed, small=small)))
    assert (resumed / weights).read_bytes() == (straight / weights).read_bytes()


def test_bad_input_names_the_value(store: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"data\.store"):
        train.run(compose([*SMALL, f"output_dir={tmp_path / 'a'}"]))
    with pytest.raises(UserError, match="fingerprint"):
        train.run(compose(overrides(store, tmp_path / "b", "target.architecture=qwen3")))
    with pytest.raises(UserError, match=str(tmp_path)):
        train.run(compose(overrides(store, tmp_path / "c", f"trainer.init_from={tmp_path}")))
    for override in ("draft_model.num_layers=9", "draft_model.layers=[8]", "trainer.init_from=x"):
        key = override.partition(".")[2].partition("=")[0]
        with pytest.raises(UserError, match=f"{key}="):
            train.run_draft_model(
                compose(overrides(store, tmp_path / "d", override, small=DRAFT_MODEL))
            )


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("drafter.kind=eagle9", "eagle9"),
        ("trainer.max_minutes=0", r"trainer\.max_minutes=0"),
        ("trainer.batch_tokens=0", r"trainer\.batch_tokens=0"),
        ("trainer.save_precision=int3", "int3"),
    ],
)
def test_values_are_checked_before_a_target_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, override: str, value: str
) -> None:
    def load(_: object) -> Target:
        raise AssertionError("a target was loaded")

    monkeypatch.setattr(train, "target_from", load)
    with pytest.raises(UserError, match=value):
        train.run(compose([*overrides(tmp_path / "store", tmp_path / "run"), override]))
    assert not (tmp_path / "run").exists()


def test_a_mistake_does_not_cost_the_run_it_would_replace(store: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    train.run(compose(overrides(store, folder)))
    with pytest.raises(UserError, match="tpyo"):
        train.run(compose(overrides(Path("tpyo"), folder, "overwrite=true")))
    assert (folder / "drafter").is_dir()


@pytest.mark.parametrize(
    "name",
    [
        "train",
        "train_plain",
        "train_smollm2_eagle1",
        "train_gpu_1b",
        "train_gpu_8b",
        "train_smollm2_draft",
    ],
)
def test_every_recipe_makes_valid_settings(name: str) -> None:
    hub = ["target.name=org/model"] if "gpu" in name else []
    config = compose([f"+experiment={name}", "output_dir=x", *hub])
    assert config.task == ("train_draft" if name.endswith("draft") else "train")
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
