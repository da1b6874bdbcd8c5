"""`+experiment=sweep`: a grid of draft-tree sizes in one process, interleaved with vanilla.

The settings of `grid` become methods of one bench, so that vanilla is measured once and every
setting on the same questions in the same hour. Writes what a bench writes, and sweep.csv, one row
per setting. The same grid as separate jobs is Hydra's multirun, `+sweep=tree_grid`; Hydra calls
`SweepRoot` and `SweepTable` before and after its jobs (conf/config.yaml names them).
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf, open_dict
from rich.console import Console

from eagle_lab import catalog, failures
from eagle_lab.bench.results import evaluate
from eagle_lab.bench.runner import Bench
from eagle_lab.errors import UserError, choose
from eagle_lab.methods.build import Entries, Method, MethodBuilder
from eagle_lab.reports import make_report
from eagle_lab.reports.load import write_sweep
from eagle_lab.runs.folder import RunFolder
from eagle_lab.runs.job import entries_from, target_from
from eagle_lab.tasks.bench import (
    builder_from,
    decode,
    finish,
    questions_from,
    settings_from,
    show,
)

SIZES = ("depth", "width", "num_nodes")


def run(config: DictConfig) -> None:
    """Bench `grid.method` at every size of the grid, and the other methods once."""
    console = Console()
    questions, settings = questions_from(config), settings_from(config)
    target = target_from(config)
    methods = grid_methods(builder_from(config, target), entries_from(config), config.grid)
    bench = Bench(target, methods, questions, settings, console=console)
    with RunFolder.open(config, task="sweep") as folder:
        if folder.finished:
            console.print(f"this run is finished, nothing to do: {folder.path}")
        else:
            rows = decode(folder, bench)
            results = evaluate(target, bench.methods, rows, settings)
            finish(folder, bench, results)
            show(results, bench, console, title="tree grid")
    write_sweep(folder.path)
    console.print(f"report: {make_report(folder.path)}", soft_wrap=True)


def grid_methods(
    builder: MethodBuilder,
    entries: Entries,
    grid: Mapping[str, Any] | DictConfig,
) -> list[Method]:
    """Vanilla and the other `entries` once, then `grid["method"]` at every size.

    A size that is infeasible is an infeasible method.

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


class SweepRoot(Callback):
    """Opens the root as a run's folder, so that another grid in the same place is refused."""

    def __init__(self) -> None:
        self._folder: RunFolder | None = None

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Create, resume or refuse the root; a refusal ends the program before any job."""
        try:
            catalog.require_task(config.task)
            self._folder = RunFolder.open(root_config(config), task="multirun")
        except Exception as error:
            # Hydra turns a callback's exceptions into warnings, so this one leaves by another door
            print(failures.one_line(error), file=sys.stderr)
            raise SystemExit(1) from error

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        """Call the sweep finished if every job was."""
        if self._folder is not None:
            if failures.FAILED_JOBS:
                self._folder.close()
            else:
                self._folder.finish()

    def __del__(self) -> None:
        # Hydra calls nobody when the jobs of a sweep cannot be composed
        if self._folder is not None:
            self._folder.close()


def root_config(config: DictConfig) -> DictConfig:
    """The jobs' common configuration, and the grid under `sweep`."""
    root = config.copy()
    overrides = OverridesParser.create().parse_overrides(list(config.hydra.overrides.task))
    grid = dict(config.hydra.sweeper.params or {})
    grid |= {
        o.key_or_group: (o.input_line or "").partition("=")[2]
        for o in overrides
        if o.is_sweep_override()
    }
    with open_dict(root):
        del root["hydra"]
        root.sweep = OmegaConf.create(grid)
    # A root whose jobs never began holds nothing worth keeping
    root.overwrite = root.overwrite or not any(Path(root.output_dir).glob("[0-9]*"))
    return root


class SweepTable(Callback):
    """Collects whatever jobs have a summary, also when some failed."""

    def on_multirun_end(self, config: DictConfig, **kwargs: Any) -> None:
        """Write sweep.csv; jobs of other kinds than a bench leave none."""
        try:
            print(f"all jobs in one table: {write_sweep(config.output_dir)}")
        except UserError:
            return
