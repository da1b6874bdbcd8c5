"""`+experiment=profile` on the tiny target: its files, what it prints, and clear errors."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from eagle_lab.bench.profile.cost_model import CostModel, read_curves
from eagle_lab.config import compose
from eagle_lab.drafters import folder as drafter_folders
from eagle_lab.drafters.checkpoint import save_drafter
from eagle_lab.errors import UserError
from eagle_lab.targets.load import load_target
from eagle_lab.tasks import bench, profile, report
from tests.drafters.fakes import eagle1

SMALL = (
    "target=tiny_random", "device=cpu", "tree.depth=2", "tree.width=2", "tree.num_nodes=4",
    "method=[vanilla,eagle_chain,eagle_dynamic]", "method.eagle_chain.num_draft_tokens=3",
)  # fmt: skip
SIZES = (
    "profile.batch_sizes=[1,2]", "profile.contexts=[8,24]", "profile.num_tokens=[1,2,5]",
    "profile.repeats=2",
)  # fmt: skip
HEADER = "model_pass,batch_size,context,num_tokens,median_ms,low_ms,high_ms,plain_median_ms"


def untrained_drafter(folder: Path, seed: int) -> Path:
    """An untrained drafter for the tiny target."""
    target = load_target("tiny_random", device="cpu")
    return save_drafter(eagle1(target, seed=seed), folder, target=target, training_summary={})


@pytest.fixture(scope="module")
def drafter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return untrained_drafter(tmp_path_factory.mktemp("drafters") / "untrained", seed=0)


@pytest.fixture(scope="module")
def other_drafter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same network with other weights."""
    return untrained_drafter(tmp_path_factory.mktemp("drafters") / "other", seed=1)


@pytest.fixture(scope="module")
def bench_run(tmp_path_factory: pytest.TempPathFactory, drafter: Path) -> Path:
    """A timed bench at batch size 2."""
    folder = tmp_path_factory.mktemp("bench") / "run"
    asked = ("eval.num_questions=2", "eval.turns=1", "eval.max_new_tokens=6", "eval.batch_size=2")
    overrides = (*SMALL, *asked, "eval.warmup=0", f"drafter.path={drafter}", f"output_dir={folder}")
    bench.run(compose(["+experiment=bench", *overrides]))
    return folder


@pytest.fixture(scope="module")
def finished(
    tmp_path_factory: pytest.TempPathFactory, drafter: Path, bench_run: Path
) -> tuple[Path, list[str]]:
    """A whole profile and the overrides that made it."""
    folder = tmp_path_factory.mktemp("profile") / "run"
    overrides = [
        *("+experiment=profile", *SMALL, *SIZES, f"drafter.path={drafter}"),
        *(f"profile.run={bench_run}", f"output_dir={folder}"),
    ]
    profile.run(compose(overrides))
    return folder, overrides


