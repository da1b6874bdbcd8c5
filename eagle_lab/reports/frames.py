"""Rows of result files as data frames: every column present, labels, and which rows go together.

Knows the columns of a bench's files; knows no files. A cell that does not apply is NaN; a setting
that is infeasible has `infeasible = True`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from eagle_lab.bench.statistics import tau_of
from eagle_lab.columns import SUMMARY, csv_names

SETTINGS = ("drafter", "batch_size", "temperature", "depth", "width", "num_nodes")
TREE = ["depth", "width", "num_nodes"]
NUMERIC = (
    "temperature",
    *csv_names(column for column in SUMMARY if column.decimals is not None),
)


def tidy(frame: pd.DataFrame) -> pd.DataFrame:
    """Every column of summary.csv, numbers as numbers, and `infeasible`."""
    added = [name for name in csv_names(SUMMARY) if name not in frame]
    frame = frame.assign(**dict.fromkeys(added))
    numbers = {name: pd.to_numeric(frame[name], errors="coerce") for name in NUMERIC}
    return frame.assign(**numbers, infeasible=frame["status"] == "infeasible")


def says_false(values: pd.Series) -> pd.Series:
    """Which cells hold false, as a boolean or as text; empty ones do not."""
    return values.astype(str).str.lower().isin({"false", "0", "0.0"})


def has_values(rows: pd.DataFrame, column: str) -> bool:
    """True if any row holds a value of `column`."""
    return column in rows and bool(rows[column].notna().any())


def label_rows(frame: pd.DataFrame) -> pd.DataFrame:
    """Add `label`: the method's name, and whichever settings tell its rows apart.

    Example: two rows of `eagle_dynamic` at batch sizes 1 and 4 become
    `eagle_dynamic, batch 1` and `eagle_dynamic, batch 4`.
    """
    labels = frame["method"].astype(str)
    for _, rows in frame.groupby("method", sort=False):
        settings = rows[[name for name in SETTINGS if name in rows]]
        if {"depth", "num_nodes"} <= set(rows) and rows["depth"].equals(rows["num_nodes"]):
            settings = settings.drop(columns="num_nodes")  # chains: as many as levels
        further = _further_settings(rows)
        settings = settings.join(further[[name for name in further if name not in SETTINGS]])
        for name in settings:
            if settings[name].astype(str).nunique() > 1:
                shown = settings[name].map(lambda value, name=name: setting_text(name, value))
                labels[rows.index] += shown.where(settings[name].notna(), "")
    if "job" in frame:
        twice = labels.duplicated(keep=False) & (frame["job"] != "")
        labels = labels.where(~twice, labels + ", job " + frame["job"].astype(str))
    return frame.assign(label=labels)


def _further_settings(rows: pd.DataFrame) -> pd.DataFrame:
    """What the column `settings`, JSON, says beyond the columns of their own."""
    texts = rows["settings"] if "settings" in rows else pd.Series(None, rows.index, dtype=object)
    parsed = [json.loads(text) if isinstance(text, str) and text else {} for text in texts]
    return pd.DataFrame(parsed, index=rows.index, dtype=object)


def setting_text(name: str, value: Any) -> str:
    """`, T = 1`, `, batch 4`, `, depth 6`, `, my_drafter`: one setting at the end of a label."""
    if name == "drafter":
        return f", {Path(str(value)).name}"
    if name == "num_nodes":
        return f", {value:g} node{'' if value == 1 else 's'}"
    number = f"{value:g}" if isinstance(value, float) else str(value)
    heading = {"temperature": "T =", "batch_size": "batch"}.get(name, name)
    return f", {heading} {number}"


def main_rows(summary: pd.DataFrame) -> pd.DataFrame:
    """The feasible rows at the smallest batch size: those that figures by method compare.

    Labels are made anew, since the batch size no longer tells rows apart.
    """
    rows = summary[~summary["infeasible"]]
    if has_values(rows, "batch_size"):
        rows = rows[(rows["batch_size"] == rows["batch_size"].min()) | rows["batch_size"].isna()]
    return label_rows(rows)


def with_labels(rows: pd.DataFrame, summary: pd.DataFrame) -> pd.DataFrame:
    """Generations or categories of `summary`'s rows, in its order, each with its row's `label`.

    Rows are matched by method and by every setting that both frames hold.
    """
    if rows.empty or summary.empty:
        return rows.head(0).assign(label=pd.Series(dtype=str))
    keys = ["method"] + [
        name for name in (*SETTINGS, "settings") if has_values(rows, name) and name in summary
    ]
    return summary[[*keys, "label"]].drop_duplicates(keys).merge(rows, on=keys, how="inner")


def conditions(rows: pd.DataFrame) -> str:
    """`n = 16 questions, T = 0, batch size 1`: what holds for all of `rows`."""
    parts = []
    for name, text in (
        ("num_questions", "n = {} questions"), ("temperature", "T = {}"), ("batch_size", "batch {}")
    ):  # fmt: skip
        values = rows[name].dropna()
        if len(values) and (values.nunique() == 1 or name == "num_questions"):
            parts.append(text.format(span(values)))
    return ", ".join(parts)


def span(values: pd.Series) -> str:
    """`4`, or `2 to 8` where values differ."""
    low, high = values.min(), values.max()
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"


def with_ties(summary: pd.DataFrame, divergences: pd.DataFrame) -> pd.DataFrame:
    """`summary` with `num_ties`: turns that count as equal by a tie, where a bench judged them."""
    keys = ["method", *TREE]
    if not {*keys, "verdict"} <= set(divergences):
        return summary
    if has_values(divergences, "settings") and has_values(summary, "settings"):
        keys.append("settings")
    ties = divergences.loc[divergences["verdict"] == "tie", keys]
    counted = ties.astype(dict.fromkeys(TREE, float)).value_counts(dropna=False)
    found = summary.merge(counted.rename("num_ties").reset_index(), how="left", on=keys)
    num_ties = found["num_ties"].fillna(0).where(found["greedy_match_rate"].notna())
    return found.assign(num_ties=num_ties)


def summarize_generations(
    generations: pd.DataFrame, settings: Mapping[str, Any] | None = None
) -> pd.DataFrame:
    """What unfinished work tells: counts, tau and tokens per second by method, no intervals.

    Args:
        generations: rows so far.
        settings: the run's `eval` section, for what holds for all rows.
    """
    shared = {name: (settings or {}).get(name) for name in ("batch_size", "temperature")}
    keys = ["method", *(name for name in (*SETTINGS, "settings") if name in generations)]
    rows = []
    for values, group in generations.groupby(keys, sort=False, dropna=False):
        rows.append({**shared, **dict(zip(keys, values, strict=True)), **_measures(group)})
    return pd.DataFrame(rows)


def _measures(group: pd.DataFrame) -> dict[str, float]:
    emitted = group["emitted_lengths"].explode().dropna()
    num_tokens = int(group["tokens"].map(len).sum())
    measures = {
        "num_questions": group["question_id"].nunique(),
        "num_tokens": num_tokens,
        "num_cycles": len(emitted),
        "tau_micro": emitted.mean(),
        "tau_macro": pd.Series(map(tau_of, group.to_dict("records")), dtype=float).mean(),
    }
    if has_values(group, "decode_s"):
        measures["tokens_per_second"] = num_tokens / (group["prefill_s"] + group["decode_s"]).sum()
    return measures
