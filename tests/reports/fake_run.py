"""Run folders as a bench, a sweep and a training leave them, from simulated cycles.

A method is a chance that each drafted token is accepted, a depth, and costs of its steps; the rows
follow from these and a seed. The summaries are those that the evaluation makes of such rows.
"""

from __future__ import annotations

import csv
import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from eagle_lab.bench.matching import DIVERGENCE_COLUMNS, MatchReport
from eagle_lab.bench.results import (
    CATEGORY_COLUMNS,
    COLUMNS,
    Conditions,
    summarize,
    summarize_categories,
)
from eagle_lab.columns import CURVES, OVERHEAD, PREDICTIONS, WORK, csv_names
from eagle_lab.methods.build import Method
from eagle_lab.runs.folder import cell

CATEGORIES = {
    "writing": -0.12, "roleplay": -0.08, "reasoning": 0.0, "math": 0.08,
    "coding": 0.12, "extraction": 0.1, "stem": 0.02, "humanities": -0.04,
}  # fmt: skip
VANILLA_MS = 62.0


@dataclass(frozen=True)
class FakeMethod:
    """How a method behaves: chance per draft token, sizes, milliseconds per level and per node."""

    name: str
    chance: float = 0.0
    depth: int | None = None
    width: int | None = None
    num_nodes: int | None = None
    draft_ms: float = 3.0
    node_ms: float = 0.9
    drafter: str | None = None
    matches: bool | None = None
    infeasible: str | None = None

    @property
    def method(self) -> Method:
        return Method(
            name=self.name,
            settings={"depth": self.depth, "width": self.width, "num_nodes": self.num_nodes},
            drafter=self.drafter,
            drafter_matches_target=self.matches,
            depth=self.depth,
            width=self.width,
            num_nodes=self.num_nodes,
            infeasible=self.infeasible,
        )


def eagle(name: str, chance: float, depth: int, width: int | None, num_nodes: int) -> FakeMethod:
    return FakeMethod(
        name, chance, depth, width, num_nodes, draft_ms=4.5, drafter="runs/train/drafter",
        matches=True,
    )  # fmt: skip


BENCH = (
    FakeMethod("vanilla"),
    FakeMethod("self_speculation", 0.995, 5, None, 5, draft_ms=VANILLA_MS),
    FakeMethod("prompt_lookup", 0.28, 10, None, 10, draft_ms=0.03),
    eagle("eagle_chain", 0.52, 5, None, 5),
    eagle("eagle_static", 0.62, 5, None, 25),
    eagle("eagle_dynamic", 0.68, 6, 10, 32),
)


def sweep_method(depth: int, width: int, num_nodes: int) -> FakeMethod:
    """A dynamic tree: wider and larger accept more, larger cost more."""
    pool = width + (depth - 1) * width**2
    chance = 0.4 + 0.08 * np.log2(width) + 0.03 * np.log2(num_nodes)
    reason = f"the pool holds {pool} nodes" if pool < num_nodes else None
    made = eagle("eagle_dynamic", float(min(chance, 0.85)), depth, width, num_nodes)
    return FakeMethod(**{**made.__dict__, "infeasible": reason})


def make_rows(
    method: FakeMethod,
    *,
    num_questions: int = 16,
    turns: int = 2,
    max_new_tokens: int = 64,
    batch_size: int = 1,
    timing: bool = True,
    seed: int = 0,
) -> list[dict[str, Any]]:
    """Rows of generations.jsonl; all methods emit the same tokens."""
    rows = []
    for index, turn in itertools.product(range(num_questions), range(1, turns + 1)):
        category = list(CATEGORIES)[index % len(CATEGORIES)]
        random = np.random.default_rng([seed, index, turn, *method.name.encode()])
        length = int(np.random.default_rng([index, turn]).integers(24, max_new_tokens))
        cut = index % 3 > 0
        chance = float(np.clip(method.chance + CATEGORIES[category], 0, 1)) if method.depth else 0
        if method.name == "self_speculation":
            chance = method.chance
        accepted, emitted = cycles_of(random, chance, method.depth or 0, length - 1, cut)
        tokens = np.random.default_rng([index, turn, 1]).integers(3, 400, length).tolist()
        slowness = 1 + 0.05 * random.standard_normal() + 0.15 * (batch_size - 1)
        draft = (method.draft_ms * (method.depth or 0)) * slowness / 1e3
        verify = (VANILLA_MS + method.node_ms * (method.num_nodes or 0)) * slowness / 1e3
        cycle = draft + verify + 0.0015
        times = {
            "prefill_s": 0.21 * slowness, "decode_s": cycle * len(emitted),
            "draft_s": draft * len(emitted), "verify_s": verify * len(emitted),
            "cycle_s": [cycle] * len(emitted),
        }  # fmt: skip
        rows.append(
            {
                "method": method.name, **method.method.sizes, "question_id": index + 1,
                "settings": method.method.settings,
                "category": category, "turn": turn, "repeat": 1, "batch": index // batch_size,
                "prompt_tokens": list(range(10)), "tokens": tokens, "text": f"answer {index}",
                "accepted_lengths": accepted, "emitted_lengths": emitted,
                "num_drafted": (method.num_nodes or 0) * len(emitted),
                "finished_by": "length" if cut else "eos",
                **{name: value if timing else None for name, value in times.items()},
                "peak_memory_mb": 1480.0 + 3 * (method.num_nodes or 0),
            }
        )  # fmt: skip
    return rows


