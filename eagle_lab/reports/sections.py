"""What a report is made of: findings, then sections of figures and tables, then provenance.

`SECTIONS` lists the sections of every kind of report in order, with the condition under which each
stands; what then turns out to be empty is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property

import pandas as pd
import yaml

from eagle_lab.errors import choose
from eagle_lab.reports import findings, tables
from eagle_lab.reports.acceptance import (
    acceptance_by_depth,
    accepted_histogram,
    calibration,
    cycles,
    has_confidences,
    tokens_per_cycle,
)
from eagle_lab.reports.draw import Plot, styles_of
from eagle_lab.reports.figures import plot
from eagle_lab.reports.frames import label_rows, main_rows, tidy, with_labels
from eagle_lab.reports.load import Run, Sweep
from eagle_lab.reports.sweeps import Grid, grids, headline_rows
from eagle_lab.reports.tables import Table


@dataclass(frozen=True)
class Section:
    """A heading with its figures and tables; long tables are folded away in HTML."""

    title: str
    plots: list[Plot] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    folded: bool = False


@dataclass(frozen=True)
class Content:
    """A whole report: title, warnings above all else, findings, sections, provenance.

    In a notebook, `describe(run).plot("speedup_by_method")` shows one figure with its caption.
    """

    title: str
    warnings: list[str]
    findings: list[str]
    sections: list[Section]
    provenance: Table
    config: str

    @property
    def plots(self) -> dict[str, Plot]:
        """All figures by name, in order."""
        return {plot.name: plot for section in self.sections for plot in section.plots}

    @property
    def tables(self) -> dict[str, Table]:
        """All tables by name, in order, provenance last."""
        tables = [table for section in self.sections for table in section.tables]
        return {table.name: table for table in [*tables, self.provenance]}

    def plot(self, name: str) -> Plot:
        """One figure; a UserError names the others if there is none of that name."""
        return self.plots[choose(name, self.plots, "figure")]

    def table(self, name: str) -> Table:
        """One table; a UserError names the others if there is none of that name."""
        return self.tables[choose(name, self.tables, "table")]


class Data:
    """The rows that sections share, each made when first asked for."""

    def __init__(self, results: Run | Sweep) -> None:
        self.results = results
        self.run = results if isinstance(results, Run) else Run(results.path, results.finished)
        table = results.summary if isinstance(results, Run) else results.table
        self.table = tidy(table) if table.empty else table

    @cached_property
    def grids(self) -> list[Grid]:
        """Methods that were swept over tree sizes."""
        return grids(self.table)

    @cached_property
    def listed(self) -> pd.DataFrame:
        """Rows of the table of methods: of a run with the best of every grid, of a sweep with what
        is in none."""
        if isinstance(self.results, Run) or not self.grids:
            return label_rows(headline_rows(self.table))
        rows = self.table.drop(index=[index for grid in self.grids for index in grid.rows.index])
        return label_rows(rows[rows["method"] != "vanilla"])

    @cached_property
    def rows(self) -> pd.DataFrame:
        """The feasible ones of `listed` at the smallest batch size, which figures compare."""
        rows = main_rows(self.listed)
        return rows.sort_values("method", key=lambda names: pd.factorize(names)[0], kind="stable")

    @cached_property
    def generations(self) -> pd.DataFrame:
        """Generations of `rows`."""
        return with_labels(self.run.generations, self.rows)

    @cached_property
    def cycles(self) -> pd.DataFrame:
        """Cycles of `generations`."""
        return cycles(self.generations)


def section(
    title: str, plots: Iterable[Plot | None], shown: Iterable[Table] = (), *, folded: bool = False
) -> Section:
    """A section of the figures that there was something to draw for and the tables with rows."""
    found = [plot for plot in plots if plot is not None]
    return Section(title, found, [table for table in shown if not table.shown.empty], folded)


def methods(data: Data) -> Section:
    """τ and speedup of every method."""
    found = [plot(name, data.rows, data.rows) for name in ("tau_by_method", "speedup_by_method")]
    return section("Methods", found, [tables.method_table(data.listed)])


def tree_sizes(data: Data) -> Section:
    """Heat maps, costs and ranking of every grid of tree sizes."""
    names = ("sweep_tau", "sweep_speedup", "step_costs", "cost_model")
    found = [plot(name, grid, grid.feasible, grid.suffix) for grid in data.grids for name in names]
    shown = [
        make(grid)
        for grid in data.grids
        for make in (tables.ranking_table, tables.infeasible_table)
    ]
    return section("Tree size", found, shown)


def acceptance(data: Data) -> Section:
    """How far drafts are accepted."""
    rows = data.rows
    drafting = rows[(rows["drafted_per_cycle"].fillna(1) > 0) & (rows["method"] != "vanilla")]
    depths = {str(row.label): int(row.depth) for row in rows.dropna(subset=["depth"]).itertuples()}
    drafted = data.cycles[data.cycles["label"].isin(drafting["label"])]
    by_depth = acceptance_by_depth(drafted, depths, seed=data.run.seed)
    found = [
        plot("acceptance_by_depth", (by_depth, styles_of(rows)), rows),
        plot("accepted_length", accepted_histogram(drafted), rows),
    ]
    shown = [tables.plain_table("acceptance", by_depth)]
    return section("Acceptance", found, shown, folded=True)


def confidence(data: Data) -> Section:
    """How far the drafters' confidence is from acceptance."""
    bins = calibration(data.generations, seed=data.run.seed)
    shown = [tables.plain_table("calibration", bins)]
    return section("Calibration", [plot("calibration", bins)], shown, folded=True)


