"""`+experiment=bench_gpu_shapes`: what passes cost on models of known shapes with random weights.

Every shape has a folder of its own below `output_dir`, a profile as any other: cost_curves.csv,
summary.csv with what did not fit, crossover.csv with the speedups that assumed acceptance predicts,
and a report. Rows are written as they are measured; the same command goes on where one stopped.
"""

from __future__ import annotations

import itertools
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from rich.console import Console
from rich.progress import Progress

from eagle_lab.bench.profile.cost_model import CROSSOVER_COLUMNS, Assumed, crossover
from eagle_lab.bench.profile.limits import CURVE_COLUMNS, HIGH, LOW, WORK_COLUMNS
from eagle_lab.bench.profile.shapes import ShapeCosts
from eagle_lab.errors import Infeasible, choose
from eagle_lab.reports import make_report
from eagle_lab.targets.load import DTYPES, choose_device
from eagle_lab.targets.random_shapes import SHAPES
from eagle_lab.tasks.job import graph_capture_from
from eagle_lab.tasks.profile import settings_from
from eagle_lab.tasks.run_folder import RunFolder
from eagle_lab.tasks.shape_table import crossover_table

PLACES = "places.jsonl"
FITS = "whole_model_fits"
"""Column of summary.csv: whether the device could hold the model of which some layers are made."""
DRAFTER_SWITCHES = ("inner_norm", "draft_vocab_size", "fc_bias", "intermediate_size")
Row = dict[str, Any]


def run(config: DictConfig) -> None:
    """Measure every shape of `profile.shapes`, and say what was left out for want of time."""
    console = Console()
    minutes = config.profile.max_minutes
    end = None if minutes is None else time.monotonic() + 60 * minutes
    left_out = measure_shapes(config, console, end)
    if left_out:
        console.print(
            f"left out, for profile.max_minutes={minutes} are over: {', '.join(left_out)}; the "
            "same command goes on"
        )


def measure_shapes(config: DictConfig, console: Console, end: float | None = None) -> list[str]:
    """Measure what the shapes' folders lack, until the monotonic clock shows `end`.

    Returns:
        In words what was left out.
    """
    settings_from(config)  # names what cannot be measured
    assumed, profile = assumed_from(config), config.profile
    names = [choose(name, SHAPES, "shape (profile.shapes)") for name in profile.shapes]
    places = [(rows, context) for context in profile.contexts for rows in profile.batch_sizes]
    left_out = []
    with Progress(*Progress.get_default_columns(), console=console) as progress:
        task = progress.add_task("", total=len(names) * len(places))
        for name in names:
            costs = costs_from(config, name)
            with RunFolder.open(config_of(config, name), task="bench_gpu_shapes") as folder:
                known = {(row["batch_size"], row["context"]) for row in folder.read_jsonl(PLACES)}
                missing = [place for place in places if place not in known]
                progress.advance(task, len(places) - len(missing))
                while missing and (end is None or time.monotonic() < end):
                    batch_size, context = missing.pop(0)
                    progress.update(task, description=f"{name}, batch {batch_size}, {context}")
                    folder.append_jsonl(PLACES, measured(costs, batch_size, context))
                    write_tables(folder, assumed)
                    progress.advance(task)
                if not missing and not folder.finished:
                    folder.commit(PLACES)
                    folder.finish(target=name)
                show(folder, assumed, name, console)
            left_out += [f"{name} at batch {rows}, context {context}" for rows, context in missing]
    return left_out


def config_of(config: DictConfig, name: str) -> DictConfig:
    """The configuration of one shape's folder."""
    own = config.copy()
    own.task = "bench_gpu_shapes"
    own.output_dir = str(Path(config.output_dir) / name)
    own.profile.shapes = [name]
    return own


def costs_from(config: DictConfig, name: str) -> ShapeCosts:
    """The costs of a shape as `config` asks for them; nothing is made yet."""
    return ShapeCosts(
        name,
        choose_device(config.device),
        DTYPES[choose(config.dtype, DTYPES, "dtype")],
        list(config.profile.num_tokens),
        repeats=config.profile.repeats,
        seed=config.seed,
        drafter={name: config.drafter[name] for name in DRAFTER_SWITCHES},
        attention=config.attention,
        new_capture=graph_capture_from(config),
    )


def assumed_from(config: DictConfig) -> Assumed:
    """`profile.acceptance`, `profile.tree_taus` and `tree.*`."""
    tree, profile = config.tree, config.profile
    sizes = {"depth": tree.depth, "width": tree.width, "num_nodes": tree.num_nodes}
    return Assumed(list(profile.acceptance), tree_taus=list(profile.tree_taus), **sizes)


def measured(costs: ShapeCosts, batch_size: int, context: int) -> Row:
    """A row of places.jsonl: the passes at one place, or why there are none."""
    place = {"batch_size": batch_size, "context": context}
    try:
        profile = costs.measure(batch_size, context)
    except Infeasible as reason:
        return place | {"infeasible": str(reason)}
    models = {name: asdict(model) for name, model in profile.models.items()}
    facts = {"ceilings": profile.ceilings, "arithmetic_ceiling": profile.dtype, "models": models}
    fits = {FITS: costs.whole_model_fits(batch_size, context)}
    return place | fits | {"passes": profile.rows()} | facts


def write_tables(folder: RunFolder, assumed: Assumed) -> None:
    """Write what is measured so far as a profile's files."""
    places = folder.read_jsonl(PLACES)
    passes = [row | {FITS: place.get(FITS)} for place in places for row in place.get("passes", ())]
    failed = [place for place in places if "infeasible" in place]
    curves = [{name: row[name] for name in CURVE_COLUMNS} for row in passes]
    folder.write_csv("cost_curves.csv", curves, CURVE_COLUMNS)
    columns = (*CURVE_COLUMNS, *WORK_COLUMNS, FITS, "infeasible")
    folder.write_csv("summary.csv", passes + failed, columns)
    folder.write_csv("crossover.csv", crossover(curves, assumed), CROSSOVER_COLUMNS)
    facts = {"quantiles": {"low_ms": LOW, "high_ms": HIGH}, "assumed": asdict(assumed)}
    if passes:
        last = [place for place in places if "passes" in place][-1]
        facts |= {name: last[name] for name in ("ceilings", "arithmetic_ceiling", "models")}
    folder.write_json("summary.json", facts)


def show(folder: RunFolder, assumed: Assumed, name: str, console: Console) -> None:
    """Print where speculation pays on a shape, what did not fit, and where its report is."""
    places = folder.read_jsonl(PLACES)
    for place in places:
        at = f"{name}, batch {place['batch_size']}, context {place['context']}"
        if "infeasible" in place:
            console.print(f"{at}: left out, {place['infeasible']}")
        elif not place.get(FITS, True):
            console.print(f"{at}: the whole model does not fit this device, its cost follows")
    passes = list(itertools.chain.from_iterable(place.get("passes", ()) for place in places))
    if passes:
        console.print(crossover_table(name, crossover(passes, assumed)))
        console.print(f"report: {make_report(folder.path)}", soft_wrap=True)
