"""Writing a report into the folder it is about.

    figures/NAME.png    one file per figure
    tables/NAME.csv     the numbers of each table; NAME.md and NAME.tex as a reader wants them
    report.md           findings and tables as Markdown
    report.html         everything in one page: figures inside as base64, no script, nothing loaded

Each file appears whole or not at all; the page comes last. Its shape is `report.html.j2`.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path

from jinja2 import Environment, StrictUndefined

from eagle_lab.files import write_text
from eagle_lab.reports.load import is_sweep, load_run, load_sweep
from eagle_lab.reports.sections import Content, Section, describe

PIXELS_PER_INCH = 104


def make_report(path: str | Path) -> Path:
    """Make the report of a run folder or of a sweep's root.

    Args:
        path: `output_dir` of a run, finished or not, or the root of a sweep.

    Returns:
        The path of `report.html`, inside `path`.

    Raises:
        UserError: if `path` is no run folder, or holds no results yet.
    """
    results = load_sweep(path) if is_sweep(path) else load_run(path)
    return write_report(results.path, describe(results))


def join_reports(root: Path, title: str, runs: Mapping[str, Path]) -> Path:
    """Write one report of several `runs` (name -> folder) into `root`; returns its page.

    Provenance and configuration are the first run's; names of figures and tables get the run's.

    Raises:
        UserError: one of them holds no results.
    """
    parts = {name: describe(load_run(folder)) for name, folder in runs.items()}
    first = next(iter(parts.values()))
    content = replace(
        first,
        title=title,
        warnings=[f"{name}: {text}" for name, part in parts.items() for text in part.warnings],
        findings=[f"{name}: {text}" for name, part in parts.items() for text in part.findings],
        sections=[
            _renamed(section, name) for name, part in parts.items() for section in part.sections
        ],
    )
    return write_report(root, content)


def _renamed(section: Section, name: str) -> Section:
    prefix = name.replace("/", "_")
    return replace(
        section,
        title=f"{name}: {section.title}",
        plots=[replace(plot, name=f"{prefix}_{plot.name}") for plot in section.plots],
        tables=[replace(table, name=f"{prefix}_{table.name}") for table in section.tables],
    )


def write_report(folder: Path, content: Content) -> Path:
    """Write figures, tables, Markdown and the page; return the page's path."""
    images = {name: plot.save(folder / "figures") for name, plot in content.plots.items()}
    for table in content.tables.values():
        table.save(folder / "tables")
    write_text(folder / "report.md", to_markdown(content))
    page = folder / "report.html"
    write_text(page, to_html(content, images))
    return page


def to_markdown(content: Content) -> str:
    """Findings, figures by reference, and tables, as one Markdown document."""
    parts = [f"# {content.title}", ""]
    parts += [f"> **{warning}**\n" for warning in content.warnings]
    parts += [f"- {finding}" for finding in content.findings]
    for section in content.sections:
        for plot in section.plots:
            parts += ["", f"![{plot.title}](figures/{plot.name}.png)", "", f"*{plot.caption}*"]
        parts += [f"\n{table.to_markdown()}" for table in section.tables]
    return "\n".join([*parts, "", content.provenance.to_markdown()])


def to_html(content: Content, images: Mapping[str, Path]) -> str:
    """The page; `images` are the PNG files by the figures' names."""
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["embedded"] = lambda name: _embedded(images[name])
    source = resources.files("eagle_lab.reports").joinpath("report.html.j2").read_text("utf-8")
    return environment.from_string(source).render(
        content=content,
        numbers={name: number for number, name in enumerate(content.plots, start=1)},
        pixels=PIXELS_PER_INCH,
        made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    )


def _embedded(path: Path) -> str:
    """A PNG file as a data URI."""
    return f"data:image/png;base64,{base64.b64encode(path.read_bytes()).decode('ascii')}"
