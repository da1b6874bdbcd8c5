"""The report of a sweep: heat maps, best settings, costs of its grids, and what else varied."""

from __future__ import annotations

import pandas as pd

from eagle_lab.reports import (
    curves,
    heatmaps,
    method_tables,
    plots,
    sweep_plots,
    sweep_tables,
    tables,
)
from eagle_lab.reports.content import UNFINISHED, Content, Section, drawn, filled
from eagle_lab.reports.frames import label_rows, main_rows
from eagle_lab.reports.load import Sweep
from eagle_lab.reports.plot import Plot
from eagle_lab.reports.sentences import fastest
from eagle_lab.reports.sweep_sentences import sweep_sentences
from eagle_lab.reports.sweeps import grids


def sweep_content(sweep: Sweep) -> Content:
    """The report of a sweep's root."""
    sections = [grid_section(sweep.table), _other_settings(sweep.table)]
    overall = [] if grids(sweep.table) else [fastest(main_rows(sweep.table))]
    return Content(
        title=f"Sweep report: {sweep.path.name}",
        warnings=[] if sweep.finished else [f"{UNFINISHED} Missing: {', '.join(sweep.missing)}."],
        findings=[*sweep_sentences(sweep), *overall],
        sections=filled(sections),
        provenance=tables.provenance_table(sweep.provenance),
        config=tables.as_yaml(sweep.config),
    )


def grid_section(table: pd.DataFrame) -> Section:
    """Heat maps, costs and ranking of every grid of tree sizes in `table`; else empty."""
    found = grids(table)
    figures: list[Plot | None] = []
    for grid in found:
        figures += [heatmaps.sweep_heatmap(grid, name) for name in ("tau_macro", "speedup")]
        figures.append(sweep_plots.step_costs(grid))
        figures.append(sweep_plots.predicted_speedup(grid))
    shown = [
        make(grid) for grid in found for make in (sweep_tables.ranking, sweep_tables.infeasible)
    ]
    return Section("Tree size", drawn(figures), shown)


def _other_settings(table: pd.DataFrame) -> Section:
    """Rows that are in no grid of tree sizes: other methods, drafters, batch sizes."""
    gridded = [index for grid in grids(table) for index in grid.rows.index]
    rows = label_rows(table.drop(index=gridded))
    if gridded:
        rows = rows[rows["method"] != "vanilla"]
    rows = rows.sort_values("method", key=lambda names: pd.factorize(names)[0], kind="stable")
    figures = [
        plots.tau_by_method(main_rows(rows)),
        plots.speedup_by_method(main_rows(rows)),
        curves.throughput_by_batch(table),
    ]
    return Section("Settings", drawn(figures), [method_tables.method_table(rows)])
