"""Several runs in one report: the findings, figures and tables of each under its own name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from eagle_lab.reports.build import describe, write_report
from eagle_lab.reports.content import Content, Section
from eagle_lab.reports.load import load_run


def join_reports(root: Path, title: str, runs: Mapping[str, Path]) -> Path:
    """Write the joined report of `runs` (name -> folder) into `root`; returns its page.

    Provenance and configuration are the first run's.

    Raises:
        UserError: one of them holds no results.
    """
    contents = {name: describe(load_run(folder)) for name, folder in runs.items()}
    return write_report(root, joined(title, contents))


def joined(title: str, contents: Mapping[str, Content]) -> Content:
    """One report out of several, at least one; names of figures and tables get the run's before."""
    first = next(iter(contents.values()))
    return Content(
        title=title,
        warnings=[f"{name}: {said}" for name, part in contents.items() for said in part.warnings],
        findings=[f"{name}: {said}" for name, part in contents.items() for said in part.findings],
        sections=[
            _renamed(section, name) for name, part in contents.items() for section in part.sections
        ],
        provenance=first.provenance,
        config=first.config,
    )


def _renamed(section: Section, name: str) -> Section:
    beginning = name.replace("/", "_")
    return Section(
        f"{name}: {section.title}",
        [replace(plot, name=f"{beginning}_{plot.name}") for plot in section.plots],
        [replace(table, name=f"{beginning}_{table.name}") for table in section.tables],
        section.folded,
    )
