"""A kind of drafter and a method from outside: tests/outside holds them, no package file does."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from eagle_lab import run
from eagle_lab.drafters.checkpoint import load_drafter, save_drafter
from eagle_lab.errors import UserError
from eagle_lab.targets.load import load_target
from tests.drafters.fakes import eagle1
from tests.tasks.stores import store_of

OUTSIDE = Path(__file__).parent / "outside"
Main = Callable[..., int]


@pytest.fixture
def main(monkeypatch: pytest.MonkeyPatch) -> Main:
    """The command line with the folder's configuration and modules."""
    monkeypatch.syspath_prepend(OUTSIDE)

    def call(*arguments: str) -> int:
        monkeypatch.setattr(
            sys, "argv", ["run", f"--config-dir={OUTSIDE / 'conf'}", "device=cpu", *arguments]
        )
        return run.main()

    return call


def test_a_kind_from_outside_trains_saves_loads_and_benches_beside_eagle1(
    main: Main, tmp_path: Path
) -> None:
    target = load_target("tiny_random", device="cpu")
    store = store_of(target, tmp_path / "store")
    trained = tmp_path / "train"
    assert main("+experiment=train_toy", f"data.store={store}", f"output_dir={trained}") == 0
    with (trained / "training_curve.csv").open() as file:
        losses = [float(row["val_token_loss"]) for row in csv.DictReader(file) if row["val_tau"]]
    assert losses[-1] < losses[0]

    described = json.loads((trained / "drafter" / "config.json").read_text())
    assert (described["kind"], described["class"]) == ("toy", "toy_kind.ToyDrafter")
    assert described["switches"] == {"draft_vocab_size": 40, "bias": True}
    assert (trained / "drafter" / "README.md").is_file()
    drafter, matches = load_drafter(trained / "drafter", target)
    assert matches
    assert type(drafter).__name__ == "ToyDrafter"
    again = save_drafter(drafter, tmp_path / "again", target=target, training_summary={})
    for name, tensor in load_drafter(again, target)[0].state_dict().items():
        assert torch.equal(tensor, drafter.state_dict()[name])

    own = save_drafter(eagle1(target), tmp_path / "eagle1", target=target, training_summary={})
    out = tmp_path / "bench"
    asked = (
        "+experiment=bench", "target=tiny_random", "method=[eagle_chain,toy_chain,repeat]",
        f"drafter.path={own}", f"method.toy_chain.drafter={trained / 'drafter'}",
        "eval.num_questions=2", "eval.turns=1", "eval.max_new_tokens=12", "eval.timing=false",
        f"output_dir={out}",
    )  # fmt: skip
    assert main(*asked) == 0
    with (out / "summary.csv").open() as file:
        rows = {row["method"]: row for row in csv.DictReader(file)}
    assert set(rows) == {"vanilla", "eagle_chain", "toy_chain", "repeat"}
    assert {row["greedy_match_rate"] for row in rows.values()} == {"1.0"}
    assert rows["toy_chain"]["drafter_matches_target"] == "true"
    assert rows["eagle_chain"]["drafter"] == str(own)
    assert rows["repeat"]["num_nodes"] == "2"


def test_its_keys_are_checked_like_the_packages_own(
    main: Main, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nowhere = ("+experiment=train_toy", f"output_dir={tmp_path / 'run'}")
    for override, nearest in (
        ("drafter.bais=false", "drafter.bias"),
        ("+drafter.bais=false", "drafter.bias"),
        ("drafter.bias=perhaps", "drafter.bias"),
        ("trainer.least_squares_start=true", "trainer.least_squares_start"),  # it has none
        ("drafter._target_=toy_kind.ToyDraftr", "toy_kind.ToyDraftr"),
    ):
        assert main(*nowhere, override) == 1
        message = capsys.readouterr().err
        assert nearest in message
        assert len(message.splitlines()) == 1


def test_help_and_errors_know_its_methods(
    main: Main, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main("--help") == 0
    assert "repeat" in capsys.readouterr().out
    asked = ("+experiment=bench", f"output_dir={tmp_path / 'run'}", "method.repeat.n=2")
    assert main(*asked) == 1
    assert "method.repeat" in (said := capsys.readouterr().err)
    assert "method=[" in said
    assert main(*asked[:2], "method=[repaet]") == 1
    assert "repeat" in capsys.readouterr().err


def test_a_folder_whose_kind_is_gone_is_named(main: Main, tmp_path: Path) -> None:
    target = load_target("tiny_random", device="cpu")
    folder = save_drafter(eagle1(target), tmp_path / "own", target=target, training_summary={})
    described = json.loads((folder / "config.json").read_text())
    described["class"] = "gone_kind.Gone"
    (folder / "config.json").write_text(json.dumps(described))
    with pytest.raises(UserError, match=r"gone_kind\.Gone"):
        load_drafter(folder, target)
