"""A summary of unfinished work: what the generations so far tell, without intervals.

The finished summary comes from the bench itself; this one only lets a report of a stopped run show
something, with the report saying so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from eagle_lab.reports.acceptance import cycles, emitted_lengths
from eagle_lab.reports.frames import SETTINGS


def summarize_generations(
    generations: pd.DataFrame, asked: Mapping[str, Any] | None = None
) -> pd.DataFrame:
    """One row per method and recorded setting: counts, tau (micro and macro), tokens per second.

    Args:
        generations: rows so far.
        asked: the run's `eval` section, for the settings that hold for all rows.
    """
    known = {name: (asked or {}).get(name) for name in ("batch_size", "temperature")}
    keys = ["method", *(column for column in SETTINGS if column in generations)]
    rows = []
    for values, group in generations.groupby(keys, sort=False, dropna=False):
        settings = dict(zip(keys, values, strict=True))
        rows.append({**known, **settings, **_measures(group.assign(label=str(settings["method"])))})
    return pd.DataFrame(rows)


def _measures(group: pd.DataFrame) -> dict[str, float]:
    emitted = cycles(group)
    per_turn = group.apply(lambda row: _mean(emitted_lengths(row)), axis=1)
    num_tokens = int(group["tokens"].map(len).sum())
    measures = {
        "num_questions": group["question_id"].nunique(),
        "num_tokens": num_tokens,
        "num_cycles": len(emitted),
        "tau_micro": emitted["emitted"].mean(),
        "tau_macro": per_turn.mean(),
    }
    if {"prefill_s", "decode_s"} <= set(group) and not timing_missing(group):
        measures["tokens_per_second"] = num_tokens / (group["prefill_s"] + group["decode_s"]).sum()
    return measures


def _mean(values: list[int]) -> float:
    return sum(values) / len(values) if values else float("nan")


def timing_missing(group: pd.DataFrame) -> bool:
    """True if no row of `group` has a decode time."""
    return bool((group["decode_s"].fillna(0) <= 0).all())
