"""`+experiment=train_draft` from a captured store to a model that a bench drafts with."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from eagle_lab.config import compose, settings_of
from eagle_lab.errors import UserError
from eagle_lab.runs import terminal
from eagle_lab.runs.folder import RunFolder
from eagle_lab.targets.load import load_target
from eagle_lab.targets.target import Target
from eagle_lab.tasks import bench, train
from tests.tasks.stores import store_of

SMALL = [
    "+experiment=train_draft",
    "target=tiny_random",
    "device=cpu",
    "draft_model.num_layers=3",
    "trainer.max_epochs=2",
    "trainer.batch_tokens=60",
    "trainer.val_fraction=0.2",
    "trainer.warmup_steps=2",
    "trainer.log_every_steps=2",
]


@pytest.fixture(scope="module")
def target() -> Target:
    return load_target("tiny_random", device="cpu")


@pytest.fixture(scope="module")
def store(target: Target, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return store_of(target, tmp_path_factory.mktemp("store"))


def overrides(store: Path, output_dir: Path, *more: str) -> list[str]:
    return [*SMALL, f"data.store={store}", f"output_dir={output_dir}", *more]


def test_the_task_leaves_a_model_that_drafts_in_a_bench(
    store: Path, target: Target, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    with terminal.messages_shown():  # as the command line does
        train.run_draft_model(compose(overrides(store, out)))
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
    assert "expected chain tau" in capsys.readouterr().out

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


def test_an_interrupted_task_goes_on_to_the_same_model(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    straight, resumed = tmp_path / "straight", tmp_path / "resumed"
    train.run_draft_model(compose(overrides(store, straight)))
    write_curve = train.write_curve

    def interrupted(folder: RunFolder, train_rows: list[Any], val_rows: list[Any]) -> None:
        import signal

        write_curve(folder, train_rows, val_rows)
        if train_rows and train_rows[-1]["step"] == 4:
            signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(train, "write_curve", interrupted)
        with pytest.raises(KeyboardInterrupt):
            train.run_draft_model(compose(overrides(store, resumed)))
    assert not (resumed / "draft_model").exists()
    train.run_draft_model(compose(overrides(store, resumed)))
    weights = "draft_model/model.safetensors"
    assert (resumed / weights).read_bytes() == (straight / weights).read_bytes()


def test_bad_input_is_one_line(store: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="data.store is not set"):
        train.run_draft_model(compose([*SMALL, f"output_dir={tmp_path / 'a'}"]))
    with pytest.raises(UserError, match="num_layers=9; allowed: 1 to 8"):
        train.run_draft_model(compose(overrides(store, tmp_path / "b", "draft_model.num_layers=9")))
    with pytest.raises(UserError, match=r"layers=\[8\]; allowed: ids within 0 ... 7"):
        train.run_draft_model(compose(overrides(store, tmp_path / "c", "draft_model.layers=[8]")))
    with pytest.raises(UserError, match=r"trainer.init_from=x .* trainer.init_from=null"):
        train.run_draft_model(compose(overrides(store, tmp_path / "d", "trainer.init_from=x")))


def test_the_recipe_of_the_default_target_composes() -> None:
    config = compose(["+experiment=train_smollm2_draft", "output_dir=x"])
    assert config.task == "train_draft"
    assert settings_of(config.trainer).token_weight == 1.0
    assert config.target.name == "smollm2_135m"
