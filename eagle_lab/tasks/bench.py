"""`+experiment=bench`: methods side by side on the same questions.

Writes generations.jsonl as it goes, then summary.csv, summary_by_category.csv, summary.json and
divergences.csv, and prints a table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from omegaconf import DictConfig
from rich.console import Console

from eagle_lab.data.prompts import Question, load_questions, spread
from eagle_lab.evaluation.matching import DIVERGENCE_COLUMNS
from eagle_lab.evaluation.method import Method
from eagle_lab.evaluation.metrics import CATEGORY_COLUMNS, COLUMNS
from eagle_lab.evaluation.plan import BenchSettings
from eagle_lab.evaluation.results import BenchResults, evaluate
from eagle_lab.evaluation.runner import Bench
from eagle_lab.models.target import Target
from eagle_lab.sampling import Sampling
from eagle_lab.tasks.bench_table import bench_table
from eagle_lab.tasks.methods import MethodBuilder, entries_from
from eagle_lab.tasks.run_folder import RunFolder
from eagle_lab.tasks.target import target_from

GENERATIONS = "generations.jsonl"


def run(config: DictConfig) -> None:
    """Bench the methods of `config.method`."""
    console = Console()
    with RunFolder.open(config, task="bench") as folder:
        if folder.finished:
            console.print(f"this run is finished: {folder.path}")
            return
        settings = settings_from(config)
        questions = questions_from(config)
        target = target_from(config)
        builder = MethodBuilder(target, config.drafter.path)
        methods = builder.build_all(entries_from(config))
        results = measure(folder, target, methods, questions, settings, console)
        console.print(bench_table(results.summary))
        report_equality(results, console)
        folder.finish(target=target.name, target_fingerprint=target.fingerprint)
        console.print(f"results: {folder.path}")


def settings_from(config: DictConfig) -> BenchSettings:
    """`eval.*` and the seed as the library's settings."""
    asked = config.eval
    return BenchSettings(
        turns=asked.turns,
        max_new_tokens=asked.max_new_tokens,
        sampling=Sampling(asked.temperature, asked.top_p, asked.top_k),
        batch_size=asked.batch_size,
        repeats=asked.repeats,
        timing=asked.timing,
        warmup=asked.warmup,
        seed=config.seed,
    )


def questions_from(config: DictConfig) -> list[Question]:
    """The questions that `eval.prompts` and `eval.num_questions` name."""
    return spread(load_questions(config.eval.prompts), config.eval.num_questions)


def measure(
    folder: RunFolder,
    target: Target,
    methods: Sequence[Method],
    questions: Sequence[Question],
    settings: BenchSettings,
    console: Console | None = None,
) -> BenchResults:
    """Run a bench in `folder`, going on where an interrupted one stopped; write all but the end.

    Raises:
        UserError: a prompt does not fit the target's context; nothing has run then.
    """
    bench = Bench(
        target,
        methods,
        questions,
        settings,
        write=lambda row: folder.append_jsonl(GENERATIONS, row),
        console=console,
    )
    rows = bench.run(done=folder.read_jsonl(GENERATIONS))
    folder.commit(GENERATIONS)
    results = evaluate(target, methods, rows, settings)
    folder.write_csv("summary.csv", results.summary, COLUMNS)
    folder.write_csv("summary_by_category.csv", results.by_category, CATEGORY_COLUMNS)
    folder.write_csv("divergences.csv", results.divergences, DIVERGENCE_COLUMNS)
    folder.write_json("summary.json", results.as_json() | {"settings": asdict(settings)})
    return results


def report_equality(results: BenchResults, console: Console) -> None:
    """Say how greedy outputs compare with vanilla's, if they were compared."""
    if results.noise is None:
        return
    counted = results.as_json()
    noise = results.noise["max_difference"]
    console.print(
        f"greedy output against vanilla's: {counted['num_mismatches']} mismatches, "
        f"{counted['num_ties']} ties (listed in divergences.csv); "
        f"the target's logits vary by up to {noise:.1e} with the size of a pass"
    )
