"""The settings of a sweep: best first, and those that cannot be."""

from __future__ import annotations

from eagle_lab.reports.sweeps import Grid
from eagle_lab.reports.tables import Table, decimals, make_table, text, with_interval
from eagle_lab.reports.words import known


def ranking(grid: Grid) -> Table:
    """Settings of one grid that could run, by speedup (by τ where untimed)."""
    by = "speedup" if known(grid.feasible, "speedup") else "tau_macro"
    rows = grid.feasible.sort_values(
        [by, "num_nodes", "depth", "width"], ascending=[False, True, True, True]
    )
    columns = {
        "depth": rows["depth"].map(decimals(0)),
        "width": rows["width"].map(decimals(0)),
        "nodes": rows["num_nodes"].map(decimals(0)),
        "speedup [95 %]": with_interval(rows, "speedup", unit="×"),
        "τ macro [95 %]": with_interval(rows, "tau_macro"),
        "τ micro": rows["tau_micro"].map(decimals(2)),
        "tokens/s": rows["tokens_per_second"].map(decimals(1)),
        "draft ms": rows["draft_ms"].map(decimals(1)),
        "verify ms": rows["verify_ms"].map(decimals(1)),
        "overhead ms": rows["overhead_ms"].map(decimals(1)),
    }
    note = "Times are means per cycle. " if known(rows, "verify_ms") else ""
    note += (
        "The first row is the best of many noisy measurements: its value is likely to be a little "
        "lower when measured anew."
    )
    return make_table(f"ranking{grid.suffix}", _title(grid, "best first"), rows, columns, note)


def infeasible(grid: Grid) -> Table:
    """Settings of one grid that cannot be, and why; empty if all could run."""
    rows = grid.rows[grid.rows["infeasible"]].sort_values(["num_nodes", "depth", "width"])
    columns = {
        "depth": rows["depth"].map(decimals(0)),
        "width": rows["width"].map(decimals(0)),
        "nodes": rows["num_nodes"].map(decimals(0)),
        "reason": rows["reason"].map(text),
    }
    title = _title(grid, "sizes that cannot be")
    return make_table(f"infeasible{grid.suffix}", title, rows, columns)


def _title(grid: Grid, what: str) -> str:
    return f"{grid.method}, {what}" + (f" ({grid.conditions})" if grid.conditions else "")
