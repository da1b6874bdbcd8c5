"""`+experiment=bench_gpu` and `+experiment=bench_gpu_shapes`: what a GPU is asked in one call.

`bench_gpu` is a list of parts, each a run of its own in a folder below `output_dir`: benches in
bfloat16 and float32, at further batch sizes, a profile, and the shapes; then one report of them
all. A part that fails leaves the others.

`bench_gpu_shapes` measures passes of models of known shapes with random weights. Every shape has a
folder below `output_dir`, a profile as any other: cost_curves.csv, summary.csv with what did not
fit, crossover.csv with the speedups that assumed acceptance predicts, and a report.

Nothing new begins after `profile.max_minutes`; the same command goes on with what is missing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from rich.console import Console
from rich.progress import Progress

from eagle_lab.bench.memory import give_back
from eagle_lab.bench.profile.cost_model import Assumed, Tree, crossover
from eagle_lab.bench.profile.limits import HIGH, LOW
from eagle_lab.bench.profile.settings import ProfileSettings
from eagle_lab.bench.profile.shapes import ShapeCosts
from eagle_lab.columns import CROSSOVER, CURVES, WORK, csv_names
from eagle_lab.config import drafter_kind, settings_of
from eagle_lab.errors import Infeasible, UserError, choose
from eagle_lab.failures import one_line
from eagle_lab.reports import join_reports, load_run, make_report
from eagle_lab.runs import job
from eagle_lab.runs.folder import RunFolder
from eagle_lab.runs.terminal import crossover_table
from eagle_lab.targets.load import DTYPES, choose_device
from eagle_lab.targets.random_shapes import SHAPES
from eagle_lab.tasks import bench, profile

FEWEST_QUESTIONS = 8
PLACES = "places.jsonl"
FITS = "whole_model_fits"
"""Column of summary.csv: whether the device could hold the model of which some layers are made."""
Part = Callable[[], list[str] | None]
"""Does its work; may name what it left out for want of time."""
Row = dict[str, Any]


def run(config: DictConfig) -> None:
    """`bench_gpu`: run the parts one after the other, then make the report of them all.

    Raises:
        UserError: a part failed; the others are done.
    """
    console, end = Console(), end_of(config)
    left_out: list[str] = []
    failed: list[str] = []
    parts = parts_of(config, console, end)
    for name, part in parts.items():
        if time.monotonic() > end:
            left_out.append(name)
            continue
        console.rule(name)
        job.reset(config.seed, config.threads)
        try:
            give_back()  # the part before keeps nothing
            left_out += part() or []
        except Exception as error:  # noqa: BLE001 - whatever it is, the other parts go on
            failed.append(f"{name}: {one_line(error)}")
            console.print(failed[-1], markup=False)
    console.rule("report")
    if found := results_in(Path(config.output_dir), [*parts, *config.profile.shapes]):
        page = join_reports(Path(config.output_dir), "GPU bench", found)
        console.print(f"report: {page}", soft_wrap=True)
    show_left_out(config, left_out, console)
    if failed:
        raise UserError(f"{len(failed)} of {len(parts)} parts failed: {'; '.join(failed)}")


def run_shapes(config: DictConfig) -> None:
    """`bench_gpu_shapes`: measure every shape of `profile.shapes`."""
    console = Console()
    show_left_out(config, measure_shapes(config, console, end_of(config)), console)


def end_of(config: DictConfig) -> float:
    """When `profile.max_minutes` are over, by the monotonic clock."""
    minutes = config.profile.max_minutes
    return float("inf") if minutes is None else time.monotonic() + 60 * minutes


def show_left_out(config: DictConfig, names: list[str], console: Console) -> None:
    """Print what was not begun for want of time, if anything."""
    if names:
        console.print(
            f"left out, for profile.max_minutes={config.profile.max_minutes} are over: "
            f"{', '.join(names)}; the same command goes on",
            markup=False,
        )


def parts_of(config: DictConfig, console: Console, end: float) -> dict[str, Part]:
    """What is done, in order, by name."""
    asked = dict.fromkeys(config.profile.batch_sizes)
    sizes = [size for size in asked if 1 < size <= (config.eval.num_questions or size)]
    benches = {dtype: (dtype, 1) for dtype in (str(config.dtype), "float32")}
    benches |= {f"batch_{size}": (str(config.dtype), size) for size in sizes}
    parts: dict[str, Part] = {
        name: partial(bench.run, bench_config(config, name, dtype, size))
        for name, (dtype, size) in benches.items()
    }
    parts["profile"] = lambda: profile.run(profile_config(config))
    parts["shapes"] = lambda: measure_shapes(part_config(config, "shapes"), console, end)
    return parts


def part_config(config: DictConfig, name: str) -> DictConfig:
    """The same settings, in the part's own folder."""
    part = config.copy()
    part.output_dir = str(Path(config.output_dir) / name)
    return part


