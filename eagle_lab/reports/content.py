"""What a report is made of: findings, then sections of figures and tables, then provenance."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from eagle_lab.errors import choose
from eagle_lab.reports.plot import Plot
from eagle_lab.reports.tables import Table

UNFINISHED = (
    "This run is unfinished: it was stopped or is still going. What follows rests on what it has "
    "written so far; start the same command again to go on."
)


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


def drawn(candidates: Iterable[Plot | None]) -> list[Plot]:
    """The figures that there was something to draw for."""
    return [plot for plot in candidates if plot is not None]


def filled(sections: list[Section]) -> list[Section]:
    """`sections` without empty tables, and without sections that then hold nothing."""
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
