"""`+experiment=bench`: methods side by side on the same questions.

Writes generations.jsonl as it goes, then summary.csv, summary_by_category.csv, summary.json,
divergences.csv and the report, and prints a table. The folder is made once everything asked for
has been checked, so a mistake leaves nothing behind.
"""

from __future__ import annotations

from dataclasses import asdict
from functools import partial

from omegaconf import DictConfig
from rich.console import Console

from eagle_lab.bench.matching import DIVERGENCE_COLUMNS
from eagle_lab.bench.results import CATEGORY_COLUMNS, COLUMNS, BenchResults, evaluate
from eagle_lab.bench.runner import Bench
from eagle_lab.bench.settings import BenchSettings
from eagle_lab.bench.statistics import Row
from eagle_lab.data.prompts import Question, load_questions, spread
from eagle_lab.methods.build import MethodBuilder, drafter_digests
from eagle_lab.reports import make_report
from eagle_lab.reports.findings import REPLAYED
from eagle_lab.runs.folder import RunFolder
from eagle_lab.runs.job import entries_from, sampling_from, target_from
from eagle_lab.runs.terminal import bench_table, notes
from eagle_lab.targets.target import Target

GENERATIONS = "generations.jsonl"


def run(config: DictConfig) -> None:
    """Bench the methods of `config.method`."""
    console = Console()
    questions, settings = questions_from(config), settings_from(config)
    target = target_from(config)
    leave_out = partial(console.print, markup=False) if config.eval.leave_out_missing else None
    methods = builder_from(config, target).build_all(entries_from(config), leave_out)
    bench = Bench(target, methods, questions, settings, console=console)
    with RunFolder.open(config, task="bench") as folder:
        if folder.finished:
            console.print(f"this run is finished, nothing to do: {folder.path}")
        else:
            rows = decode(folder, bench)
            results = evaluate(target, bench.methods, rows, settings)
            finish(folder, bench, results)
            show(results, bench, console)
    console.print(f"report: {make_report(folder.path)}", soft_wrap=True)


def questions_from(config: DictConfig) -> list[Question]:
    """The questions that `eval.prompts` and `eval.num_questions` name."""
    return spread(load_questions(config.eval.prompts), config.eval.num_questions)


def settings_from(config: DictConfig) -> BenchSettings:
    """`eval.*` and the seed as the library's settings."""
    asked = config.eval
    return BenchSettings(
        turns=asked.turns,
        max_new_tokens=asked.max_new_tokens,
        sampling=sampling_from(config, "eval"),
        batch_size=asked.batch_size,
        repeats=asked.repeats,
        timing=asked.timing,
        warmup=asked.warmup,
        seed=config.seed,
        record_confidence=asked.record_confidence,
        replay=asked.replay,
    )


def builder_from(config: DictConfig, target: Target) -> MethodBuilder:
    """Builds methods for `target`, with `config.drafter` for those that name none of their own."""
    asked = config.drafter
    return MethodBuilder(target, asked.path, round_weights=asked.round_weights)


def decode(folder: RunFolder, bench: Bench) -> list[Row]:
    """The rows of generations.jsonl: those that `folder` holds, and the ones it lacks."""
    known = folder.read_jsonl(GENERATIONS)
    rows = bench.run(known, partial(folder.append_jsonl, GENERATIONS))
    folder.commit(GENERATIONS)
    return rows


def finish(folder: RunFolder, bench: Bench, results: BenchResults) -> None:
    """Write the tables and end the run."""
    folder.write_csv("summary.csv", results.summary, COLUMNS)
    folder.write_csv("summary_by_category.csv", results.by_category, CATEGORY_COLUMNS)
    folder.write_csv("divergences.csv", results.divergences, DIVERGENCE_COLUMNS)
    folder.write_json("summary.json", results.as_json() | {"settings": asdict(bench.settings)})
    folder.finish(
        target=bench.target.name,
        target_fingerprint=bench.target.fingerprint,
        drafters=drafter_digests(bench.methods, bench.target),
    )


def show(results: BenchResults, bench: Bench, console: Console, title: str = "") -> None:
    """Print the table, and below it what a reader must know of it."""
    warn_of_turns(bench, console)
    console.print(bench_table(results.summary, title))
    for line in notes(results.summary):
        console.print(line, markup=False, soft_wrap=True)
    show_equality(results, bench.settings, console)


def warn_of_turns(bench: Bench, console: Console) -> None:
    """Say so if no question has as many turns as are asked for."""
    asked, most = bench.settings.turns, max(batch.turn for batch in bench.batches)
    if most < asked:
        turns = "1 turn" if most == 1 else f"{most} turns"
        console.print(f"eval.turns={asked}: no question has more than {turns}, so {most} asked")


def show_equality(results: BenchResults, settings: BenchSettings, console: Console) -> None:
    """Say how greedy outputs compare with vanilla's; of a replay, that they were not compared."""
    if settings.replay:
        console.print(REPLAYED)
    if results.noise is None:
        return
    counted, noise = results.as_json(), results.noise["max_difference"]
    varying = f"vary by up to {noise:.0e}" if noise else "do not vary"
    console.print(
        f"greedy output against vanilla's: {counted['num_mismatches']} mismatches, "
        f"{counted['num_ties']} ties (divergences.csv lists them); the target's logits {varying} "
        "with the size of a pass"
    )