def bench_config(config: DictConfig, name: str, dtype: str, batch_size: int) -> DictConfig:
    """A bench at one batch size: as many questions as rows, or a few."""
    part = part_config(config, name)
    part.task, part.dtype, part.eval.batch_size = "bench", dtype, batch_size
    wanted = max(batch_size, FEWEST_QUESTIONS)
    part.eval.num_questions = min(config.eval.num_questions or wanted, wanted)
    return part


def profile_config(config: DictConfig) -> DictConfig:
    """A profile that predicts the speedups of the bench at batch 1, if a drafter was in it."""
    part = part_config(config, "profile")
    part.task = "profile"
    benched = Path(config.output_dir) / str(config.dtype)
    if (benched / "summary.csv").is_file():
        run = load_run(benched)
        if run.finished and run.summary["drafter_matches_target"].notna().any():
            part.profile.run = str(benched)
    return part


def results_in(root: Path, names: list[str]) -> dict[str, Path]:
    """Folders of parts and shapes that hold measurements, by name."""
    places = {name: root / name for name in names}
    places |= {f"shapes/{name}": root / "shapes" / name for name in names}
    return {
        name: folder
        for name, folder in places.items()
        if any(_has_rows(folder / table) for table in ("summary.csv", "cost_curves.csv"))
    }


def _has_rows(table: Path) -> bool:
    return table.is_file() and table.read_text(encoding="utf-8").count("\n") > 1


def measure_shapes(config: DictConfig, console: Console, end: float) -> list[str]:
    """Measure what the shapes' folders lack, until the monotonic clock shows `end`.

    Returns:
        In words what was left out.
    """
    settings: ProfileSettings = settings_of(config.profile)
    job.settle_sizes(config)
    assumed = Assumed(Tree(*(config.tree[name] for name in ("depth", "width", "num_nodes"))))
    names = [choose(name, SHAPES, "shape (profile.shapes)") for name in settings.shapes]
    places = [(rows, context) for context in settings.contexts for rows in settings.batch_sizes]
    left_out = []
    with Progress(*Progress.get_default_columns(), console=console) as progress:
        task = progress.add_task("", total=len(names) * len(places))
        for name in names:
            costs = costs_from(config, name)
            with RunFolder.open(shape_config(config, name), task="bench_gpu_shapes") as folder:
                known = {(row["batch_size"], row["context"]) for row in folder.read_jsonl(PLACES)}
                missing = [place for place in places if place not in known]
                progress.advance(task, len(places) - len(missing))
                while missing and time.monotonic() < end:
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


def shape_config(config: DictConfig, name: str) -> DictConfig:
    """The configuration of one shape's folder."""
    own = part_config(config, name)
    own.task, own.profile.shapes = "bench_gpu_shapes", [name]
    return own


def costs_from(config: DictConfig, name: str) -> ShapeCosts:
    """The costs of a shape as `config` asks for them; nothing is made yet."""
    kind, settings = drafter_kind(config)
    return ShapeCosts(
        name,
        choose_device(config.device),
        DTYPES[choose(config.dtype, DTYPES, "dtype")],
        list(config.profile.num_tokens),
        repeats=config.profile.repeats,
        seed=config.seed,
        new_drafter=partial(kind.from_target, settings=settings),
        attention=config.attention,
        new_capture=job.graph_capture_from(config),
    )


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


def passes_of(folder: RunFolder) -> list[Row]:
    """The passes measured so far, with the column `FITS`."""
    return [
        row | {FITS: place.get(FITS)}
        for place in folder.read_jsonl(PLACES)
        for row in place.get("passes", ())
    ]


def write_tables(folder: RunFolder, assumed: Assumed) -> None:
    """Write what is measured so far as a profile's files."""
    places, passes, curves = folder.read_jsonl(PLACES), passes_of(folder), csv_names(CURVES)
    failed = [place for place in places if "infeasible" in place]
    rows = [{key: row[key] for key in curves} for row in passes]
    folder.write_csv("cost_curves.csv", rows, curves)
    folder.write_csv(
        "summary.csv", passes + failed, (*curves, *csv_names(WORK), FITS, "infeasible")
    )
    folder.write_csv("crossover.csv", crossover(passes, assumed), csv_names(CROSSOVER))
    facts = {"quantiles": {"low_ms": LOW, "high_ms": HIGH}, "assumed": asdict(assumed)}
    if passes:
        last = [place for place in places if "passes" in place][-1]
        facts |= {name: last[name] for name in ("ceilings", "arithmetic_ceiling", "models")}
    folder.write_json("summary.json", facts)


def show(folder: RunFolder, assumed: Assumed, name: str, console: Console) -> None:
    """Print where speculation pays on a shape, what did not fit, and where its report is."""
    for place in folder.read_jsonl(PLACES):
        at = f"{name}, batch {place['batch_size']}, context {place['context']}"
        if "infeasible" in place:
            console.print(f"{at}: left out, {place['infeasible']}")
        elif not place.get(FITS, True):
            console.print(f"{at}: the whole model does not fit this device, its cost follows")
    if passes := passes_of(folder):
        console.print(crossover_table(name, crossover(passes, assumed)))
        console.print(f"report: {make_report(folder.path)}", soft_wrap=True)
