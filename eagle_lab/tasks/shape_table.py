"""The table that bench_gpu_shapes prints for a shape: where speculation pays, by batch size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from eagle_lab.bench.profile.cost_model import CHAIN


def crossover_table(name: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    """Predicted speedups, a line per batch size and context, a column per assumption.

    A chain's cell gives its best length after the speedup; 0 says that none pays.
    """
    table = Table(title=f"{name}: predicted speedup (chain: best length)", box=SIMPLE_HEAD)
    table.add_column("b, context", no_wrap=True)
    assumptions = list(dict.fromkeys(map(_assumption, rows)))
    for words in assumptions:
        table.add_column(words, justify="right", no_wrap=True)
    for place in dict.fromkeys(map(_place, rows)):
        cells = {_assumption(row): _cell(row) for row in rows if _place(row) == place}
        table.add_row(place, *(cells.get(words, "") for words in assumptions))
    return table


def _place(row: Mapping[str, Any]) -> str:
    return f"{row['batch_size']}, {row['context']}"


def _assumption(row: Mapping[str, Any]) -> str:
    chain = row["drafting"] == CHAIN
    return f"accepted {row['acceptance']:g}" if chain else f"tree, tau {row['tau']:g}"


def _cell(row: Mapping[str, Any]) -> str:
    length = f" ({row['depth']})" if row["drafting"] == CHAIN else ""
    return f"{row['predicted_speedup']:.2f}{length}"
