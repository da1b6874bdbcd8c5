"""What a terminal shows: the library's messages, and tables of the columns of result files.

Opens without torch; every table fits 80 characters.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from eagle_lab.columns import CURVES, OVERHEAD, PREDICTIONS, SUMMARY, WORK, Column, pick

Row = Mapping[str, Any]
TREE = Column("tree", note="depth/width/nodes")
_NUM_COUNTS = 10
# Lines of each block of the curves: heading, model, column, decimals
_LINES = (
    ("target ms", "target", "median_ms", 1),
    ("  to 1 token", "target", "relative_cost", 2),
    ("  plain ms", "target", "plain_median_ms", 1),
    ("  % of reading", "target", "read_share", 0),
    ("  % of arith.", "target", "arithmetic_share", 0),
    ("draft ms", "draft", "median_ms", 1),
)


@contextmanager
def messages_shown() -> Iterator[None]:
    """Print the package's messages of level INFO and above, a line each, until the block ends."""
    logger, handler = logging.getLogger("eagle_lab"), logging.StreamHandler(sys.stdout)
    handler.setFormatter(logging.Formatter("%(message)s"))
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def table(columns: Iterable[Column], rows: Sequence[Row], title: str = "") -> Table:
    """`rows` under the headings of `columns`; a column without any value is left out."""
    shown = [column for column in columns if any(column.text(row) for row in rows)]
    made = _empty(title)
    for column in shown:
        _add(made, column.title, number=column.decimals is not None)
    for row in rows:
        made.add_row(*(column.text(row) for column in shown))
    return made


def bench_table(summary: Sequence[Row], title: str = "") -> Table:
    """Rows of summary.csv, the columns one looks at first; `tree` is depth/width/nodes."""
    keys = ("method", "tau_micro", "tokens_per_second", "speedup", "greedy_match_rate")
    method, tau, rate, speedup, match = pick(SUMMARY, *keys)
    narrow = (replace(rate, heading="tok/s"), replace(speedup, unit=""))
    columns = (method, TREE, tau, *narrow, replace(match, heading="match"))
    return table(columns, _told_apart(_with_trees(summary)), title)


def notes(summary: Iterable[Row]) -> Iterator[str]:
    """What a reader must know of rows: why one is infeasible, which had disturbed cycles."""
    for row in summary:
        name = f"{row['method']} {_tree(row)}".rstrip()
        if row["status"] == "infeasible":
            yield f"{name} is infeasible: {row['reason']}"
        elif row["num_disturbed"]:
            yield (
                f"{name}: {row['num_disturbed']} cycles took more than ten times their median; "
                f"speedup from medians {row['speedup_robust']:.2f}"
            )


def _told_apart(rows: Sequence[Row]) -> list[Row]:
    """Rows whose method and tree are equal with the settings that differ below the name."""
    shown: list[Row] = []
    for row in rows:
        own = json.loads(row["settings"])
        twins = [
            json.loads(other["settings"])
            for other in rows
            if (other["method"], other["tree"]) == (row["method"], row["tree"])
        ]
        differing = [key for key in own if any(twin.get(key) != own[key] for twin in twins)]
        lines = (f" {key}={own[key]}" for key in differing)
        shown.append({**row, "method": "\n".join([row["method"], *lines])})
    return shown


def show_profile(
    console: Console,
    rows: Sequence[Row],
    overhead: Sequence[Row],
    predictions: Sequence[Row],
    ceilings: Mapping[str, float],
) -> None:
    """Print the cost curves, the machine's limits, overheads, and predictions if there are any."""
    console.print(curve_table(rows))
    limits = {name: f"{value / 1e9:,.0f} GFLOP/s" for name, value in ceilings.items()}
    limits["read"] = f"{ceilings['read'] / 1e9:.1f} GB/s"
    console.print("machine: " + ", ".join(f"{name} {limit}" for name, limit in limits.items()))
    keys = ("method", "batch_size", "cycle_ms", "models_ms", "overhead_ms")
    console.print(table(pick(OVERHEAD, *keys), overhead, "a cycle of decoding"))
    if predictions:
        method, *others = pick(
            PREDICTIONS, "method", "tau_micro", "predicted_speedup", "decode_speedup", "best"
        )
        title = "speedup predicted from costs and acceptance"
        console.print(table((method, TREE, *others), _with_trees(predictions), title))


def curve_table(rows: Sequence[Row]) -> Table:
    """Medians by tokens in the pass, a block per batch size and context."""
    counts = _spread(sorted({row["num_tokens"] for row in rows}))
    made = _empty("a pass over n tokens per row")
    for heading in ("b, context", "n ="):
        _add(made, heading)
    for count in counts:
        _add(made, str(count), number=True)
    found = {(row["model_pass"], _place(row), row["num_tokens"]): row for row in rows}
    for place in dict.fromkeys(map(_place, rows)):
        label = place
        for heading, model, key, decimals in _LINES:
            (column,) = pick((*CURVES, *WORK), key)
            values = [found.get((model, place, count), {}).get(key) for count in counts]
            cells = [_number(value, column.scale, decimals) for value in values]
            if any(cells):
                made.add_row(label, heading, *cells)
                label = ""
        made.add_section()
    return made


def crossover_table(name: str, rows: Sequence[Row]) -> Table:
    """Predicted speedups, a line per batch size and context, a column per assumption.

    A chain's cell gives its best length after the speedup; 0 says that none pays.
    """
    made = _empty(f"{name}: predicted speedup (chain: best length)")
    _add(made, "b, context")
    assumptions = list(dict.fromkeys(map(_assumption, rows)))
    for words in assumptions:
        _add(made, words, number=True)
    for place in dict.fromkeys(map(_place, rows)):
        cells = {_assumption(row): _predicted(row) for row in rows if _place(row) == place}
        made.add_row(place, *(cells.get(words, "") for words in assumptions))
    return made


def _empty(title: str) -> Table:
    return Table(title=title or None, box=SIMPLE_HEAD, padding=0, show_edge=False)


def _add(made: Table, heading: str, *, number: bool = False) -> None:
    made.add_column(heading, justify="right" if number else "left", no_wrap=True)


def _number(value: float | None, scale: float, decimals: int) -> str:
    if value is None:
        return ""
    return f"{scale * value:.{decimals if scale * value < 100 else 0}f}"


def _with_trees(rows: Iterable[Row]) -> list[Row]:
    return [{**row, "tree": _tree(row)} for row in rows]


def _tree(row: Row) -> str:
    sizes = [row[name] for name in ("depth", "width", "num_nodes")]
    if all(size is None for size in sizes):
        return ""
    return "/".join("-" if size is None else str(size) for size in sizes)


def _place(row: Row) -> str:
    return f"{row['batch_size']}, {row['context']}"


def _assumption(row: Row) -> str:
    chain = row["drafting"] == "chain"
    return f"accepted {row['acceptance']:g}" if chain else f"tree, τ {row['tau']:g}"


def _predicted(row: Row) -> str:
    length = f" ({row['depth']})" if row["drafting"] == "chain" else ""
    return f"{row['predicted_speedup']:.2f}{length}"


def _spread(counts: Sequence[int]) -> list[int]:
    """At most ten of `counts`, first and last among them."""
    if len(counts) <= _NUM_COUNTS:
        return list(counts)
    steps = [index * (len(counts) - 1) // (_NUM_COUNTS - 1) for index in range(_NUM_COUNTS)]
    return [counts[step] for step in steps]
