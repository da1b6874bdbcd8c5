"""Tables and findings of a bench, against values worked out by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from eagle_lab.reports import describe, load_run
from eagle_lab.reports.findings import contest
from eagle_lab.reports.frames import label_rows, tidy
from eagle_lab.reports.tables import (
    category_table,
    cost_table,
    make_table,
    method_table,
    provenance_table,
)


def summary(**columns: list) -> pd.DataFrame:
    return label_rows(tidy(pd.DataFrame(columns)))


THREE = {
    "method": ["vanilla", "eagle_chain", "eagle_dynamic"],
    "tau_micro": [1.0, 2.0, 2.356],
    "tau_micro_low": [1.0, 1.9, 2.2],
    "tau_micro_high": [1.0, 2.1, 2.5],
    "tau_macro": [1.0, 1.95, 2.3],
    "num_tokens": [1234, 1234, 1234],
    "num_cycles": [1200, 600, 500],
    "num_questions": [16, 16, 16],
}
SPEED = {
    "speedup": [1.0, 1.3, 1.456],
    "speedup_low": [1.0, 1.2, 1.4],
    "speedup_high": [1.0, 1.41, 1.5],
    "tokens_per_second": [10.0, 13.0, 14.56],
}


def test_methods_and_the_fastest():
    table = method_table(summary(**THREE, **SPEED))
    last = table.shown.iloc[2]
    assert last["τ"] == "2.36 [2.20, 2.50]"
    assert last["speedup"] == "1.46× [1.40, 1.50]"
    assert last["tokens"] == "1,234"
    assert table.raw["tau_micro"].tolist() == [1.0, 2.0, 2.356]
    assert table.best == {2}


def test_an_untimed_run_has_no_timing_columns_and_no_notes_on_them():
    table = method_table(summary(**THREE))
    assert list(table.shown) == ["method", "τ", "τ, mean over turns", "tokens", "cycles"]
    assert "speedup" not in table.note
    assert "speedup" in method_table(summary(**THREE, **SPEED)).note


def test_remarks():
    rows = summary(
        method=["a", "b", "c", "d"],
        status=["ok", "infeasible", "ok", "ok"],
        drafter_matches_target=["true", "", "false", ""],
        lossless=["true", "true", "true", "false"],
        tau_micro=[2, None, 2, 2],
    )
    plain, *told = method_table(rows).shown["remark"]
    assert plain == "" and len(set(told)) == 3 and all(told)


def test_markdown():
    raw = pd.DataFrame({"name": ["a|b"], "value": [1.5]})
    table = make_table(
        "t", "Title", raw, {"name": raw["name"], "value": pd.Series(["1.50"])}, "Note."
    )
    assert table.to_markdown() == (
        "## Title\n\nNote.\n\n| name | value |\n| --- | ---: |\n| a\\|b | 1.50 |\n"
    )


def test_latex_escapes_and_keeps_a_leading_bracket():
    table = make_table("t", "a_b", pd.DataFrame(), {"τ": pd.Series(["[1, 2]", "5 %"])})
    latex = table.to_latex()
    for part in (r"\label{tab:t}", r"\toprule", r"$\tau$", "{[1, 2]}", r"5 \%", r"a\_b"):
        assert part in latex


def test_costs_and_tokens_per_cycle():
    rows = summary(method=["a"], draft_ms=[4.04], verify_ms=[70.0], ttft_ms=[210.4])
    means = pd.DataFrame({"label": ["a"], "drafted": [5.0], "accepted": [1.25], "emitted": [2.25]})
    shown = cost_table(rows, means).shown.iloc[0]
    assert shown.tolist() == ["a", "5.0", "1.25", "2.25", "4.0", "70.0", "210"]


def test_categories_side_by_side():
    frame = pd.DataFrame(
        {
            "label": ["a", "a", "b"],
            "category": ["math", "coding", "math"],
            "tau_micro": [2.0, 3.0, 1.5],
            "speedup": [1.25, np.nan, 0.5],
        }
    )
    shown = category_table(frame).shown
    assert list(shown) == ["method", "math", "coding"]
    assert shown.to_numpy().tolist() == [["a", "2.00 / 1.25×", "3.00"], ["b", "1.50 / 0.50×", ""]]


def test_provenance_is_flat():
    shown = provenance_table({"versions": {"torch": "2.13"}, "seed": 0, "end": None}).shown
    assert dict(shown.to_numpy().tolist()) == {"versions.torch": "2.13", "seed": "0"}


def findings_of(rows: pd.DataFrame) -> dict[str, str]:
    """What follows each head."""
    return dict(finding.split(": ", 1) for finding in contest(rows, rows))


def test_findings_name_the_fastest_its_interval_and_what_overlaps():
    fastest = findings_of(summary(**THREE, **SPEED))["Fastest"]
    assert fastest.startswith("eagle_dynamic, speedup 1.46× [1.40, 1.50], τ 2.36 [2.20, 2.50]")
    assert "1 of 1" in fastest


@pytest.mark.parametrize(("speedup", "low"), [(0.9, 0.8), (1.1, 0.95), (1.1, None), (1.1, 1.05)])
def test_findings_claim_no_more_than_the_numbers(speedup: float, low: float | None):
    """Controls and lossy methods never win; what is not shown to be faster has a remark."""
    rows = summary(
        method=["vanilla", "self_speculation", "medusa1", "eagle_chain"],
        lossless=[True, True, False, True],
        tau_micro=[1, 9, 9, 2],
        speedup=[1, 9, 9, speedup],
        speedup_low=[1, 9, 9, low],
        speedup_high=[1, 9, 9, None if low is None else 1.2],
    )
    found = findings_of(rows)
    assert found["Highest τ"].startswith("eagle_chain, τ 2.00")
    assert found["Fastest"].startswith(f"eagle_chain, speedup {speedup:.2f}×")
    assert ("than vanilla" in found["Fastest"]) == (low is None or low <= 1)


def test_findings_of_a_bench(bench_run: Path):
    content = describe(load_run(bench_run))
    heads = [finding.partition(":")[0] for finding in content.findings]
    assert heads == ["Measured", "Fastest", "Highest τ", "Exactness"]
    for value in ("n = 16 questions", "smollm2_135m", "float32", "AMD EPYC"):
        assert value in content.findings[0]
    assert content.warnings == []


def test_findings_say_whose_output_differs(bench_run: Path):
    run = load_run(bench_run)
    run.summary.loc[4, "greedy_match_rate"] = 0.75
    assert "eagle_static 25.0%" in describe(run).findings[-1]


@pytest.mark.parametrize(
    ("column", "value"),
    [("drafter_matches_target", "false"), ("lossless", False), ("num_disturbed", 100)],
)
def test_warnings_name_the_method(bench_run: Path, column: str, value: object):
    run = load_run(bench_run)
    run.summary[column] = run.summary[column].astype(object)
    run.summary.loc[5, column] = value
    (warning,) = describe(run).warnings
    assert warning.endswith(": eagle_dynamic")


def test_a_replay_and_a_resumed_run_are_warned_of(bench_run: Path):
    run = load_run(bench_run)
    run.config["eval"]["replay"] = True
    run.provenance["resumed"] = [{"start": "2026-11-30T11:00:00", "git_commit": "ab"}]
    assert len(describe(run).warnings) == 2
