"""The report of a profile: findings and tables against values worked out by hand."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from eagle_lab.reports import Content, describe, load_run, make_report
from tests.reports.fake_run import write_profile


@pytest.fixture(scope="module")
def profile_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_profile(tmp_path_factory.mktemp("profile") / "run")


@pytest.fixture(scope="module")
def content(profile_run: Path) -> Content:
    return describe(load_run(profile_run))


def test_findings_state_costs_limits_overhead_and_the_best_settings(content: Content):
    said = "\n".join(content.findings)
    # batch 1, context 128: 62 ms, 82 plain; 4 tokens 66.5, 8 tokens 72.5, 16 tokens 84.5
    assert "62.0 ms (82.0 ms with plain layers, 1.32 times as long)" in said
    assert "4 tokens 1.07, 8 tokens 1.17, 16 tokens 1.36 times that" in said
    assert "reads 8.7 GB/s, 36% of what the machine can" in said
    # 3 + 0.2 x 7 + 2 = 6.4 ms
    assert "A draft step over 8 nodes takes 6.4 ms, 10.3% of a target pass" in said
    assert "1.9% to 5.0% of its time (most in eagle_dynamic: 9.5 of 190.0 ms)" in said
    assert "eagle_dynamic (depth 6, 59 nodes), 1.37× predicted, measured 1.31×" in said
    assert "eagle_chain (depth 2, 2 nodes), 1.60× predicted, not in the bench" in said


def test_drafts_that_do_not_pay_are_no_best_setting(tmp_path: Path):
    folder = write_profile(tmp_path / "run")
    table = pd.read_csv(folder / "predictions.csv")
    table["predicted_speedup"] = [0.93, 1.0]
    table.to_csv(folder / "predictions.csv", index=False)
    said = describe(load_run(folder)).findings
    assert "No tree is predicted to beat plain decoding." in said
    assert "No chain is predicted to beat plain decoding." in said
    assert not any("by the cost model" in sentence for sentence in said)


def test_figures_and_tables_of_a_profile(content: Content):
    assert list(content.plots) == ["cost_curves", "relative_cost"]
    assert list(content.tables) == ["limits", "passes", "overhead", "predictions", "provenance"]
    assert len(content.table("passes").shown) == 2 * 2 * 2 * 7
    assert list(content.table("limits").shown["GB/s"]) == ["24.0", "", ""]
    assert list(content.table("limits").shown["GFLOP/s"]) == ["", "108.0", "60.0"]
    assert list(content.table("predictions").shown["remark"]) == ["best tree", "best chain"]


def test_without_a_drafter_nothing_is_said_of_one(tmp_path: Path):
    content = describe(load_run(write_profile(tmp_path / "run", drafter=False)))
    assert "predictions" not in content.tables
    assert not any("draft" in finding.lower() for finding in content.findings[:-1])


def test_cost_curves_alone_are_enough(tmp_path: Path):
    folder = write_profile(tmp_path / "run")
    for name in ("summary.csv", "summary.json", "overhead.csv", "predictions.csv"):
        (folder / name).unlink()
    content = describe(load_run(folder))
    assert list(content.plots) == ["cost_curves"]
    assert any("62.0 ms" in finding for finding in content.findings)


def test_the_report_is_written_into_the_folder(profile_run: Path):
    page = make_report(profile_run)
    assert page.read_text("utf-8").count("data:image/png;base64") == 2
    assert (profile_run / "figures" / "cost_curves.png").stat().st_size > 10_000
    written = pd.read_csv(profile_run / "tables" / "passes.csv")
    assert len(written) == len(pd.read_csv(profile_run / "cost_curves.csv"))
