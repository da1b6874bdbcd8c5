"""Tables of a report: raw numbers as CSV, and what a reader wants as Markdown and LaTeX.

A column without any value is left out of what is shown, so an untimed run has no timing columns.
Knows frames and words; draws nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from eagle_lab.files import write_text
from eagle_lab.reports.latex import booktabs

Show = Callable[[Any], str]


@dataclass(frozen=True)
class Table:
    """One table.

    Attributes:
        name: of its files.
        title: heading.
        raw: numbers as they were read.
        shown: the same as text, columns by their headings.
        note: what the reader has to know, one or two sentences.
        numeric: headings whose cells are set flush right.
    """

    name: str
    title: str
    raw: pd.DataFrame
    shown: pd.DataFrame
    note: str = ""
    numeric: frozenset[str] = field(default_factory=frozenset)

    def to_csv(self) -> str:
        """The raw numbers as CSV."""
        return self.raw.to_csv(index=False)

    def to_markdown(self) -> str:
        """Heading, note and pipe table; numbers to the right."""
        head = [f"## {self.title}", ""]
        if self.note:
            head += [self.note, ""]
        columns = list(self.shown.columns)
        rules = ["---:" if column in self.numeric else "---" for column in columns]
        body = [
            [str(value).replace("|", "\\|").replace("\n", " ") for value in row]
            for row in self.shown.itertuples(index=False)
        ]
        lines = [" | ".join(cells) for cells in [columns, rules, *body]]
        return "\n".join([*head, *(f"| {line} |" for line in lines), ""])

    def to_latex(self) -> str:
        """What is shown as a LaTeX table with booktabs rules; title and note are its caption."""
        rows = [[str(value) for value in row] for row in self.shown.itertuples(index=False)]
        caption = f"{self.title}. {self.note}".strip()
        return booktabs(self.name, caption, list(self.shown.columns), rows, self.numeric)

    def save(self, folder: Path) -> None:
        """Write NAME.csv, NAME.md and NAME.tex into `folder`."""
        for suffix, content in (
            ("csv", self.to_csv()),
            ("md", self.to_markdown()),
            ("tex", self.to_latex()),
        ):
            write_text(folder / f"{self.name}.{suffix}", content)

    def _repr_markdown_(self) -> str:
        """How a notebook shows it."""
        return self.to_markdown()


def decimals(places: int, unit: str = "") -> Show:
    """Numbers with `places` decimals, thousands grouped; empty where there is none."""
    return lambda value: "" if pd.isna(value) else f"{value:,.{places}f}{unit}"


def text(value: Any) -> str:
    """Plain text; empty for a missing value, whole numbers without a fraction."""
    if value is None or (not isinstance(value, (list, dict)) and pd.isna(value)):
        return ""
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)


def with_interval(frame: pd.DataFrame, name: str, places: int = 2, unit: str = "") -> pd.Series:
    """`name` as text, its 95 % interval in brackets behind it: `2.41 [2.20, 2.63]`."""
    show = decimals(places)

    def cell(row: pd.Series) -> str:
        if pd.isna(row[name]):
            return ""
        plain = f"{show(row[name])}{unit}"
        low, high = row.get(f"{name}_low"), row.get(f"{name}_high")
        if pd.isna(low) or pd.isna(high):
            return plain
        return f"{plain} [{show(low)}, {show(high)}]"

    if frame.empty:
        return pd.Series(dtype=str)
    return frame.apply(cell, axis=1)


def make_table(
    name: str, title: str, raw: pd.DataFrame, columns: dict[str, pd.Series], note: str = ""
) -> Table:
    """A table whose shown columns are `columns`, less those that are empty in every row."""
    shown = pd.DataFrame({head: list(values) for head, values in columns.items()})
    kept = [str(head) for head in shown if (shown[head] != "").any()]
    numeric = frozenset(head for head in kept if shown[head].map(_looks_numeric).all())
    return Table(name, title, raw.reset_index(drop=True), shown[kept], note, numeric)


def _looks_numeric(cell: str) -> bool:
    cell = cell.removeprefix("≥ ")
    return cell == "" or cell == "–" or cell[0].isdigit() or (cell[0] in "-−" and len(cell) > 1)


def provenance_table(provenance: dict[str, Any]) -> Table:
    """Where the numbers come from: command, commit, versions, machine, seeds, prompts, times."""
    starts = provenance.get("resumed") or []
    resumed = [f"{one.get('start')} at {one.get('git_commit')}" for one in starts]
    flat = flatten({**provenance, "resumed": resumed})
    raw = pd.DataFrame({"item": list(flat), "value": [text(value) for value in flat.values()]})
    raw = raw[raw["value"] != ""]
    columns = {"item": raw["item"], "value": raw["value"]}
    return make_table("provenance", "Provenance", raw, columns)


def flatten(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one, with dotted keys; lists become text."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict):
            flat |= flatten(value, f"{name}.")
        elif isinstance(value, list):
            flat[name] = ", ".join(str(item) for item in value)
        else:
            flat[name] = value
    return flat


def as_yaml(config: dict[str, Any]) -> str:
    """A configuration as YAML text; empty for none."""
    if not config:
        return ""
    return str(yaml.safe_dump(config, sort_keys=False, allow_unicode=True))
