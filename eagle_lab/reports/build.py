"""Writing a report into the folder it is about.

    figures/NAME.png    one file per figure
    tables/NAME.csv     the numbers of each table; NAME.md and NAME.tex as a reader wants them
    report.md           findings and tables as Markdown
    report.html         everything in one page

Each file appears whole or not at all; the page comes last.
"""

from __future__ import annotations

from pathlib import Path

from eagle_lab.files import write_text
from eagle_lab.reports.content import Content
from eagle_lab.reports.folders import is_sweep
from eagle_lab.reports.html import figure_numbers, render
from eagle_lab.reports.load import Run, Sweep, load_run, load_sweep
from eagle_lab.reports.run_report import run_content
from eagle_lab.reports.sweep_report import sweep_content


def describe(results: Run | Sweep) -> Content:
    """The findings, figures and tables of a run or a sweep, without writing anything."""
    return run_content(results) if isinstance(results, Run) else sweep_content(results)


def make_report(path: str | Path) -> Path:
    """Make the report of a run folder or of a sweep's root.

    Args:
        path: `output_dir` of a bench or train run, finished or not, or the root of a sweep.

    Returns:
        The path of `report.html`, inside `path`.

    Raises:
        UserError: if `path` is no run folder, or holds no results yet.
    """
    results = load_sweep(path) if is_sweep(path) else load_run(path)
    return write_report(results.path, describe(results))


def write_report(folder: Path, content: Content) -> Path:
    """Write figures, tables, Markdown and the page; return the page's path."""
    figures = folder / "figures"
    figures.mkdir(exist_ok=True)
    images = {name: plot.save(figures) for name, plot in content.plots.items()}
    for table in content.tables.values():
        table.save(folder / "tables")
    write_text(folder / "report.md", to_markdown(content))
    page = folder / "report.html"
    write_text(page, render(content, images))
    return page


def to_markdown(content: Content) -> str:
    """Findings, figures by reference, and tables, as one Markdown document."""
    numbers = figure_numbers(content)
    parts = [f"# {content.title}", ""]
    parts += [f"> **{warning}**\n" for warning in content.warnings]
    parts += [f"- {finding}" for finding in content.findings]
    for section in content.sections:
        for plot in section.plots:
            parts += ["", f"![{plot.title}](figures/{plot.name}.png)", ""]
            parts += [f"*Figure {numbers[plot.name]}. {plot.caption}*"]
        for table in section.tables:
            parts += ["", table.to_markdown()]
    return "\n".join([*parts, "", content.provenance.to_markdown()])
