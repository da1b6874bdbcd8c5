"""`+experiment=sweep`: a grid of draft-tree sizes in one process, interleaved with vanilla.

The settings of `grid` become methods of one bench, so that vanilla is measured once and every
setting on the same questions in the same hour. Writes what a bench writes, and sweep.csv, one row
per setting. `+sweep=tree_grid` is the same grid as separate jobs.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from omegaconf import DictConfig
from rich.console import Console

from eagle_lab.errors import UserError, choose
from eagle_lab.evaluation.method import Method
from eagle_lab.evaluation.runner import Bench
from eagle_lab.reports import make_report
from eagle_lab.reports.collect import write_sweep
from eagle_lab.tasks.bench import finish, questions_from, settings_from
from eagle_lab.tasks.methods import Entries, MethodBuilder, entries_from
from eagle_lab.tasks.run_folder import RunFolder
from eagle_lab.tasks.target import target_from

SIZES = ("depth", "width", "num_nodes")


def run(config: DictConfig) -> None:
    """Bench `grid.method` at every size of the grid, and the other methods once."""
    console = Console()
    questions, settings = questions_from(config), settings_from(config)
    target = target_from(config)
    builder = MethodBuilder(target, config.drafter.path, round_weights=config.drafter.round_weights)
    methods = grid_methods(builder, entries_from(config), config.grid)
    bench = Bench(target, methods, questions, settings, console=console)
    with RunFolder.open(config, task="sweep") as folder:
        finish(folder, bench, console, title="tree grid")
    write_sweep(folder.path)
    console.print(f"report: {make_report(folder.path)}", soft_wrap=True)


def grid_methods(
    builder: MethodBuilder,
    entries: Entries,
    grid: Mapping[str, Any] | DictConfig,
) -> list[Method]:
    """Vanilla and the other `entries` once, then `grid["method"]` at every size.

    Sizes that cannot be are infeasible methods.

    Args:
        builder: for the target at hand.
        entries: `config.method`.
        grid: `method` and the lists `depth`, `width`, `num_nodes`.

    Raises:
        UserError: the grid's method is not chosen or has no such sizes, or a list is empty.
    """
    name = choose(grid["method"], entries, "grid.method (one of the chosen methods)")
    missing = [size for size in SIZES if size not in entries[name]]
    if missing:
        raise UserError(f"grid.method={name} has no {', '.join(missing)} to go through")
    for size in SIZES:
        if not grid[size]:
            raise UserError(f"grid.{size} is empty; give at least one value, such as [2,4]")
    others = {key: value for key, value in entries.items() if key != name}
    swept = [
        builder.build(name, {**entries[name], **dict(zip(SIZES, sizes, strict=True))})
        for sizes in itertools.product(*(dict.fromkeys(grid[size]) for size in SIZES))
    ]
    return builder.build_all(others) + swept
