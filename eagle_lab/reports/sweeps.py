"""Reading a sweep: its grids, its best setting, and what a cycle costs as the tree grows.

Works on the `table` of a `Sweep` (one row per job, method and setting). Knows no files.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from eagle_lab.reports.frames import TREE, has_values

CONDITIONS = ["batch_size", "temperature"]


@dataclass(frozen=True)
class Grid:
    """The rows of one method at one batch size and temperature, over depth, width, num_nodes.

    Attributes:
        title: method, batch size and temperature.
        suffix: of the names of its tables and figures.
        vanilla_ms: vanilla's mean cycle under these conditions, one token for each row of the
            batch; NaN where untimed.
    """

    rows: pd.DataFrame
    title: str
    suffix: str
    vanilla_ms: float

    @property
    def feasible(self) -> pd.DataFrame:
        """Rows that could run."""
        return self.rows[~self.rows["infeasible"]]

    def plane(self, value: str, num_nodes: float) -> pd.DataFrame:
        """`value` over depth (rows, deepest last) and width (columns); NaN where unmeasured."""
        return self._spread(self.feasible, value, num_nodes).astype(float)

    def infeasible_plane(self, num_nodes: float) -> pd.DataFrame:
        """True where the setting is infeasible; the shape of `plane`."""
        marked = self.rows.assign(impossible=self.rows["infeasible"].astype(float))
        return self._spread(marked, "impossible", num_nodes).fillna(0.0) > 0

    def _spread(self, rows: pd.DataFrame, value: str, num_nodes: float) -> pd.DataFrame:
        depths, widths = (sorted(self.rows[name].dropna().unique()) for name in TREE[:2])
        chosen = rows[rows["num_nodes"] == num_nodes]
        plane = chosen.pivot_table(index="depth", columns="width", values=value, aggfunc="mean")
        return plane.reindex(index=depths, columns=widths)

    @property
    def node_counts(self) -> list[float]:
        """The values of num_nodes, ascending."""
        return sorted(self.rows["num_nodes"].dropna().unique())


def grids(table: pd.DataFrame) -> list[Grid]:
    """The grids that a sweep went over: methods whose depth, width or num_nodes vary."""
    complete = table.dropna(subset=TREE)
    swept = [
        str(method)
        for method, rows in complete.groupby("method", sort=False)
        if len(rows[TREE].drop_duplicates()) > 1
    ]
    vanilla = table[table["method"] == "vanilla"]
    found = []
    for method in swept:
        rows = complete[complete["method"] == method]
        groups = rows.groupby(CONDITIONS, dropna=False)
        for (batch_size, temperature), group in groups:
            title, suffix = method, "" if len(swept) == 1 else f"_{method}"
            if groups.ngroups > 1:
                title += f", batch {batch_size:g}, T = {temperature:g}"
                suffix += f"_batch{batch_size:g}_T{temperature:g}"
            alike = vanilla.merge(group[CONDITIONS].drop_duplicates(), on=CONDITIONS)
            vanilla_ms = float(cycle_ms(alike).mean())
            found.append(Grid(group, title, suffix, vanilla_ms))
    return found


def best_setting(rows: pd.DataFrame, by: str) -> pd.Series | None:
    """The row with the highest `by`; among equals the smallest tree. None if nothing is measured.

    The best of many noisy measurements looks better than it is: see `rivals`.
    """
    measured = rows[rows[by].notna()]
    if measured.empty:
        return None
    order = [by, "num_nodes", "depth", "width"]
    return measured.sort_values(order, ascending=[False, True, True, True]).iloc[0]


def rivals(rows: pd.DataFrame, best: pd.Series, by: str) -> pd.DataFrame:
    """Other rows whose 95 % interval of `by` overlaps the best one's."""
    low = best[f"{by}_low"]
    others = rows[rows.index != best.name]
    return others[others[f"{by}_high"] >= low]


def headline_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """`rows` with only the best setting of every method that was swept (by speedup, else tau)."""
    for grid in grids(rows):
        by = "speedup" if has_values(grid.feasible, "speedup") else "tau_micro"
        best = best_setting(grid.feasible, by)
        if best is not None:
            rows = rows.drop(index=[index for index in grid.rows.index if index != best.name])
    return rows


@dataclass(frozen=True)
class StepCosts:
    """A cycle's cost as straight lines, milliseconds: fitted to a sweep's measured means.

    draft = draft_base + draft_per_level * depth;
    verify = verify_base + verify_per_token * (1 + num_nodes), the root included.
    """

    draft_base: float
    draft_per_level: float
    verify_base: float
    verify_per_token: float
    overhead: float

    def cycle_ms(self, depth: float, num_nodes: float) -> float:
        """Cost of one cycle, milliseconds."""
        draft = self.draft_base + self.draft_per_level * depth
        verify = self.verify_base + self.verify_per_token * (1 + num_nodes)
        return draft + verify + self.overhead


def fit_step_costs(rows: pd.DataFrame) -> StepCosts | None:
    """Least-squares lines through the measured draft and verify times; None if untimed."""
    timed = rows.dropna(subset=["draft_ms", "verify_ms"])
    if timed.empty:
        return None
    draft = _line(timed["depth"].to_numpy(float), timed["draft_ms"].to_numpy(float))
    verify = _line(1 + timed["num_nodes"].to_numpy(float), timed["verify_ms"].to_numpy(float))
    return StepCosts(*draft, *verify, float(timed["overhead_ms"].fillna(0.0).mean()))


def _line(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Intercept and slope; a flat line where x does not vary."""
    if np.ptp(x) == 0:
        return float(y.mean()), 0.0
    slope, intercept = np.polyfit(x, y, 1)
    return float(intercept), float(slope)


def cycle_ms(rows: pd.DataFrame) -> pd.Series:
    """Mean cost of a cycle of the whole batch, milliseconds; NaN where untimed."""
    return rows[["draft_ms", "verify_ms", "overhead_ms"]].sum(axis=1, skipna=False)


def with_cost_model(grid: Grid) -> pd.DataFrame:
    """The rows of `grid` that could run, with `tau_needed` and `predicted_speedup`.

    `tau_needed` is the cycle of the fitted lines over vanilla's, both of the whole batch: where
    drafting breaks even. `predicted_speedup` is tau_micro / tau_needed: that of decoding, from tau
    and five fitted numbers instead of the setting's own times. Both NaN where untimed.
    """
    rows = grid.feasible.assign(tau_needed=np.nan)
    costs = fit_step_costs(rows)
    if costs is not None:
        fitted = [costs.cycle_ms(row.depth, row.num_nodes) for row in rows.itertuples()]
        rows["tau_needed"] = np.array(fitted) / grid.vanilla_ms
    return rows.assign(predicted_speedup=rows["tau_micro"] / rows["tau_needed"])
