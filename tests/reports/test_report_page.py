"""The report as files: one page that holds everything and loads nothing, Markdown, CSV, PNG."""

from __future__ import annotations

import base64
import csv
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
import pytest
from omegaconf import OmegaConf

from eagle_lab.errors import UserError
from eagle_lab.reports import describe, join_reports, load_run, load_sweep, make_report
from eagle_lab.tasks import report
from tests.reports.fake_run import (
    BENCH,
    eagle,
    write_bench,
    write_config,
    write_profile,
    write_sweep,
)


class Page(HTMLParser):
    """Attributes of all tags, the text, and whether every tag is closed."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.source = path.read_text("utf-8")
        self.attributes: list[tuple[str, str, str]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(self.source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in {"meta", "img", "link", "br"}:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data

    def values(self, tag: str, name: str) -> list[str]:
        return [value for kind, key, value in self.attributes if (kind, key) == (tag, name)]


@pytest.fixture(scope="module")
def bench_page(bench_run: Path) -> Page:
    return Page(make_report(bench_run))


def test_the_page_holds_findings_figures_tables_and_provenance(bench_page: Page, bench_run: Path):
    assert not bench_page.open
    for words in (
        "Speedup by method", "Acceptance by depth", "Cost of a cycle", "Divergences from vanilla",
        "0.00021", "Provenance", "0123456789abcdef", "Full configuration", "smollm2_135m",
        "versions.torch", "prompts_sha256", "95 %", "Figure 7.",
    ):  # fmt: skip
        assert words in bench_page.text, words
    images = bench_page.values("img", "src")
    files = {path.read_bytes() for path in (bench_run / "figures").glob("*.png")}
    assert {base64.b64decode(image.partition(",")[2]) for image in images} == files
    assert len(files) == 7


def test_the_page_loads_nothing(bench_page: Page):
    assert not bench_page.values("script", "src")
    assert "<script" not in bench_page.source
    assert not re.search(r"url\(|@import", bench_page.source)
    for tag in ("img", "link", "a", "iframe", "source"):
        for name in ("src", "href", "srcset"):
            for value in bench_page.values(tag, name):
                assert value.startswith(("data:image/png;base64,", "#")), value


def test_markdown_and_csv_hold_the_numbers(bench_page: Page, bench_run: Path):
    text = (bench_run / "report.md").read_text("utf-8")
    assert "eagle_dynamic" in text
    for path in re.findall(r"!\[.*?\]\((.*?)\)", text):
        assert (bench_run / path).is_file()
    with (bench_run / "tables" / "methods.csv").open(encoding="utf-8") as file:
        rows = {row["method"]: row for row in csv.DictReader(file)}
    with (bench_run / "summary.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            assert float(rows[row["method"]]["tau_macro"]) == float(row["tau_macro"])
    assert not list(bench_run.glob("**/*.partial"))


def test_an_unfinished_run_shows_what_is_there(tmp_path: Path):
    folder = write_bench(tmp_path / "run", finished=False)
    assert Page(make_report(folder)).values("p", "role") == ["alert"]
    assert (folder / "figures" / "tau_by_method.png").is_file()
    assert not (folder / "figures" / "speedup_by_method.png").exists()


def test_an_untimed_run_shows_no_times(tmp_path: Path):
    page = Page(make_report(write_bench(tmp_path / "run", BENCH[:4], timing=False)))
    assert "tokens/s" not in page.text
    assert "speedup" not in page.text


def test_names_are_escaped(tmp_path: Path):
    methods = [BENCH[0], eagle("<img src=x onerror=alert(1)>", 0.5, 4, None, 4)]
    page = Page(make_report(write_bench(tmp_path / "a & b", methods)))
    assert "a & b" in page.text
    assert "x" not in page.values("img", "src")


def test_a_sweep_has_its_tables_and_figures(sweep_root: Path):
    page = Page(make_report(sweep_root))
    assert "the pool holds" in page.text
    assert (sweep_root / "figures" / "sweep_tau.png").is_file()
    assert (sweep_root / "tables" / "ranking.csv").is_file()


def test_a_sweep_with_a_failed_job_names_it(tmp_path: Path):
    root = write_sweep(tmp_path / "root", grid=[(2, 4, 8), (4, 4, 8), (6, 4, 8)], num_questions=2)
    (root / "2" / "summary.csv").unlink()
    assert describe(load_sweep(root)).warnings[-1].endswith(": 2")


def test_a_sweep_in_one_process_shows_its_grid_and_its_best_tree(one_process_sweep: Path):
    content = describe(load_run(one_process_sweep))
    assert {"sweep_speedup", "acceptance_by_depth"} <= set(content.plots)
    assert len(content.table("ranking").shown) == 20
    assert content.table("methods").shown["method"].tolist() == ["vanilla", "eagle_dynamic"]


def test_a_training_shows_its_curve(tmp_path: Path):
    write_config(tmp_path, "train", finished=True)
    head = "step,val_tau,val_acceptance_1,val_acceptance_2"
    rows = ["100,1.2,0.2,0.1", "200,1.5,0.4,0.3", "300,1.4,0.35,0.3"]
    (tmp_path / "summary.csv").write_text("\n".join([head, *rows]) + "\n")
    content = describe(load_run(tmp_path))
    assert list(content.plots) == ["training"]
    assert content.table("training").best == {1}
    for value in ("3", "200", "1.50", "40.0%", "20.0%"):
        assert value in content.findings[-1]


@pytest.fixture(scope="module")
def profile_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_profile(tmp_path_factory.mktemp("profile") / "run")


def test_a_profile_has_its_figures_tables_and_findings(profile_run: Path):
    content = describe(load_run(profile_run))
    assert list(content.plots) == ["cost_curves", "relative_cost"]
    assert list(content.tables) == ["limits", "passes", "overhead", "predictions", "provenance"]
    assert len(content.table("passes").shown) == 2 * 2 * 2 * 7
    assert list(content.table("limits").shown["GB/s"]) == ["24.0", "", ""]
    assert list(content.table("limits").shown["GFLOP/s"]) == ["", "108.0", "60.0"]
    assert content.table("predictions").best == {0, 1}
    said = " ".join(content.findings)
    # batch 1, context 128: 62 ms, 82 plain; overhead 1.2 of 62 and 9.5 of 190 ms
    for value in ("62.00 [60.14, 65.10] ms", "82.00", "1.9% to 5.0%", "1.37×", "1.60×"):
        assert value in said


def test_drafts_that_do_not_pay_are_no_best_setting(tmp_path: Path):
    folder = write_profile(tmp_path / "run")
    table = pd.read_csv(folder / "predictions.csv").assign(predicted_speedup=[0.93, 1.0])
    table.to_csv(folder / "predictions.csv", index=False)
    said = " ".join(describe(load_run(folder)).findings)
    assert "0.93×" not in said and "1.00×" not in said


def test_cost_curves_alone_are_enough(tmp_path: Path):
    folder = write_profile(tmp_path / "run", drafter=False)
    for name in ("summary.csv", "summary.json", "overhead.csv"):
        (folder / name).unlink()
    assert list(describe(load_run(folder)).plots) == ["cost_curves"]


def test_joined_runs_stand_under_their_names(bench_run: Path, profile_run: Path, tmp_path: Path):
    runs = {"float32": bench_run, "shapes/8b": profile_run}
    page = Page(join_reports(tmp_path, "both", runs))
    assert (tmp_path / "figures" / "float32_tau_by_method.png").is_file()
    assert (tmp_path / "tables" / "shapes_8b_passes.tex").is_file()
    assert len(page.values("img", "src")) == 9


def run_report(**settings: object) -> None:
    report.run(OmegaConf.create({"report": {"run": None, "claim": None, "card": None} | settings}))


def test_the_task(bench_run: Path, capsys: pytest.CaptureFixture[str]):
    run_report(run=str(bench_run))
    assert str(bench_run / "report.html") in capsys.readouterr().out


def test_the_task_without_a_folder():
    with pytest.raises(UserError, match=r"report\.run"):
        run_report()


def test_reports_open_without_torch(bench_run: Path):
    code = (
        "import sys; import eagle_lab.tasks.report; from eagle_lab.reports import make_report, "
        f"load_run; load_run({str(bench_run)!r}); make_report({str(bench_run)!r}); "
        "found = {'torch', 'transformers', 'lightning', 'matplotlib.pyplot'} & set(sys.modules); "
        "assert not found, found"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=200)
