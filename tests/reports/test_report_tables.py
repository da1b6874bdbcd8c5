"""Tables, findings and sweep analysis, against values worked out by hand."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from eagle_lab.bench.matching import HALF_PRECISION_UNITS, TIE_GAP
from eagle_lab.bench.results import Conditions, summarize
from eagle_lab.methods.build import Method
from eagle_lab.reports import load_run, load_sweep
from eagle_lab.reports.frames import label_rows, tidy
from eagle_lab.reports.method_tables import (
    acceptance_table,
    category_table,
    cost_table,
    divergence_table,
    method_table,
)
from eagle_lab.reports.sentences import fastest, run_sentences
from eagle_lab.reports.sweep_plots import step_costs
from eagle_lab.reports.sweep_sentences import sweep_sentences
from eagle_lab.reports.sweep_tables import infeasible, ranking
from eagle_lab.reports.sweeps import (
    best_setting,
    fit_step_costs,
    grids,
    headline_rows,
    rivals,
    with_cost_model,
)
from eagle_lab.reports.tables import make_table, provenance_table, with_interval
from tests.bench.fakes import row


def summary(**columns: list) -> pd.DataFrame:
    return label_rows(tidy(pd.DataFrame(columns)))


THREE = {
    "method": ["vanilla", "eagle_chain", "eagle_dynamic"],
    "tau_macro": [1.0, 2.0, 2.356],
    "tau_macro_low": [1.0, 1.9, 2.2],
    "tau_macro_high": [1.0, 2.1, 2.5],
    "tau_micro": [1.0, 1.95, 2.3],
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


def test_an_interval_stands_in_brackets():
    frame = pd.DataFrame(
        {"x": [2.346, 1.0, np.nan], "x_low": [2.2, np.nan, 1], "x_high": [2.5, 2, 2]}
    )
    assert with_interval(frame, "x", unit="×").tolist() == ["2.35× [2.20, 2.50]", "1.00×", ""]


def test_methods():
    table = method_table(summary(**THREE, **SPEED))
    last = table.shown.iloc[2]
    assert last["τ macro"] == "2.36 [2.20, 2.50]"
    assert last["speedup"] == "1.46× [1.40, 1.50]"
    assert last["tokens"] == "1,234"
    assert table.raw["tau_macro"].tolist() == [1.0, 2.0, 2.356]


def test_an_untimed_run_has_no_timing_columns():
    shown = method_table(summary(**THREE)).shown
    assert list(shown) == ["method", "τ macro", "τ micro", "tokens", "cycles"]


def test_notes_are_on_the_columns_that_are_shown():
    assert not re.search(r"Speedup|Tokens/s|Greedy", method_table(summary(**THREE)).note)
    timed = method_table(summary(**THREE, **SPEED)).note
    assert "Speedup is" in timed and "Tokens/s are" in timed and "Greedy" not in timed


def test_remarks():
    rows = summary(
        method=["a", "b", "c"],
        status=["ok", "infeasible", "ok"],
        drafter_matches_target=["true", "", "false"],
        tau_macro=[2, None, 2],
    )
    remarks = method_table(rows).shown["remark"].tolist()
    assert remarks == ["", "infeasible", "drafter trained for another target"]


def test_markdown_and_csv():
    raw = pd.DataFrame({"name": ["a|b"], "value": [1.5]})
    table = make_table(
        "t", "Title", raw, {"name": raw["name"], "value": pd.Series(["1.50"])}, "Note."
    )
    assert table.to_markdown() == (
        "## Title\n\nNote.\n\n| name | value |\n| --- | ---: |\n| a\\|b | 1.50 |\n"
    )
    assert table.to_csv() == "name,value\na|b,1.5\n"


def test_costs_and_tokens_per_cycle():
    rows = summary(method=["a"], draft_ms=[4.04], verify_ms=[70.0], ttft_ms=[210.4])
    means = pd.DataFrame({"label": ["a"], "drafted": [5.0], "accepted": [1.25], "emitted": [2.25]})
    shown = cost_table(rows, means).shown.iloc[0]
    assert shown.tolist() == ["a", "5.0", "1.25", "2.25", "4.0", "70.0", "210"]


def test_acceptance():
    frame = pd.DataFrame(
        {
            "label": ["a"], "depth": [1], "trials": [1500], "accepted": [900],
            "conditional": [0.6], "conditional_low": [0.55], "conditional_high": [0.65],
            "cumulative": [0.6], "cumulative_low": [0.55], "cumulative_high": [0.65],
        }
    )  # fmt: skip
    assert acceptance_table(frame).shown.iloc[0].tolist() == [
        "a", "1", "1,500", "900", "0.600 [0.550, 0.650]", "0.600 [0.550, 0.650]",
    ]  # fmt: skip


def test_categories_side_by_side():
    frame = pd.DataFrame(
        {
            "label": ["a", "a", "b"],
            "category": ["math", "coding", "math"],
            "tau_macro": [2.0, 3.0, 1.5],
            "speedup": [1.25, np.nan, 0.5],
        }
    )
    shown = category_table(frame, "tau_macro").shown
    assert list(shown) == ["method", "math", "coding"]
    assert shown.to_numpy().tolist() == [["a", "2.00 / 1.25×", "3.00"], ["b", "1.50 / 0.50×", ""]]


def test_divergences_and_noise(bench_run: Path):
    table = divergence_table(load_run(bench_run).divergences, noise=3e-5)
    assert table.shown.iloc[0]["logit gap"] == "0.00021"
    assert table.shown.iloc[0]["verdict"] == "tie"
    assert "3.0e-05" in table.note
    assert f"less than {TIE_GAP:g} below" in table.note
    assert f"within {HALF_PRECISION_UNITS} units in the last place" in table.note


def test_provenance_is_flat():
    shown = provenance_table({"versions": {"torch": "2.13"}, "seed": 0, "end": None}).shown
    assert shown.to_numpy().tolist() == [["versions.torch", "2.13"], ["seed", "0"]]


def test_findings_name_the_winner_its_interval_and_who_comes_near():
    said = fastest(summary(**THREE, **SPEED))
    assert said.startswith(
        "eagle_dynamic is the fastest: 1.46× vanilla's speed (95 % interval 1.40"
    )
    assert said.endswith("The intervals of eagle_chain reach into it.")


@pytest.mark.parametrize(
    ("speedup", "low", "words"),
    [
        (0.9, 0.8, "No method is faster than vanilla; the nearest is eagle_chain, 0.90×"),
        (1.1, 0.95, "the interval holds 1, so a speedup is not shown"),
        (1.1, None, "with fewer than 5 questions there is no interval"),
    ],
)
def test_findings_claim_no_more_than_the_numbers(speedup: float, low: float | None, words: str):
    rows = summary(
        method=["vanilla", "self_speculation", "medusa1_lossy", "eagle_chain"],
        speedup=[1, 9, 9, speedup],
        speedup_low=[1, 9, 9, low],
        speedup_high=[1, 9, 9, None if low is None else 1.2],
    )
    assert words in fastest(rows)


def test_findings_of_a_bench(bench_run: Path):
    said = " ".join(run_sentences(load_run(bench_run)))
    assert "16 questions" in said
    assert "target smollm2_135m, float32 on cpu (AMD EPYC)" in said
    assert "eagle_dynamic is the fastest" in said
    assert "output equals vanilla's on every turn. 1 tie listed below." in said


@pytest.mark.parametrize(("temperature", "drawn"), [(0.0, False), (1.0, True)])
def test_a_replay_is_said_to_be_one(bench_run: Path, temperature: float, drawn: bool):
    run = load_run(bench_run)
    assert not any("Replayed" in said for said in run_sentences(run))
    run.config["eval"] |= {"replay": True, "temperature": temperature}
    (said,) = [said for said in run_sentences(run) if said.startswith("Replayed")]
    assert "acceptance only; equality was not checked" in said
    assert ("methods that draw their drafts" in said) == drawn


def test_findings_say_who_differs_and_whose_drafter_is_foreign(tmp_path: Path, bench_run: Path):
    run = load_run(bench_run)
    run.summary.loc[4, "greedy_match_rate"] = 0.75
    run.summary.loc[5, "drafter_matches_target"] = "false"
    said = " ".join(run_sentences(run))
    assert "greedy output differs from vanilla's for eagle_static on 25.0% of turns" in said
    assert "trained for another target: eagle_dynamic." in said


GRID = {
    "method": ["vanilla", *["eagle_dynamic"] * 4],
    "depth": [None, 2, 2, 4, 4],
    "width": [None, 4, 8, 4, 8],
    "num_nodes": [None, 8, 8, 8, 8],
    "status": ["ok", "ok", "ok", "ok", "infeasible"],
    "speedup": [1.0, 1.2, 1.5, 1.5, None],
    "speedup_low": [1.0, 1.1, 1.4, 1.35, None],
    "speedup_high": [1.0, 1.3, 1.6, 1.65, None],
    "tau_micro": [1.0, 2.0, 2.4, 2.6, None],
    "draft_ms": [0.0, 10.0, 10.0, 18.0, None],
    "verify_ms": [60.0, 70.0, 72.0, 71.0, None],
    "overhead_ms": [0.0, 1.0, 1.0, 1.0, None],
    "decode_tokens_per_second": [16.0, 20.0, 24.0, 24.0, None],
}


def test_the_best_setting_and_its_rivals():
    """Of two equal ones the shallower; the third's interval (to 1.3) stays below 1.4."""
    (grid,) = grids(summary(**GRID))
    best = best_setting(grid.feasible, "speedup")
    assert best is not None
    assert best[["depth", "width", "num_nodes"]].tolist() == [2, 8, 8]
    assert rivals(grid.feasible, best, "speedup")["depth"].tolist() == [4]
    assert grid.plane("speedup", 8).to_numpy().tolist()[0] == [1.2, 1.5]
    assert grid.infeasible_plane(8).to_numpy().tolist() == [[False, False], [False, True]]


