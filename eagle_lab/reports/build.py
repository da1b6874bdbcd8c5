"""Writing a report into the folder it is about.

    figures/NAME.png    one file per figure
    tables/NAME.csv     the numbers of each table
    report.md           findings and tables as Markdown
    report.html         everything in one page

Each file appears whole or not at all; the page comes last.
"""

from __future__ import annotations

from pathlib import Path

from eagle_lab.files import write_text
from eagle_lab.reports.content import Content, run_content, sweep_content
from eagle_lab.reports.folders import is_sweep
from eagle_lab.reports.html import figure_numbers, render
from eagle_lab.reports.load import load_run, load_sweep


def make_report(path: str | Path) -> Path:
    """Make the report of a run folder or of a sweep's root.

    Args:
        path: `output_dir` of a bench or train run, finished or not, or the root of a sweep.

    Returns:
        The path of `report.html`, inside `path`.

    Raises:
        UserError: if `path` is no run folder, or holds no results yet.
    """
    if is_sweep(path):
        sweep = load_sweep(path)
        return write_report(sweep.path, sweep_content(sweep))
    run = load_run(path)
    return write_report(run.path, run_content(run))


def write_report(folder: Path, content: Content) -> Path:
    """Write figures, tables, Markdown and the page; return the page's path."""
    figures = folder / "figures"
    figures.mkdir(exist_ok=True)
    images = {
        plot.name: plot.save(figures) for section in content.sections for plot in section.plots
    }
    for section in content.sections:
        for table in section.tables:
            write_text(folder / "tables" / f"{table.name}.csv", table.to_csv())
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
