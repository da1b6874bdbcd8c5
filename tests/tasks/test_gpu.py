"""What a GPU is asked, on tiny models: parts, shapes, one report, the time limit, failures."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pandas as pd
import pytest
import torch

from eagle_lab.bench.profile import shapes
from eagle_lab.bench.profile.cost_model import CostModel, read_curves
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


SHAPES = (
    "+experiment=bench_gpu_shapes", "device=cpu", "dtype=float32",
    "profile.shapes=[tiny,tiny_deep]", "profile.batch_sizes=[1,2]", "profile.contexts=[8,24]",
    "profile.num_tokens=[1,2,6]", "profile.repeats=1", "profile.max_minutes=null",
    "tree.depth=2", "tree.width=2", "tree.num_nodes=5",
    "drafter.draft_vocab_size=50",
)  # fmt: skip


@pytest.fixture(scope="module")
def shapes_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole run."""
    folder = tmp_path_factory.mktemp("shapes") / "run"
    gpu.run_shapes(compose([*SHAPES, f"output_dir={folder}"]))
    return folder


def table(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing takes longer than measuring."""
    monkeypatch.setattr(gpu, "make_report", lambda folder: folder)


@pytest.mark.parametrize("name", ["tiny", "tiny_deep"])
def test_every_shape_is_a_profile_of_its_own(shapes_root: Path, name: str):
    folder = shapes_root / name
    rows = read_curves(folder / "cost_curves.csv")
    assert len(rows) == 2 * 2 * 2 * 3
    assert {row["plain_median_ms"] for row in rows} == {""}
    assert CostModel.from_rows(rows, batch_size=2, context=24).target(6) > 0
    assert len(table(folder / "crossover.csv")) == 2 * 2 * 4  # three chains and a tree
    assert {row["whole_model_fits"] for row in table(folder / "summary.csv")} == {"true"}
    assert json.loads((folder / "provenance.json").read_text())["status"] == "finished"
    assert not list(folder.rglob("*.partial"))
    assert (folder / "figures" / "crossover.png").stat().st_size > 10_000


@pytest.mark.usefixtures("no_report")
def test_a_second_call_measures_nothing(shapes_root: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delattr(shapes.ShapeCosts, "measure")
    before = (shapes_root / "tiny" / "cost_curves.csv").read_bytes()
    gpu.run_shapes(compose([*SHAPES, f"output_dir={shapes_root}"]))
    assert (shapes_root / "tiny" / "cost_curves.csv").read_bytes() == before


@pytest.mark.usefixtures("no_report")
def test_what_does_not_fit_is_a_row_and_the_rest_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    costs = shapes.ShapeCosts("tiny", None, shapes.torch.float32, [1, 2, 6], eagle1)  # type: ignore[arg-type]
    enough = costs.needed_bytes(1, 24) + costs.weight_bytes()
    monkeypatch.setattr(shapes, "free_bytes", lambda device: 2 * enough)
    asked = [
        *SHAPES,
        "profile.shapes=[tiny]",
        "profile.batch_sizes=[1,64]",
        f"output_dir={tmp_path}",
    ]
    gpu.run_shapes(compose(asked))
    rows = table(tmp_path / "tiny" / "summary.csv")
    assert [row["batch_size"] for row in rows if row["infeasible"]] == ["64", "64"]
    assert {row["batch_size"] for row in rows if not row["infeasible"]} == {"1"}
    assert {row["batch_size"] for row in table(tmp_path / "tiny" / "cost_curves.csv")} == {"1"}


@pytest.mark.usefixtures("no_report")
def test_the_time_limit_leaves_out_and_the_same_command_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """A clock that moves by a minute with every look at it: three places fit into 4.5 minutes."""
    minutes = iter(range(100))
    monkeypatch.setattr(gpu.time, "monotonic", lambda: 60.0 * next(minutes))
    asked = [*SHAPES, "profile.shapes=[tiny]", f"output_dir={tmp_path / 'run'}"]
    limited = [*asked, "profile.max_minutes=3.5"]
    gpu.run_shapes(compose(limited))
    shown = " ".join(capsys.readouterr().out.split())
    assert "profile.max_minutes=3.5" in shown and "tiny at batch 2, context 24" in shown
    assert len(read_curves(tmp_path / "run" / "tiny" / "cost_curves.csv")) == 3 * 6
    gpu.run_shapes(compose(limited))
    assert len(read_curves(tmp_path / "run" / "tiny" / "cost_curves.csv")) == 4 * 6


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("profile.shapes=[llama_7b]", "llama_7b.*allowed"),
        ("profile.num_tokens=[2,4]", "num_tokens="),
        ("graphs=true", "graphs=true"),
        ("dtype=half", "half"),
    ],
)
def test_a_mistake_is_named_and_leaves_no_folder(tmp_path: Path, override: str, words: str):
    with pytest.raises(UserError, match=words):
        gpu.run_shapes(compose([*SHAPES, override, f"output_dir={tmp_path / 'run'}"]))
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("no_report")
def test_a_model_that_the_device_could_not_hold_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Its layers are made and measured; the column says that the whole is too large."""
    monkeypatch.setattr(shapes, "total_bytes", lambda device: 1)
    asked = ["profile.shapes=[tiny]", "profile.batch_sizes=[2]", "profile.contexts=[8]"]
    gpu.run_shapes(compose([*SHAPES, *asked, f"output_dir={tmp_path / 'run'}"]))
    rows = table(tmp_path / "run" / "tiny" / "summary.csv")
    assert {row["whole_model_fits"] for row in rows} == {"false"}
