"""One self-contained HTML page: figures inside as base64, no script, nothing loaded from outside.

Readable in light and in dark surroundings and on paper. The page's shape is `report.html.j2`.
"""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path

from jinja2 import Environment, StrictUndefined

from eagle_lab.reports.content import Content

PIXELS_PER_INCH = 104


def render(content: Content, images: dict[str, Path]) -> str:
    """The page.

    Args:
        content: what stands in it.
        images: the PNG file of each figure, by the figure's name.
    """
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["embedded"] = lambda name: embedded(images[name])
    source = resources.files("eagle_lab.reports").joinpath("report.html.j2").read_text("utf-8")
    return environment.from_string(source).render(
        content=content,
        numbers=figure_numbers(content),
        pixels=PIXELS_PER_INCH,
        made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    )


def embedded(path: Path) -> str:
    """A PNG file as a data URI."""
    return f"data:image/png;base64,{base64.b64encode(path.read_bytes()).decode('ascii')}"


def figure_numbers(content: Content) -> dict[str, int]:
    """Number of each figure on the page, by its name."""
    return {name: number for number, name in enumerate(content.plots, start=1)}
