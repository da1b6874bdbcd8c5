"""`+experiment=bench_gpu_shapes` on tiny shapes: files, resuming, memory, the time limit."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from eagle_lab.bench.profile import shapes
from eagle_lab.bench.profile.cost_model import CostModel, read_curves
from eagle_lab.config import compose
from eagle_lab.errors import UserError
from eagle_lab.tasks import gpu, report
from tests.drafters.fakes import eagle1

TINY = (
    "+experiment=bench_gpu_shapes", "device=cpu", "dtype=float32",
    "profile.shapes=[tiny,tiny_deep]", "profile.batch_sizes=[1,2]", "profile.contexts=[8,24]",
    "profile.num_tokens=[1,2,6]", "profile.repeats=1", "profile.max_minutes=null",
    "tree.depth=2", "tree.width=2", "tree.num_nodes=5",
    "drafter.draft_vocab_size=50",
)  # fmt: skip


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole run."""
    folder = tmp_path_factory.mktemp("shapes") / "run"
    gpu.run_shapes(compose([*TINY, f"output_dir={folder}"]))
    return folder


def table(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing takes longer than measuring."""
    monkeypatch.setattr(gpu, "make_report", lambda folder: folder)


@pytest.mark.parametrize("name", ["tiny", "tiny_deep"])
def test_every_shape_is_a_profile_of_its_own(root: Path, name: str):
    folder = root / name
    rows = read_curves(folder / "cost_curves.csv")
    assert len(rows) == 2 * 2 * 2 * 3
    assert {row["plain_median_ms"] for row in rows} == {""}
    assert CostModel.from_rows(rows, batch_size=2, context=24).target(6) > 0
    assert len(table(folder / "crossover.csv")) == 2 * 2 * 4  # three chains and a tree
    assert {row["whole_model_fits"] for row in table(folder / "summary.csv")} == {"true"}
    assert json.loads((folder / "provenance.json").read_text())["status"] == "finished"
    assert not list(folder.rglob("*.partial"))
    assert (folder / "figures" / "crossover.png").stat().st_size > 10_000


def test_the_report_says_where_speculation_pays(root: Path):
    page = root / "tiny" / "report.html"
    page.unlink()
    report.run(compose(["+experiment=report", f"report.run={root / 'tiny'}"]))
    assert "Where speculation stops paying" in page.read_text(encoding="utf-8")


@pytest.mark.usefixtures("no_report")
def test_a_second_call_measures_nothing(root: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delattr(shapes.ShapeCosts, "measure")
    before = (root / "tiny" / "cost_curves.csv").read_bytes()
    gpu.run_shapes(compose([*TINY, f"output_dir={root}"]))
    assert (root / "tiny" / "cost_curves.csv").read_bytes() == before


@pytest.mark.usefixtures("no_report")
def test_what_does_not_fit_is_a_row_and_the_rest_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    costs = shapes.ShapeCosts("tiny", None, shapes.torch.float32, [1, 2, 6], eagle1)  # type: ignore[arg-type]
    enough = costs.needed_bytes(1, 24) + costs.weight_bytes()
    monkeypatch.setattr(shapes, "free_bytes", lambda device: 2 * enough)
    asked = [*TINY, "profile.shapes=[tiny]", "profile.batch_sizes=[1,64]", f"output_dir={tmp_path}"]
    gpu.run_shapes(compose(asked))
    rows = table(tmp_path / "tiny" / "summary.csv")
    assert [row["batch_size"] for row in rows if "needs about" in row["infeasible"]] == ["64", "64"]
    assert {row["batch_size"] for row in rows if not row["infeasible"]} == {"1"}
    assert {row["batch_size"] for row in table(tmp_path / "tiny" / "cost_curves.csv")} == {"1"}
    assert "batch 64, context 8: left out, needs about" in " ".join(capsys.readouterr().out.split())


@pytest.mark.usefixtures("no_report")
def test_the_time_limit_leaves_out_and_the_same_command_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """A clock that moves by a minute with every look at it: three places fit into 4.5 minutes."""
    minutes = iter(range(100))
    monkeypatch.setattr(gpu.time, "monotonic", lambda: 60.0 * next(minutes))
    asked = [*TINY, "profile.shapes=[tiny]", f"output_dir={tmp_path / 'run'}"]
    limited = [*asked, "profile.max_minutes=3.5"]
    gpu.run_shapes(compose(limited))
    shown = " ".join(capsys.readouterr().out.split())
    assert "left out, for profile.max_minutes=3.5 are over: tiny at batch 2, context 24" in shown
    assert len(read_curves(tmp_path / "run" / "tiny" / "cost_curves.csv")) == 3 * 6
    gpu.run_shapes(compose(limited))
    assert len(read_curves(tmp_path / "run" / "tiny" / "cost_curves.csv")) == 4 * 6


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("profile.shapes=[llama_7b]", "llama_7b.*allowed"),
        ("profile.num_tokens=[2,4]", "must hold 1"),
        ("graphs=true", "graphs=true"),
        ("dtype=half", "half"),
    ],
)
def test_a_mistake_is_named_and_leaves_no_folder(tmp_path: Path, override: str, words: str):
    with pytest.raises(UserError, match=words):
        gpu.run_shapes(compose([*TINY, override, f"output_dir={tmp_path / 'run'}"]))
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("no_report")
def test_a_model_that_the_device_could_not_hold_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """Its layers are made and measured; the column says that the whole is too large."""
    monkeypatch.setattr(shapes, "total_bytes", lambda device: 1)
    asked = ["profile.shapes=[tiny]", "profile.batch_sizes=[2]", "profile.contexts=[8]"]
    gpu.run_shapes(compose([*TINY, *asked, f"output_dir={tmp_path / 'run'}"]))
    rows = table(tmp_path / "run" / "tiny" / "summary.csv")
    assert {row["whole_model_fits"] for row in rows} == {"false"}
    shown = " ".join(capsys.readouterr().out.split())
    assert "tiny, batch 2, context 8: the whole model does not fit this device" in shown
