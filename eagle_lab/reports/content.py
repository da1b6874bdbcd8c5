"""What stands in a report, in its order: findings, then sections of figures and tables.

Chooses among the tables and plots; computes nothing itself. Sections without content are left out,
so a run that was not timed has no timing figures.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import pandas as pd

from eagle_lab.reports import (
    acceptance_plots,
    curves,
    heatmaps,
    method_tables,
    plots,
    sweep_plots,
    sweep_tables,
    tables,
)
from eagle_lab.reports.acceptance import (
    acceptance_by_depth,
    accepted_histogram,
    cycles,
    tokens_per_cycle,
)
from eagle_lab.reports.frames import label_generations, label_rows, main_rows
from eagle_lab.reports.load import Run, Sweep
from eagle_lab.reports.plots import Plot
from eagle_lab.reports.sentences import fastest, run_sentences
from eagle_lab.reports.sweep_sentences import sweep_sentences
from eagle_lab.reports.sweeps import grids, headline_rows
from eagle_lab.reports.tables import Table
from eagle_lab.reports.training import acceptance_columns, tau_column


@dataclass(frozen=True)
class Section:
    """A heading with its figures and tables; long tables are folded away in HTML."""

    title: str
    plots: list[Plot] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    folded: bool = False


@dataclass(frozen=True)
class Content:
    """A whole report: title, warnings above all else, findings, sections, provenance."""

    title: str
    warnings: list[str]
    findings: list[str]
    sections: list[Section]
    provenance: Table
    config: str


def run_content(run: Run) -> Content:
    """The report of one run folder."""
    sections = _bench_sections(run) if not run.summary.empty else []
    sections += [_grid_section(run.summary)] if not run.summary.empty else []
    sections.append(_training_section(run.training))
    return Content(
        title=f"{str(run.config.get('task') or 'run').capitalize()} report: {run.path.name}",
        warnings=[] if run.finished else [UNFINISHED],
        findings=run_sentences(run),
        sections=_filled(sections),
        provenance=tables.provenance_table(run.provenance),
        config=tables.as_yaml(run.config),
    )


UNFINISHED = (
    "This run is unfinished: it was stopped or is still going. What follows rests on what it has "
    "written so far; start the same command again to go on."
)


def _bench_sections(run: Run) -> list[Section]:
    rows = headline_rows(run.main)
    generations = label_generations(run.generations, rows)
    per_cycle = cycles(generations)
    styles = plots.styles_of(rows)
    drafting = per_cycle[per_cycle["label"].isin(rows["label"][rows["method"] != "vanilla"])]
    by_depth = acceptance_by_depth(drafting, depths_of(rows), seed=seed_of(run))
    shares = accepted_histogram(drafting)
    overview = [plots.tau_by_method(rows), plots.speedup_by_method(rows)]
    detail = [
        acceptance_plots.acceptance_by_depth(by_depth, styles),
        acceptance_plots.accepted_histogram(shares, styles),
    ]
    time = [plots.time_split(rows), curves.throughput_by_batch(run.summary)]
    methods = method_tables.method_table(headline_rows(run.summary))
    acceptance = method_tables.acceptance_table(by_depth)
    costs = method_tables.cost_table(rows, tokens_per_cycle(generations, per_cycle))
    return [
        Section("Methods", _drawn(overview), [methods]),
        Section("Acceptance", _drawn(detail), [acceptance], folded=True),
        Section("Time", _drawn(time), [costs]),
        _category_section(run),
        Section("Exactness", [], [method_tables.divergence_table(run.divergences, noise_of(run))]),
    ]


def depths_of(rows: pd.DataFrame) -> dict[str, int]:
    """Levels drafted per label, where the summary tells."""
    known = rows.dropna(subset=["depth"])
    return {str(row["label"]): int(row["depth"]) for _, row in known.iterrows()}


def seed_of(run: Run) -> int:
    """The run's seed, 0 if it is not recorded."""
    return int(run.provenance.get("seed") or run.config.get("seed") or 0)


def noise_of(run: Run) -> float | None:
    """Largest difference of the target's logits between passes of different sizes."""
    return (run.totals.get("logit_noise") or {}).get("max_difference")


def _category_section(run: Run) -> Section:
    if run.by_category.empty:
        return Section("Categories")
    rows = label_rows_like(run.by_category, headline_rows(run.main))
    value = "tau_macro" if rows["tau_macro"].notna().any() else "tau_micro"
    heat = [heatmaps.category_heatmap(rows, name) for name in (value, "speedup")]
    return Section(
        "Categories", _drawn(heat), [method_tables.category_table(rows, value)], folded=True
    )


def label_rows_like(by_category: pd.DataFrame, summary: pd.DataFrame) -> pd.DataFrame:
    """`by_category` with the labels of `summary`, in its order; rows of other settings drop out."""
    keys = ["method"] + [
        name
        for name in ("drafter", "batch_size", "temperature", "depth", "width", "num_nodes")
        if by_category[name].notna().any()
    ]
    return summary[[*keys, "label"]].merge(by_category, on=keys, how="inner")


def _training_section(training: pd.DataFrame) -> Section:
    if training.empty:
        return Section("Training")
    columns, tau = acceptance_columns(training), tau_column(training)
    table = method_tables.training_table(training, columns, tau)
    drawn = curves.training_curve(training, columns, tau)
    return Section("Training", _drawn([drawn]), [table], folded=True)


def sweep_content(sweep: Sweep) -> Content:
    """The report of a sweep's root."""
    sections = [_grid_section(sweep.table), _other_settings(sweep.table)]
    overall = [] if grids(sweep.table) else [fastest(main_rows(sweep.table))]
    return Content(
        title=f"Sweep report: {sweep.path.name}",
        warnings=[] if sweep.finished else [f"{UNFINISHED} Missing: {', '.join(sweep.missing)}."],
        findings=[*sweep_sentences(sweep), *overall],
        sections=_filled(sections),
        provenance=tables.provenance_table(sweep.provenance),
        config=tables.as_yaml(sweep.config),
    )


def _other_settings(table: pd.DataFrame) -> Section:
    """Rows that are in no grid of tree sizes: other methods, drafters, batch sizes."""
    gridded = [index for grid in grids(table) for index in grid.rows.index]
    rows = label_rows(table.drop(index=gridded))
    if gridded:
        rows = rows[rows["method"] != "vanilla"]
    rows = rows.sort_values("method", key=lambda names: pd.factorize(names)[0], kind="stable")
    drawn = [
        plots.tau_by_method(main_rows(rows)),
        plots.speedup_by_method(main_rows(rows)),
        curves.throughput_by_batch(table),
    ]
    return Section("Settings", _drawn(drawn), [method_tables.method_table(rows)])


def _grid_section(table: pd.DataFrame) -> Section:
    found = grids(table)
    drawn: list[Plot | None] = []
    for grid in found:
        drawn += [heatmaps.sweep_heatmap(grid, name) for name in ("tau_macro", "speedup")]
        drawn.append(sweep_plots.step_costs(grid))
        drawn.append(sweep_plots.predicted_speedup(grid, table))
    return Section("Tree size", _drawn(drawn), [sweep_tables.ranking(grid) for grid in found])


def _drawn(candidates: Iterable[Plot | None]) -> list[Plot]:
    return [plot for plot in candidates if plot is not None]


def _filled(sections: list[Section]) -> list[Section]:
    kept = [
        Section(
            section.title,
            section.plots,
            [table for table in section.tables if not table.shown.empty],
            section.folded,
        )
        for section in sections
    ]
    return [section for section in kept if section.plots or section.tables]