def test_headline_rows_keep_one_setting_of_a_swept_method():
    rows = headline_rows(summary(**GRID))
    assert rows["method"].tolist() == ["vanilla", "eagle_dynamic"]
    assert rows["depth"].tolist()[1] == 2


def test_ranking_is_best_first_and_what_cannot_be_stands_apart():
    (grid,) = grids(summary(**GRID, reason=["", "", "", "", "too few candidates"]))
    shown = ranking(grid).shown
    assert list(zip(shown["depth"], shown["width"], strict=True)) == [
        ("2", "8"), ("4", "4"), ("2", "4")
    ]  # fmt: skip
    assert infeasible(grid).shown.to_numpy().tolist() == [["4", "8", "8", "too few candidates"]]


def test_cost_model():
    """draft 10, 10, 18 at depth 2, 2, 4: 4 ms a level; verify 71 on average, overhead 1.

    Vanilla's cycle is 60 ms, so the first tree, of depth 2, breaks even at 82 / 60 tokens.
    """
    (grid,) = grids(summary(**GRID))
    costs = fit_step_costs(grid.feasible)
    assert costs is not None
    assert costs.draft_per_level == pytest.approx(4.0)
    assert costs.draft_base == pytest.approx(2.0)
    assert (costs.verify_per_token, costs.verify_base) == (0.0, 71.0)
    assert costs.cycle_ms(depth=3, num_nodes=99) == pytest.approx(2 + 12 + 71 + 1)
    assert grid.vanilla_ms == 60.0
    rows = with_cost_model(grid)
    assert rows["tau_needed"].tolist() == pytest.approx([82 / 60, 82 / 60, 90 / 60])
    assert rows["predicted_speedup"].tolist()[0] == pytest.approx(2.0 * 60 / 82)


