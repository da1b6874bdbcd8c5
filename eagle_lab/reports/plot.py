"""What a figure is: a drawing with name, title and caption; and words that captions share."""

from __future__ import annotations

import base64
import html
import io
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from eagle_lab.reports.style import MethodStyle, label_styles, paper_style

NOTEBOOK_DPI = 120


@dataclass(frozen=True)
class Plot:
    """One figure: name of its file, title, caption, and the figure itself."""

    name: str
    title: str
    caption: str
    figure: Figure

    def save(self, folder: Path) -> Path:
        """Write `folder/NAME.png`, whole or not at all; the caption goes into its metadata."""
        path = folder / f"{self.name}.png"
        partial = folder / f"{self.name}.png.partial"
        with paper_style():
            self.figure.savefig(partial, format="png", metadata={"Description": self.caption})
        return partial.replace(path)

    def _repr_html_(self) -> str:
        """How a notebook shows it: figure and caption."""
        image = io.BytesIO()
        with paper_style():
            self.figure.savefig(image, format="png", dpi=NOTEBOOK_DPI)
        data = base64.b64encode(image.getvalue()).decode("ascii")
        return (
            f'<figure><img alt="{html.escape(self.title)}" src="data:image/png;base64,{data}">'
            f"<figcaption>{html.escape(self.caption)}</figcaption></figure>"
        )


def conditions(rows: pd.DataFrame) -> str:
    """`n = 16 questions, T = 0, batch size 1`: what holds for all of `rows`."""
    said = []
    if rows["num_questions"].notna().any():
        low, high = rows["num_questions"].min(), rows["num_questions"].max()
        count = f"{low:g}" if low == high else f"{low:g} to {high:g}"
        said.append(f"n = {count} question{'' if high == 1 else 's'}")
    for column, name in (("temperature", "T = "), ("batch_size", "batch size ")):
        values = rows[column].dropna().unique()
        if len(values) == 1:
            said.append(f"{name}{values[0]:g}")
    return ", ".join(said)


def styles_of(rows: pd.DataFrame) -> dict[str, MethodStyle]:
    """Style per label of `rows`."""
    return label_styles(list(rows["label"]), list(rows["method"]))


def in_lines(label: str) -> str:
    """A long label in two lines: the method, then its settings."""
    return label.replace(", ", "\n", 1) if len(label) > 24 else label
