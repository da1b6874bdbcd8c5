"""The tables that a profile prints at its end; they fit 80 characters.

The table that a bench or a sweep prints at its end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from eagle_lab.bench.profile.limits import READ

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


Row = Mapping[str, Any]
_NUM_COLUMNS = 10
# Lines of each block of the curves: heading, model, column of summary.csv, factor, digits
_LINES = (
    ("target ms", "target", "median_ms", 1.0, 1),
    ("  to 1 token", "target", "relative_cost", 1.0, 2),
    ("  plain ms", "target", "plain_median_ms", 1.0, 1),
    ("  % of reading", "target", "read_share", 100.0, 0),
    ("  % of arith.", "target", "arithmetic_share", 100.0, 0),
    ("draft ms", "draft", "median_ms", 1.0, 1),
)


def show_profile(
    console: Console,
    rows: Sequence[Row],
    overhead: Sequence[Row],
    predictions: Sequence[Row],
    ceilings: Mapping[str, float],
) -> None:
    """Print the cost curves, the machine's limits, overheads, and predictions if there are any."""
    console.print(curve_table(rows))
    products = {name: value for name, value in ceilings.items() if name != READ}
    console.print(
        f"machine: reads {ceilings[READ] / 1e9:.1f} GB/s; products "
        + ", ".join(f"{name} {value / 1e9:,.0f} GFLOP/s" for name, value in products.items())
    )
    console.print(overhead_table(overhead))
    if predictions:
        console.print(prediction_table(predictions))


def curve_table(rows: Sequence[Row]) -> Table:
    """Medians by tokens in the pass, a block per batch size and context."""
    shown = _spread(sorted({row["num_tokens"] for row in rows}))
    table = Table(
        title="a pass over n tokens per row", box=SIMPLE_HEAD, padding=0, collapse_padding=True
    )
    table.add_column("b, context", no_wrap=True)
    table.add_column("n =", no_wrap=True)
    for num_tokens in shown:
        table.add_column(str(num_tokens), justify="right", no_wrap=True)
    known = {_place(row): row for row in rows}
    for batch_size, context in dict.fromkeys((row["batch_size"], row["context"]) for row in rows):
        label = f"{batch_size}, {context}"
        for heading, model, column, factor, digits in _LINES:
            found = [known.get((model, batch_size, context, count)) for count in shown]
            if any(found):
                cells = ["" if row is None else _cell(row[column], factor, digits) for row in found]
                table.add_row(label, heading, *cells)
                label = ""
        table.add_section()
    return table


def overhead_table(rows: Sequence[Row]) -> Table:
    """Cycles of real decoding: medians, and what is neither target nor drafter."""
    table = Table(title="a cycle of decoding", box=SIMPLE_HEAD)
    for name in ("method", "batch", "cycle ms", "models ms", "overhead ms", "share"):
        table.add_column(name, justify="left" if name == "method" else "right", no_wrap=True)
    for row in rows:
        share = row["overhead_ms"] / row["cycle_ms"] if row["cycle_ms"] else None
        measured = [_cell(row[f"{part}_ms"], 1.0, 1) for part in ("cycle", "models", "overhead")]
        percent = _cell(share, 100.0, 1) + "%"
        table.add_row(row["method"], str(row["batch_size"]), *measured, percent)
    return table


def prediction_table(rows: Sequence[Row]) -> Table:
    """Predicted speedup beside the measured one, the best chain and tree marked."""
    table = Table(title="speedup predicted from costs and acceptance", box=SIMPLE_HEAD)
    for name in ("method", "tree", "tau", "predicted", "measured", "with prefill", "best"):
        table.add_column(name, justify="left" if name == "method" else "right", no_wrap=True)
    for row in rows:
        sizes = (row["depth"], row["width"], row["num_nodes"])
        tree = "/".join("-" if size is None else str(size) for size in sizes)
        numbers = ("tau_micro", "predicted_speedup", "decode_speedup", "speedup")
        cells = [_cell(row[name], 1.0, 2) for name in numbers]
        table.add_row(row["method"], tree, *cells, row["best"] or "")
    return table


def _place(row: Row) -> tuple[Any, ...]:
    return (row["model_pass"], row["batch_size"], row["context"], row["num_tokens"])


def _cell(value: float | None, factor: float, digits: int) -> str:
    if value is None:
        return ""
    return f"{value * factor:.{digits if value * factor < 100 else 0}f}"


def _spread(counts: Sequence[int]) -> list[int]:
    """At most ten of `counts`, first and last among them."""
    if len(counts) <= _NUM_COLUMNS:
        return list(counts)
    steps = [index * (len(counts) - 1) // (_NUM_COLUMNS - 1) for index in range(_NUM_COLUMNS)]
    return [counts[step] for step in steps]
