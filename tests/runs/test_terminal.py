"""Tables of a terminal: 80 characters hold every cell, empty columns are left out."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from eagle_lab.columns import SUMMARY
from eagle_lab.runs.terminal import bench_table, crossover_table, curve_table, notes, show_profile

ROW: dict[str, Any] = dict.fromkeys(column.key for column in SUMMARY) | {
    "method": "eagle_dynamic_shipped", "depth": 6, "width": 10, "num_nodes": 59, "status": "ok",
    "tau_micro": 3.214, "tau_micro_low": 3.1, "tau_micro_high": 3.3, "tokens_per_second": 123.4,
    "settings": '{"depth": 6, "stop_confidence": 0.1}', "num_disturbed": 0,
    "speedup": 2.345, "speedup_low": 2.2, "speedup_high": 2.4, "greedy_match_rate": 1.0,
}  # fmt: skip


def text_of(table: Table) -> str:
    console = Console(width=80, record=True)
    console.print(table)
    text = console.export_text()
    assert "…" not in text
    return text


def test_a_bench_fits_with_its_intervals() -> None:
    text = text_of(bench_table([ROW]))
    for word in ("eagle_dynamic_shipped", "6/10/59", "3.21 [3.10, 3.30]", "2.35 [2.20, 2.40]"):
        assert word in text
    assert "1.000" in text and "123.4" in text


def test_a_bench_without_timing_has_no_columns_of_speed() -> None:
    text = text_of(bench_table([ROW | {"tokens_per_second": None, "speedup": None}]))
    assert "τ" in text and "speedup" not in text


def test_rows_of_one_method_and_tree_are_told_apart_by_their_settings() -> None:
    other = ROW | {"settings": '{"depth": 6, "stop_confidence": 0.2}'}
    text = text_of(bench_table([ROW, other]))
    assert "stop_confidence=0.1" in text and "stop_confidence=0.2" in text and "depth=" not in text
    assert "stop_confidence" not in text_of(bench_table([ROW]))


def test_notes_name_what_is_infeasible_and_what_was_disturbed() -> None:
    infeasible = ROW | {"status": "infeasible", "reason": "too few"}
    stalled = ROW | {"num_disturbed": 3, "speedup_robust": 2.5}
    first, second = notes([ROW, infeasible, stalled])
    assert "too few" in first
    assert "eagle_dynamic_shipped 6/10/59" in second and "3" in second and "2.50" in second


PASS = {
    "model_pass": "target", "batch_size": 128, "context": 2048, "median_ms": 1234.56,
    "relative_cost": 1.5, "plain_median_ms": 2.0, "read_share": 0.5, "arithmetic_share": 0.25,
}  # fmt: skip


def test_of_many_pass_sizes_ten_are_shown_first_and_last_among_them() -> None:
    counts = range(1, 40, 2)
    text = text_of(curve_table([PASS | {"num_tokens": count} for count in counts]))
    (heading,) = [line for line in text.splitlines() if "n =" in line]
    shown = [int(word) for word in heading.split("n =")[1].split()]
    assert len(shown) == 10 and (shown[0], shown[-1]) == (1, 39)
    (reading,) = [line for line in text.splitlines() if "reading" in line]
    assert reading.split()[-10:] == ["50"] * 10


def test_a_profile_shows_limits_overheads_and_predictions() -> None:
    console = Console(width=80, record=True)
    overhead = {"method": "vanilla", "batch_size": 1, "cycle_ms": 20.0, "models_ms": 18.0,
                "overhead_ms": 2.0, "overhead_low_ms": 1.5, "overhead_high_ms": 2.5}  # fmt: skip
    predicted = ROW | {"predicted_speedup": 1.75, "decode_speedup": 1.5, "best": "tree"}
    ceilings = {"read": 12e9, "float32": 800e9}
    show_profile(console, [PASS | {"num_tokens": 1}], [overhead], [predicted], ceilings)
    text = console.export_text()
    assert "…" not in text
    for word in ("12.0 GB/s", "float32 800 GFLOP/s", "2.00 [1.50, 2.50]", "1.75×", "tree"):
        assert word in text


def test_a_crossover_has_a_line_per_place_and_a_column_per_assumption() -> None:
    chain = {"drafting": "chain", "batch_size": 8, "context": 512, "acceptance": 0.7, "depth": 3,
             "predicted_speedup": 1.25}  # fmt: skip
    tree = chain | {"drafting": "tree", "tau": 3.0, "predicted_speedup": 1.5}
    text = text_of(crossover_table("llama_8b", [chain, tree]))
    (line,) = [line for line in text.splitlines() if "8, 512" in line]
    assert line.split() == ["8,", "512", "1.25", "(3)", "1.50"]
