"""`+experiment=bench_gpu`: what a GPU is asked in one call, part by part, with one report.

Every part is a run of its own in a folder below `output_dir`: benches in bfloat16 and float32, at
further batch sizes, a profile, and cost curves of larger shapes. No part begins after
`profile.max_minutes`; one that fails leaves the others. The same command goes on with what is
missing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from omegaconf import DictConfig
from rich.console import Console

from eagle_lab.bench.memory import give_back
from eagle_lab.errors import UserError
from eagle_lab.failures import one_line
from eagle_lab.reports import load_run
from eagle_lab.reports.joined import join_reports
from eagle_lab.tasks import bench, job, profile
from eagle_lab.tasks.bench_gpu_shapes import measure_shapes

FEWEST_QUESTIONS = 8
Part = Callable[[], list[str] | None]
"""Does its work; may name what it left out for want of time."""


def run(config: DictConfig) -> None:
    """Run the parts one after the other, then make the report of them all.

    Raises:
        UserError: a part failed; the others are done.
    """
    console, minutes = Console(), config.profile.max_minutes
    end = None if minutes is None else time.monotonic() + 60 * minutes
    left_out: list[str] = []
    failed: list[str] = []
    parts = parts_of(config, console, end)
    for name, part in parts.items():
        if end is not None and time.monotonic() > end:
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
    if left_out:
        console.print(f"left out after {minutes} minutes: {', '.join(left_out)}", markup=False)
    if failed:
        raise UserError(f"{len(failed)} of {len(parts)} parts failed: {'; '.join(failed)}")


def parts_of(config: DictConfig, console: Console, end: float | None) -> dict[str, Part]:
    """What is done, in order, by name."""
    asked = dict.fromkeys(config.profile.batch_sizes)
    sizes = [size for size in asked if 1 < size <= (config.eval.num_questions or size)]
    parts: dict[str, Part] = {
        dtype: partial(bench.run, bench_config(config, dtype, dtype, batch_size=1))
        for dtype in dict.fromkeys((str(config.dtype), "float32"))
    }
    for size in sizes:
        own = bench_config(config, f"batch_{size}", config.dtype, batch_size=size)
        parts[f"batch_{size}"] = partial(bench.run, own)
    parts["profile"] = lambda: profile.run(profile_config(config))
    parts["shapes"] = lambda: measure_shapes(part_config(config, "shapes"), console, end)
    return parts


def part_config(config: DictConfig, name: str) -> DictConfig:
    """The same settings, in the part's own folder."""
    part = config.copy()
    part.output_dir = str(Path(config.output_dir) / name)
    return part


def bench_config(config: DictConfig, name: str, dtype: str, *, batch_size: int) -> DictConfig:
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
