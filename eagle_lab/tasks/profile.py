"""`+experiment=profile`: what passes of target and drafter cost on this machine.

Writes cost_curves.csv (what the cost model reads), summary.csv (the same passes with their share
of the machine's limits), overhead.csv, with `profile.run` predictions.csv, and summary.json; shows
them, and makes the report. Short on purpose: an interrupted profile is measured anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import DictConfig
from rich.console import Console

from eagle_lab.bench.profile.cost_model import BenchFacts, predict, read_curves
from eagle_lab.bench.profile.limits import HIGH, LOW, Profile, Row
from eagle_lab.bench.profile.overhead import measure_overhead
from eagle_lab.bench.profile.profiler import Profiler
from eagle_lab.bench.profile.settings import ProfileSettings
from eagle_lab.columns import CURVES, OVERHEAD, PREDICTIONS, WORK, csv_names
from eagle_lab.config import settings_of
from eagle_lab.data.chat import ChatTemplate
from eagle_lab.drafters.folder import drafter_folder, weights_digest
from eagle_lab.errors import Missing, UserError
from eagle_lab.methods.build import VANILLA, Method, MethodBuilder
from eagle_lab.reports import load_run, make_report
from eagle_lab.runs.folder import RunFolder
from eagle_lab.runs.job import entries_from, target_from
from eagle_lab.runs.terminal import show_profile
from eagle_lab.targets.target import Target
from eagle_lab.tasks.bench import questions_from

OVERHEAD_TOKENS = 24
"""Decoded by each method to see what a cycle costs outside the models."""


def run(config: DictConfig) -> None:
    """Profile `config.target` and its drafter."""
    console = Console()
    settings: ProfileSettings = settings_of(config.profile)
    bench, record = bench_facts(config.profile.run) if config.profile.run else (None, {})
    if bench is not None:
        bench.check(settings.batch_sizes, settings.num_tokens)
    target = target_from(config)
    if record.get("target_fingerprint") not in (None, target.fingerprint):
        raise UserError(f"profile.run={config.profile.run} is a bench of another target")
    try:
        path = drafter_folder(config.drafter.path, target)
    except Missing as reason:
        if bench is not None:
            raise UserError(f"profile.run needs the drafter of that bench: {reason}") from None
        path = None
        console.print(f"profiling the target alone: {reason}", markup=False)
    builder = MethodBuilder(target, path, round_weights=config.drafter.round_weights)
    drafter = None if path is None else builder.load(path)[0]
    if bench is not None and path is not None:
        bench = of_drafter(bench, record.get("drafters") or {}, path)
    leave_out = partial(console.print, markup=False)
    built = builder.build_all(entries_from(config), leave_out)
    methods = [method for method in built if method.proposer is not None]
    profiler = Profiler(target, drafter, settings, seed=config.seed, console=console)
    prompts = prompts_from(config, target, max(settings.batch_sizes))
    with RunFolder.open(config, task="profile") as folder:
        if folder.finished:
            console.print(f"this run is finished, nothing to do: {folder.path}")
            return
        profile = profiler.run()
        overhead = overhead_of(target, methods, prompts, config)
        predictions = write_tables(folder, profile, overhead, bench)
        folder.write_json("summary.json", facts_of(profile, settings, path, config.profile.run))
        show_profile(console, profile.rows(), overhead, predictions, profile.ceilings)
        folder.finish(target=target.name, target_fingerprint=target.fingerprint)
    console.print(f"report: {make_report(folder.path)}", soft_wrap=True)


def write_tables(
    folder: RunFolder, profile: Profile, overhead: list[Row], bench: BenchFacts | None
) -> list[Row]:
    """Write the CSV files of a profile; returns the predicted speedups, none without a bench."""
    rows, curves = profile.rows(), csv_names(CURVES)
    folder.write_csv("cost_curves.csv", [{key: row[key] for key in curves} for row in rows])
    folder.write_csv("summary.csv", rows, (*curves, *csv_names(WORK)))
    folder.write_csv("overhead.csv", overhead, csv_names(OVERHEAD))
    if bench is None:
        return []
    overhead_ms = {
        row["method"]: row["overhead_ms"] or 0.0
        for row in overhead
        if row["batch_size"] == bench.batch_size
    }
    predictions = predict(bench, read_curves(folder.path / "cost_curves.csv"), overhead_ms)
    folder.write_csv("predictions.csv", predictions, csv_names(PREDICTIONS))
    return predictions


def facts_of(
    profile: Profile, settings: ProfileSettings, drafter: Any, bench: str | None
) -> dict[str, Any]:
    """The contents of summary.json: the machine's limits, and what the tables were made from."""
    return {
        "ceilings": profile.ceilings,
        "arithmetic_ceiling": profile.dtype,
        "models": {name: asdict(model) for name, model in profile.models.items()},
        "quantiles": {"low_ms": LOW, "high_ms": HIGH},
        "drafter": None if drafter is None else str(drafter),
        "settings": asdict(settings),
        "predictions_from": bench,
    }


def prompts_from(config: DictConfig, target: Target, count: int) -> list[list[int]]:
    """`count` prompts: the first turns of the questions of `eval.prompts`, over and over."""
    template, questions = ChatTemplate(target.tokenizer), questions_from(config)
    asked = [questions[index % len(questions)] for index in range(count)]
    return [template.encode(question.conversation([])) for question in asked]


def overhead_of(
    target: Target, methods: Sequence[Method], prompts: list[list[int]], config: DictConfig
) -> list[Row]:
    """Rows of overhead.csv: every method at every batch size."""
    return [
        measure_overhead(target, method, prompts[:batch_size], OVERHEAD_TOKENS)
        for batch_size in dict.fromkeys(config.profile.batch_sizes)
        for method in methods
    ]


def bench_facts(path: str) -> tuple[BenchFacts, dict[str, Any]]:
    """What the finished bench in `path` measured, and its provenance.

    Raises:
        UserError: no bench, or one that is unfinished.
    """
    bench = load_run(path)
    methods: list[dict[str, Any]] = bench.totals.get("methods") or []
    if not bench.finished or VANILLA not in [row["method"] for row in methods]:
        raise UserError(f"profile.run={path} is no finished bench")
    turns = bench.generations
    lengths = turns["prompt_tokens"].map(len) + turns["tokens"].map(len) / 2
    facts = BenchFacts(
        methods, bench.totals["acceptance"], methods[0]["batch_size"], float(np.mean(lengths))
    )
    return facts, bench.provenance


def of_drafter(bench: BenchFacts, digests: Mapping[str, str], folder: Path) -> BenchFacts:
    """The bench without methods that drafted with other weights than those in `folder`.

    Args:
        digests: of each drafter of the bench, by its name in the rows.

    Raises:
        UserError: no method of the bench drafted with these weights.
    """
    own = weights_digest(folder)
    others = [name for name, digest in digests.items() if digest != own]
    kept = replace(bench, methods=[r for r in bench.methods if r["drafter"] not in others])
    if not kept.drafting:
        raise UserError(
            f"profile.run is a bench of another drafter ({', '.join(others)}), whose weights are "
            f"not those in '{folder}'"
        )
    return kept
