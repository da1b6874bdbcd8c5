"""The report as files: one page that holds everything and loads nothing, Markdown, CSV, PNG."""

from __future__ import annotations

import base64
import csv
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from eagle_lab.errors import UserError
from eagle_lab.reports import make_report
from eagle_lab.tasks import report
from tests.reports.fake_run import BENCH, eagle, write_bench, write_config, write_sweep


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
        "eagle_dynamic is the fastest", "Speedup by method", "Acceptance by depth",
        "Cost of a cycle", "Divergences from vanilla", "0.00021", "Provenance",
        "0123456789abcdef", "Full configuration", "smollm2_135m", "versions.torch",
        "prompts_sha256", "95 %", "Figure 7.",
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


def test_the_page_is_readable_in_light_and_dark(bench_page: Page):
    assert "prefers-color-scheme: dark" in bench_page.source
    assert bench_page.values("meta", "content").count("light dark") == 1


def test_markdown_and_csv_hold_the_numbers(bench_page: Page, bench_run: Path):
    text = (bench_run / "report.md").read_text("utf-8")
    assert "| eagle_dynamic | " in text
    for path in re.findall(r"!\[.*?\]\((.*?)\)", text):
        assert (bench_run / path).is_file()
    with (bench_run / "tables" / "methods.csv").open(encoding="utf-8") as file:
        rows = {row["method"]: row for row in csv.DictReader(file)}
    with (bench_run / "summary.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            assert float(rows[row["method"]]["tau_macro"]) == float(row["tau_macro"])
    assert not list(bench_run.glob("**/*.partial"))


def test_an_unfinished_run_says_so(tmp_path: Path):
    page = Page(make_report(write_bench(tmp_path / "run", finished=False)))
    assert "This run is unfinished" in page.text
    assert "Acceptance length τ by method" in page.text
    assert "n = 16 questions, T = 0, batch size 1" in page.text
    assert "the mean over turns; open circles" in page.text
    assert "Speedup by method" not in page.text


def test_a_finished_run_does_not(bench_page: Page):
    assert "unfinished" not in bench_page.text


def test_an_untimed_run_shows_no_times(tmp_path: Path):
    page = Page(make_report(write_bench(tmp_path / "run", BENCH[:4], timing=False)))
    assert "Where a cycle" not in page.text
    assert "tokens/s" not in page.text
    assert "eagle_chain has the longest acceptance" in page.text


def test_names_are_escaped(tmp_path: Path):
    methods = [BENCH[0], eagle("<img src=x onerror=alert(1)>", 0.5, 4, None, 4)]
    page = Page(make_report(write_bench(tmp_path / "a & b", methods)))
    assert "a & b" in page.text
    assert "x" not in page.values("img", "src")


def test_a_sweep_names_its_best_setting(sweep_root: Path):
    page = Page(make_report(sweep_root))
    assert re.search(
        r"Best speed of eagle_dynamic.*at depth \d, width \d, num_nodes \d+", page.text
    )
    assert "sizes that cannot be" in page.text and "the pool holds" in page.text
    assert (sweep_root / "figures" / "sweep_tau.png").is_file()


def test_a_sweep_with_a_failed_job_names_it(tmp_path: Path):
    root = write_sweep(tmp_path / "root", grid=[(2, 4, 8), (4, 4, 8), (6, 4, 8)], num_questions=2)
    (root / "2" / "summary.csv").unlink()
    assert "Missing: 2." in Page(make_report(root)).text


def test_a_sweep_in_one_process_shows_its_grid_and_its_best_tree(one_process_sweep: Path):
    page = Page(make_report(one_process_sweep))
    assert "the best of 20 measured settings" in page.text
    assert (one_process_sweep / "figures" / "sweep_speedup.png").is_file()
    assert (one_process_sweep / "figures" / "acceptance_by_depth.png").is_file()


def test_a_training_shows_its_curve(tmp_path: Path):
    write_config(tmp_path, "train", finished=True)
    head = "step,val_tau,val_acceptance_1,val_acceptance_2"
    rows = ["100,1.2,0.2,0.1", "200,1.5,0.4,0.3", "300,1.4,0.35,0.3"]
    (tmp_path / "summary.csv").write_text("\n".join([head, *rows]) + "\n")
    page = Page(make_report(tmp_path))
    assert "Acceptance while training" in page.text
    assert "Best of 3 validations at step 200: expected τ of a chain 1.50" in page.text
    assert "40.0% (at the first validation, step 100: 20.0%)" in page.text


def run_report(**settings: object) -> None:
    report.run(OmegaConf.create({"report": {"run": None, "claim": None, "card": None} | settings}))


def test_the_task(bench_run: Path, capsys: pytest.CaptureFixture[str]):
    run_report(run=str(bench_run))
    assert capsys.readouterr().out == f"report: {bench_run / 'report.html'}\n"


def test_the_task_without_a_folder():
    with pytest.raises(UserError, match=r"report.run=PATH names"):
        run_report()


def test_reports_open_without_torch(bench_run: Path):
    code = (
        "import sys; import eagle_lab.tasks.report; from eagle_lab.reports import make_report, "
        f"load_run; load_run({str(bench_run)!r}); make_report({str(bench_run)!r}); "
        "found = {'torch', 'transformers', 'lightning', 'matplotlib.pyplot'} & set(sys.modules); "
        "assert not found, found"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=200)