@pytest.fixture
def no_shipped_drafter(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No drafter comes with the package."""
    monkeypatch.setattr(drafter_folders, "SHIPPED_DRAFTERS", tmp_path / "none")


def table(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_the_cost_curves_have_the_columns_others_rely_on(finished: tuple[Path, list[str]]) -> None:
    path = finished[0] / "cost_curves.csv"
    assert path.read_text(encoding="utf-8").splitlines()[0] == HEADER
    rows = table(path)
    assert len(rows) == 2 * 2 * 2 * 3
    for row in rows:
        assert float(row["low_ms"]) <= float(row["median_ms"]) <= float(row["high_ms"])
        assert (row["plain_median_ms"] == "") == (row["model_pass"] == "draft")


def test_the_cost_model_reads_them(finished: tuple[Path, list[str]]) -> None:
    curves = read_curves(finished[0] / "cost_curves.csv")
    model = CostModel.from_rows(curves, batch_size=2, context=24)
    measured = {
        (row["model_pass"], row["num_tokens"]): float(row["median_ms"])
        for row in curves
        if (row["batch_size"], row["context"]) == ("2", "24")
    }
    assert model.target(5) == measured["target", "5"]
    assert model.draft(2) == measured["draft", "2"]
    assert model.chain_speedups([0.5, 0.5])[0] == 1.0


def test_the_folder_holds_everything_of_a_run(finished: tuple[Path, list[str]]) -> None:
    folder = finished[0]
    names = "config.yaml provenance.json summary.csv summary.json overhead.csv predictions.csv"
    for name in (*names.split(), "report.html", "figures/cost_curves.png"):
        assert (folder / name).is_file(), name
    assert not list(folder.rglob("*.partial"))
    totals = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    assert set(totals["ceilings"]) == {"read", "float32", "bfloat16"}
    assert totals["quantiles"] == {"low_ms": 0.25, "high_ms": 0.75}
    overhead = table(folder / "overhead.csv")
    assert [(row["method"], row["batch_size"]) for row in overhead] == [
        (name, size)
        for size in ("1", "2")
        for name in ("vanilla", "eagle_chain", "eagle_dynamic")
    ]  # fmt: skip


def test_predictions_stand_beside_what_the_bench_measured(
    finished: tuple[Path, list[str]], bench_run: Path
) -> None:
    rows = table(finished[0] / "predictions.csv")
    measured = {row["method"]: row for row in table(bench_run / "summary.csv")}
    assert [row["method"] for row in rows[:2]] == ["eagle_chain", "eagle_dynamic"]
    for row in rows[:2]:
        assert row["tau_micro"] == measured[row["method"]]["tau_micro"]
        assert row["speedup"] == measured[row["method"]]["speedup"]
        assert float(row["predicted_speedup"]) > 0
    assert sorted(row["best"] for row in rows if row["best"]) == ["chain", "tree"]


def test_the_report_of_a_profile_can_be_made_again(finished: tuple[Path, list[str]]) -> None:
    page = finished[0] / "report.html"
    page.unlink()
    report.run(compose(["+experiment=report", f"report.run={finished[0]}"]))
    assert page.stat().st_size > 1000


def test_a_finished_profile_is_not_measured_again(finished: tuple[Path, list[str]]) -> None:
    curves = finished[0] / "cost_curves.csv"
    before = curves.stat().st_mtime_ns
    profile.run(compose(finished[1]))
    assert curves.stat().st_mtime_ns == before


@pytest.mark.usefixtures("no_shipped_drafter")
def test_without_a_drafter_the_target_alone_is_profiled(tmp_path: Path) -> None:
    profile.run(compose(["+experiment=profile", *SMALL, *SIZES, f"output_dir={tmp_path / 'run'}"]))
    assert {row["model_pass"] for row in table(tmp_path / "run/cost_curves.csv")} == {"target"}
    assert {row["method"] for row in table(tmp_path / "run/overhead.csv")} == {"vanilla"}


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("profile.num_tokens=[2,4]", "num_tokens="),
        ("profile.contexts=[2044]", "2048"),
        ("profile.run=/nowhere/at/all", "/nowhere/at/all"),
        ("profile.run={bench} profile.batch_sizes=[1]", "batch_sizes=.*1"),
        ("profile.run={bench} profile.num_tokens=[1,4]", "num_tokens="),
        ("profile.run={bench} target.tied_head=true", "{bench}"),
        ("profile.run={bench}", "drafter.path"),
        ("profile.run={bench} drafter.path={other}", "{other}"),
        ("profile.run={profile}", "{profile}"),
    ],
)
@pytest.mark.usefixtures("no_shipped_drafter")
def test_a_mistake_is_named_and_leaves_no_folder(
    tmp_path: Path,
    bench_run: Path,
    finished: tuple[Path, list[str]],
    other_drafter: Path,
    override: str,
    words: str,
) -> None:
    paths = {"bench": bench_run, "profile": finished[0], "other": other_drafter}
    given, words = override.format(**paths).split(), words.format(**paths)
    asked = ["+experiment=profile", *SMALL, *SIZES, *given, f"output_dir={tmp_path / 'run'}"]
    with pytest.raises(UserError, match=words):
        profile.run(compose(asked))
    assert not (tmp_path / "run").exists()