def test_a_slope_is_told_only_of_sizes_that_vary():
    """All trees have 8 nodes, so 9 tokens a pass; depths are 2 and 4."""
    figure = step_costs(grids(summary(**GRID))[0])
    assert figure is not None
    assert "draft 4.00 ms per level and 2.0 ms besides" in figure.caption
    assert "verify 71.0 ms, of 9 tokens alone;" in figure.caption


def test_of_a_batch_vanilla_itself_is_the_unit():
    """Batch 4. Vanilla: 12 cycles of 60 ms for 48 tokens. A tree of tau 2, 6 cycles of 90 ms: a
    speedup of 4/3. One that costs what vanilla does and brings as little: exactly 1."""
    trees = {(1, 1, 1): ([0] * 12, 60), (3, 1, 3): ([1] * 6, 90), (5, 1, 5): ([3] * 3, 120)}
    conditions = Conditions(batch_size=4, temperature=0.0, seed=0)

    def batch(accepted: list[int], milliseconds: float) -> list[dict]:
        decode_s = len(accepted) * milliseconds / 1000
        split = {"draft_s": decode_s / 4, "verify_s": decode_s * 3 / 4}
        made = [row(name, accepted, batch=0, seconds=(0.0, decode_s)) for name in range(4)]
        return [one | split for one in made]

    vanilla = batch([0] * 12, 60)
    lines = [summarize(Method("vanilla"), vanilla, vanilla, conditions)]
    for (depth, width, num_nodes), made in trees.items():
        method = Method("tree", depth=depth, width=width, num_nodes=num_nodes)
        lines.append(summarize(method, batch(*made), vanilla, conditions))
    (grid,) = grids(summary(**pd.DataFrame(lines).to_dict("list")))
    assert grid.vanilla_ms == pytest.approx(60.0)
    predicted = with_cost_model(grid)["predicted_speedup"]
    assert predicted.tolist() == pytest.approx([1.0, 4 / 3, 2.0])
    decoding = [line["decode_tokens_per_second"] for line in lines]
    assert predicted.tolist() == pytest.approx([speed / decoding[0] for speed in decoding[1:]])


def test_an_untimed_grid_has_no_costs():
    untimed = GRID | {"draft_ms": [None] * 5, "verify_ms": [None] * 5}
    assert fit_step_costs(grids(summary(**untimed))[0].feasible) is None


def test_a_grids_vanilla_is_that_of_its_own_conditions():
    """Two jobs at batch 1 and one at batch 4, whose cycle costs more."""
    rows = {name: values[:1] + values[1:3] for name, values in GRID.items()}
    jobs = [summary(**rows).assign(job=job, batch_size=size) for job, size in (("0", 1), ("2", 4))]
    jobs.append(jobs[0].assign(job="1"))
    for job, verify in zip(jobs, (60.0, 200.0, 64.0), strict=True):
        job.loc[0, "verify_ms"] = verify
    found = grids(pd.concat(jobs, ignore_index=True).assign(temperature=0.0))
    assert [grid.vanilla_ms for grid in found] == [62.0, 200.0]


def test_findings_of_a_sweep(sweep_root: Path):
    said = " ".join(sweep_sentences(load_sweep(sweep_root)))
    best = best_setting(grids(load_sweep(sweep_root).table)[0].feasible, "speedup")
    assert best is not None
    assert "27 settings, 7 of them infeasible" in said
    assert "the best of 20 measured settings; the intervals of" in said
    assert f"at depth {best['depth']:g}, width {best['width']:g}" in said
