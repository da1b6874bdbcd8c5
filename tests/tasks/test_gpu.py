"""`+experiment=bench_gpu` on tiny models: its parts, one report, the time limit, failures."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
import torch

from eagle_lab.config import compose
from eagle_lab.drafters.checkpoint import save_drafter
from eagle_lab.errors import UserError
from eagle_lab.targets.load import load_target
from eagle_lab.tasks import gpu
from tests.drafters.fakes import eagle1

TINY = (
    "+experiment=bench_gpu", "target=tiny_random", "device=cpu", "eval.max_new_tokens=6",
    "eval.num_questions=8", "eval.warmup=0", "tree.depth=2", "tree.width=2", "tree.num_nodes=4",
    "method=[vanilla,prompt_lookup,eagle_chain]", "method.eagle_chain.num_draft_tokens=3",
    "profile.batch_sizes=[1,2]", "profile.contexts=[8]", "profile.num_tokens=[1,2,5]",
    "profile.repeats=1", "profile.max_minutes=null",
    "profile.shapes=[tiny]", "drafter.draft_vocab_size=50",
)  # fmt: skip
PARTS = ["bfloat16", "float32", "batch_2", "profile", "shapes"]


@pytest.fixture(scope="module")
def drafter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained drafter for the tiny target."""
    target = load_target("tiny_random", device="cpu")
    folder = tmp_path_factory.mktemp("drafters") / "untrained"
    return save_drafter(eagle1(target), folder, target=target, training_summary={})


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory, drafter: Path) -> Path:
    """A whole run."""
    folder = tmp_path_factory.mktemp("gpu") / "run"
    gpu.run(compose([*TINY, f"drafter.path={drafter}", f"output_dir={folder}"]))
    return folder


def test_every_part_leaves_its_results(root: Path):
    for name, dtype, size in (
        ("bfloat16", "bfloat16", 1), ("float32", "float32", 1), ("batch_2", "bfloat16", 2),
    ):  # fmt: skip
        rows = pd.read_csv(root / name / "summary.csv")
        assert list(rows["method"]) == ["vanilla", "prompt_lookup", "eagle_chain"]
        assert set(rows["batch_size"]) == {size}
        assert set(rows["num_questions"]) == {8}
        assert f"dtype: {dtype}" in (root / name / "config.yaml").read_text()
    exact = pd.read_csv(root / "float32" / "summary.csv")
    assert (exact["greedy_match_rate"].dropna() == 1.0).all()
    assert len(pd.read_csv(root / "profile" / "predictions.csv")) >= 1
    assert len(pd.read_csv(root / "shapes" / "tiny" / "cost_curves.csv")) == 2 * 2 * 3


def test_one_report_holds_them_all(root: Path):
    page = (root / "report.html").read_text(encoding="utf-8")
    for name in ("bfloat16", "float32", "batch_2", "profile", "shapes/tiny"):
        assert f"{name}: " in page
    assert (root / "figures" / "shapes_tiny_crossover.png").is_file()
    assert (root / "figures" / "bfloat16_speedup_by_method.png").is_file()


def test_no_part_begins_after_the_time_and_the_same_command_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """A clock that moves by a minute with every look at it; parts that only leave a word."""
    minutes, done = iter(range(100)), []

    def parts(config, console, end):
        return {name: lambda name=name: done.append(name) for name in PARTS}

    monkeypatch.setattr(gpu, "parts_of", parts)
    monkeypatch.setattr(gpu.time, "monotonic", lambda: 60.0 * next(minutes))
    gpu.run(compose([*TINY, f"output_dir={tmp_path}", "profile.max_minutes=2.5"]))
    assert done == PARTS[:2]
    shown = " ".join(capsys.readouterr().out.split())
    assert "profile.max_minutes=2.5" in shown and "batch_2, profile, shapes" in shown


def test_a_part_that_fails_leaves_the_others_and_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    done = []

    def fail() -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    def parts(config, console, end):
        return {"first": fail, "second": lambda: done.append("second")}

    monkeypatch.setattr(gpu, "parts_of", parts)
    with pytest.raises(UserError, match="first: OutOfMemoryError"):
        gpu.run(compose([*TINY, f"output_dir={tmp_path}"]))
    assert done == ["second"]
