"""The table that a bench or a sweep prints at its end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

_SIZES = ("depth", "width", "num_nodes")


def bench_table(summary: Sequence[dict[str, Any]], title: str = "") -> Table:
    """Rows of summary.csv, the columns one looks at first; fits 80 characters.

    `tree` is depth/width/nodes, `match` the greedy match rate. A bench without timing has no
    columns of speed.
    """
    timed = any(row["tokens_per_second"] is not None for row in summary)
    speed = ("tok/s", "speedup (95 %)") if timed else ()
    table = Table(title=title or None, box=SIMPLE_HEAD, padding=0, collapse_padding=True)
    table.add_column("method", no_wrap=True)
    for name in ("tree", "tau (95 %)", *speed, "match"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in summary:
        table.add_row(*_cells(row, timed))
    return table


def reasons(summary: Sequence[dict[str, Any]]) -> Iterator[str]:
    """A line for each infeasible row that says why it is."""
    for row in summary:
        if row["status"] == "infeasible":
            yield f"{' '.join(_names(row)).rstrip()} is infeasible: {row['reason']}"


def _names(row: dict[str, Any]) -> list[str]:
    """Method and tree of a row."""
    sizes = "/".join("-" if row[name] is None else str(row[name]) for name in _SIZES)
    return [row["method"], "" if sizes == "-/-/-" else sizes]


def _cells(row: dict[str, Any], timed: bool) -> list[str]:
    name = _names(row)
    if row["status"] == "infeasible":
        return [*name, "infeasible"]
    speed = [_number(row["tokens_per_second"], 1), _with_interval(row, "speedup")] if timed else []
    return [*name, _with_interval(row, "tau_macro"), *speed, _number(row["greedy_match_rate"], 3)]


def _with_interval(row: dict[str, Any], name: str) -> str:
    """`2.31 (2.20-2.43)`; the value alone where it has no interval."""
    low, high = row[f"{name}_low"], row[f"{name}_high"]
    value = _number(row[name], 2)
    return value if low is None or high is None else f"{value} ({low:.2f}-{high:.2f})"


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"
