"""Sweeps: grids, best settings, rivals, the cost model, against values worked out by hand."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from eagle_lab.bench.results import Conditions, summarize
from eagle_lab.methods.build import Method
from eagle_lab.reports import Sweep, describe
from eagle_lab.reports.frames import label_rows, tidy
from eagle_lab.reports.sweeps import (
    best_setting,
    fit_step_costs,
    grids,
    headline_rows,
    rivals,
    with_cost_model,
)
from eagle_lab.reports.tables import infeasible_table, ranking_table
from tests.bench.fakes import row


def summary(**columns: list) -> pd.DataFrame:
    return label_rows(tidy(pd.DataFrame(columns)))


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


def test_ranking_is_best_first_and_the_infeasible_stand_apart():
    (grid,) = grids(summary(**GRID, reason=["", "", "", "", "too few candidates"]))
    table = ranking_table(grid)
    assert table.shown[["depth", "width"]].to_numpy().tolist() == [
        ["2", "8"], ["4", "4"], ["2", "4"]
    ]  # fmt: skip
    assert table.best == {0}
    shown = infeasible_table(grid).shown
    assert shown.to_numpy().tolist() == [["4", "8", "8", "too few candidates"]]


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


def test_findings_of_a_sweep(tmp_path: Path):
    table = summary(**GRID).assign(job="")
    measured, fastest, highest = describe(Sweep(tmp_path, table, missing=[])).findings
    assert "1 infeasible" in measured
    assert "eagle_dynamic, depth 2, width 8, speedup 1.50×" in fastest and "1 of 2" in fastest
    assert "eagle_dynamic, depth 4, width 4, τ 2.60" in highest