def time(data: Data) -> Section:
    """Where the time of a cycle goes, and what batches change."""
    found = [plot("throughput_by_batch", data.table, data.table)]
    if isinstance(data.results, Sweep):
        return section("Time", found)
    costs = tables.cost_table(data.rows, tokens_per_cycle(data.generations, data.cycles))
    return section("Time", [plot("time_split", data.rows, data.rows), *found], [costs])


def categories(data: Data) -> Section:
    """τ and speedup by category of the questions."""
    conditions = data.rows[["temperature", "batch_size"]].iloc[0].to_dict()
    rows = with_labels(data.run.by_category.assign(**conditions), data.rows)
    found = [plot(name, rows, rows) for name in ("categories_tau", "categories_speedup")]
    return section("Categories", found, [tables.category_table(rows)], folded=True)


def exactness(data: Data) -> Section:
    """Where greedy output leaves vanilla's."""
    noise = (data.run.totals.get("logit_noise") or {}).get("max_difference")
    return section("Exactness", [], [tables.divergence_table(data.run.divergences, noise)])


def training(data: Data) -> Section:
    """The curve of a training."""
    rows = data.run.training
    table = tables.training_table(rows)
    return section("Training", [plot("training", rows)], [table], folded=True)


def passes(data: Data) -> Section:
    """What passes, cycles and speedups a profile found."""
    profile = data.run.profile
    assert profile is not None
    names = ("cost_curves", "relative_cost")
    found = [*(plot(name, profile) for name in names), plot("crossover", profile.crossover)]
    shown = [
        tables.limits_table(profile.limits),
        tables.plain_table("passes", pd.concat([profile.of("target"), profile.of("draft")])),
        *(
            tables.plain_table(name, getattr(profile, name))
            for name in ("overhead", "predictions", "crossover")
        ),
    ]
    return section("Costs", found, shown)


Condition = Callable[[Data], bool]
SECTIONS: tuple[tuple[Condition, Callable[[Data], Section]], ...] = (
    (lambda data: not data.listed.empty, methods),
    (lambda data: bool(data.grids), tree_sizes),
    (lambda data: not data.generations.empty, acceptance),
    (lambda data: has_confidences(data.generations), confidence),
    (lambda data: not data.table.empty, time),
    (lambda data: not data.run.by_category.empty, categories),
    (lambda data: not data.run.divergences.empty, exactness),
    (lambda data: not data.run.training.empty, training),
    (lambda data: data.run.profile is not None, passes),
)


def describe(results: Run | Sweep) -> Content:
    """The findings, figures and tables of a run or a sweep, without writing anything."""
    data = Data(results)
    sections = [make(data) for stands, make in SECTIONS if stands(data)]
    kind = "sweep" if isinstance(results, Sweep) else str(results.config.get("task") or "run")
    return Content(
        title=f"{kind.capitalize()} report: {results.path.name}",
        warnings=list(findings.warnings_of(results)),
        findings=list(_findings(data)),
        sections=[section for section in sections if section.plots or section.tables],
        provenance=tables.provenance_table(results.provenance),
        config=yaml.safe_dump(results.config, sort_keys=False, allow_unicode=True)
        if results.config
        else "",
    )


def _findings(data: Data) -> Iterable[str]:
    config, provenance = data.results.config, data.results.provenance
    yield findings.setting(data.table, config, provenance)
    if not data.table.empty:
        yield from findings.contest(data.table, data.rows)
        yield from findings.drift(data.table)
    if isinstance(data.results, Run) and not data.table.empty:
        yield from findings.exactness(data.listed, data.run.divergences)
    if has_confidences(data.generations):
        yield from findings.calibrated(data.generations, data.run.seed)
    if not data.run.training.empty:
        yield findings.trained(data.run.training)
    if data.run.profile is not None:
        yield from findings.profiled(data.run.profile)