def cycles_of(
    random: np.random.Generator, chance: float, depth: int, num_tokens: int, cut: bool
) -> tuple[list[int], list[int]]:
    """Accepted and emitted lengths of cycles that emit `num_tokens`; the last one may be cut."""
    accepted: list[int] = []
    emitted: list[int] = []
    while (left := num_tokens - sum(emitted)) > 0:
        run = min(int(random.geometric(1 - chance)) - 1 if chance < 1 else depth, depth)
        if run + 1 > left:
            run, new = (left, left) if cut else (left - 1, left)
        else:
            new = run + 1
        accepted.append(run)
        emitted.append(new)
    return accepted, emitted


def write_bench(
    path: Path,
    methods: Sequence[FakeMethod] = BENCH,
    *,
    task: str = "bench",
    finished: bool = True,
    temperature: float = 0.0,
    batch_size: int = 1,
    timing: bool = True,
    **sizes: Any,
) -> Path:
    """A bench's folder; an unfinished one has only growing generations."""
    path.mkdir(parents=True)
    rows = {
        method: make_rows(method, batch_size=batch_size, timing=timing, **sizes)
        for method in methods
        if method.infeasible is None
    }
    write_config(path, task, finished, temperature, batch_size)
    flat = [row for part in rows.values() for row in part]
    lines = "".join(json.dumps(row) + "\n" for row in flat)
    if not finished:
        (path / "generations.jsonl.partial").write_text(lines + '{"method": "van', "utf-8")
        return path
    (path / "generations.jsonl").write_text(lines, "utf-8")
    conditions = Conditions(batch_size, temperature, seed=0)
    vanilla = rows[methods[0]]
    summary, by_category = [], []
    for method in methods:
        match = MatchReport(len(vanilla)) if temperature == 0 else None
        ours = rows.get(method, [])
        summary.append(summarize(method.method, ours, vanilla, conditions, match=match))
        by_category += summarize_categories(method.method, ours, vanilla, conditions)
    write_table(path / "summary.csv", COLUMNS, summary)
    write_table(path / "summary_by_category.csv", CATEGORY_COLUMNS, by_category)
    write_table(path / "divergences.csv", DIVERGENCE_COLUMNS, [TIE] if len(methods) > 2 else [])
    (path / "summary.json").write_text("{}", "utf-8")
    return path


TIE = {
    "method": "eagle_dynamic", "depth": 6, "width": 10, "num_nodes": 32, "question_id": 3,
    "turn": 2, "repeat": 1, "position": 17, "vanilla_token": 88, "token": 91,
    "logit_gap": 0.00021, "verdict": "tie",
}  # fmt: skip


def write_config(
    path: Path, task: str, finished: bool, temperature: float = 0.0, batch_size: int = 1
) -> None:
    config = {
        "task": task, "seed": 0, "device": "cpu", "dtype": "float32",
        "target": {"kind": "smollm2", "name": "smollm2_135m"},
        "eval": {"temperature": temperature, "batch_size": batch_size, "max_new_tokens": 64},
    }  # fmt: skip
    (path / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False), "utf-8")
    provenance = {
        "task": task, "status": "finished" if finished else "running",
        "start": "2026-11-30T10:00:00+00:00",
        "command": f"python -m eagle_lab.run +experiment={task} eval.num_questions=16",
        "git_commit": "0123456789abcdef0123456789abcdef01234567", "git_dirty": False,
        "versions": {"python": "3.11.9", "torch": "2.13.0", "transformers": "5.24.0"},
        "machine": {"system": "Linux-6.1", "cpu": "AMD EPYC", "num_cpus": 2},
        "device": "cpu", "device_name": "AMD EPYC", "torch_threads": 2,
        "end": "2026-11-30T10:21:04+00:00" if finished else None,
        "dtype": "float32", "seed": 0, "prompts": "bench80", "prompts_sha256": "ab" * 32,
        "target": "SmolLM2-135M-Instruct", "target_fingerprint": "445af5c8c6ec3c15",
        "resumed": [],
    }  # fmt: skip
    (path / "provenance.json").write_text(json.dumps(provenance), "utf-8")


