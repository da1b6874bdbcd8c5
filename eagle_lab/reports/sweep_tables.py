"""The settings of a sweep, best first."""

from __future__ import annotations

from eagle_lab.reports.sweeps import Grid
from eagle_lab.reports.tables import Table, decimals, make_table, with_interval


def ranking(grid: Grid) -> Table:
    """Settings of one grid by speedup (by τ where untimed), infeasible ones last."""
    by = "speedup" if grid.feasible["speedup"].notna().any() else "tau_macro"
    rows = grid.rows.sort_values(
        [by, "num_nodes", "depth", "width"], ascending=[False, True, True, True]
    )
    remark = rows["infeasible"].map({True: "infeasible", False: ""})
    if "reason" in rows:
        remark = remark.where(rows["reason"].isna(), "infeasible: " + rows["reason"].astype(str))
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
        "remark": remark,
    }
    title = f"{grid.method}, best first" + (f" ({grid.conditions})" if grid.conditions else "")
    note = (
        "Times are means per cycle. The first row is the best of many noisy measurements: its "
        "value is likely to be a little lower when measured anew."
    )
    return make_table(f"ranking{grid.suffix}", title, rows, columns, note)