def write_table(path: Path, columns: Sequence[str], rows: Sequence[dict[str, Any]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows([cell(row.get(name)) for name in columns] for row in rows)


GRID = list(itertools.product((2, 4, 6), (2, 4, 8), (8, 16, 32)))


def write_sweep(root: Path, grid: Sequence[tuple[int, int, int]] = GRID, **options: Any) -> Path:
    """The root of a multirun over depth x width x num_nodes, one bench job per setting."""
    root.mkdir(parents=True)
    write_config(root, "multirun", finished=True)
    for number, setting in enumerate(grid):
        write_bench(root / str(number), [BENCH[0], sweep_method(*setting)], **options)
    return root


def write_one_process_sweep(path: Path, grid: Sequence[tuple[int, int, int]] = GRID) -> Path:
    """A sweep done in one process: vanilla once, every setting a row."""
    methods = [BENCH[0], *(sweep_method(*setting) for setting in grid)]
    return write_bench(path, methods, task="sweep")


def write_profile(path: Path, *, drafter: bool = True) -> Path:
    """A profile's folder: a target pass costs 60 ms and 1.5 ms per further token, plain ones 80."""
    path.mkdir(parents=True)
    write_config(path, "profile", finished=True)
    models = {"target": (60.0, 1.5, 20.0), "draft": (3.0, 0.2, None)}
    if not drafter:
        del models["draft"]
    rows = []
    for (name, (base, slope, dearer)), batch_size, context, num_tokens in itertools.product(
        models.items(), (1, 4), (128, 512), (1, 2, 4, 8, 16, 32, 64)
    ):
        median = base + slope * (batch_size * num_tokens - 1) + context / 64
        one = base + slope * (batch_size - 1) + context / 64
        rows.append(
            {
                "model_pass": name, "batch_size": batch_size, "context": context,
                "num_tokens": num_tokens, "median_ms": median, "low_ms": 0.97 * median,
                "high_ms": 1.05 * median, "relative_cost": median / one,
                "plain_median_ms": dearer and median + dearer,
                "plain_relative_cost": dearer and (median + dearer) / (one + dearer),
                "gigabytes_per_second": 538 / median, "read_share": 22.4 / median,
                "gigaflops": 270 * batch_size * num_tokens / median,
                "arithmetic_share": 2.5 * batch_size * num_tokens / median,
            }
        )  # fmt: skip
    write_table(path / "cost_curves.csv", csv_names(CURVES), rows)
    write_table(path / "summary.csv", csv_names((*CURVES, *WORK)), rows)
    cycles = [("vanilla", 1, 62.0, 1.2), ("eagle_dynamic", 1, 190.0, 9.5)]
    overhead = [
        {
            "method": method, "batch_size": size, "num_cycles": 12, "cycle_ms": cycle,
            "models_ms": cycle - rest, "overhead_ms": rest, "overhead_low_ms": rest - 0.2,
            "overhead_high_ms": rest + 0.4,
        }
        for method, size, cycle, rest in cycles
    ]  # fmt: skip
    write_table(path / "overhead.csv", csv_names(OVERHEAD), overhead)
    if drafter:
        tree = {
            "method": "eagle_dynamic", "depth": 6, "width": 10, "num_nodes": 59, "tau_micro": 3.1,
            "predicted_speedup": 1.37, "decode_speedup": 1.31, "speedup": 1.28,
            "speedup_low": 1.2, "speedup_high": 1.35, "best": "tree",
        }  # fmt: skip
        chain = {"method": "eagle_chain", "depth": 2, "num_nodes": 2, "tau_micro": 1.9}
        chain |= {"predicted_speedup": 1.6, "best": "chain"}
        write_table(path / "predictions.csv", csv_names(PREDICTIONS), [tree, chain])
    totals = {"ceilings": {"read": 24e9, "float32": 108e9, "bfloat16": 60e9}}
    (path / "summary.json").write_text(json.dumps(totals), "utf-8")
    return path
