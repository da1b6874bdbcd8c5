"""Reading result files into data frames, tolerant of empty cells and of unfinished work.

Knows the columns of a bench's files; knows nothing of torch, models or Hydra. A cell that does not
apply is NaN. A setting that cannot be is a row with the word `infeasible` in it; here it gets the
column `infeasible = True`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd

from eagle_lab.errors import UserError
from eagle_lab.reports.words import counted

SETTINGS = ("drafter", "batch_size", "temperature", "depth", "width", "num_nodes")
TEXT_COLUMNS = frozenset(
    {"method", "drafter", "drafter_matches_target", "category", "status", "note", "reason", "job"}
)
NUMERIC_COLUMNS = (
    *("batch_size", "temperature", "depth", "width", "num_nodes"),
    *("num_questions", "num_tokens", "num_cycles", "drafted_per_cycle"),
    *("tau_micro", "tau_macro", "tau_macro_low", "tau_macro_high"),
    *("tokens_per_second", "decode_tokens_per_second"),
    *("speedup", "speedup_low", "speedup_high"),
    *("draft_ms", "verify_ms", "overhead_ms", "ttft_ms"),
    *("itl_p50_ms", "itl_p95_ms", "itl_p99_ms"),
    *("peak_memory_mb", "greedy_match_rate"),
)


def read_rows(path: Path | None) -> pd.DataFrame:
    """JSON lines as a frame, one row per line; a torn last line of unfinished work is left out.

    Raises:
        UserError: if any other line is broken, naming it.
    """
    if path is None:
        return pd.DataFrame()
    rows: list[dict[str, Any]] = []
    lines = path.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            rows.append(json.loads(line))
        except ValueError as error:
            if number == len(lines) and path.suffix == ".partial":
                break
            raise UserError(f"{path}, line {number} is not valid JSON: {error}") from error
    return pd.DataFrame(rows)


def read_table(path: Path | None) -> pd.DataFrame:
    """A summary CSV with every column of the contract, numbers as numbers, empty cells as NaN."""
    if path is None or path.stat().st_size == 0:
        return pd.DataFrame()
    return tidy(pd.read_csv(path, dtype={"job": str, "drafter": str}, low_memory=False))


def tidy(frame: pd.DataFrame) -> pd.DataFrame:
    """Add missing columns as empty, mark infeasible rows, turn the numeric columns into numbers."""
    frame = frame.copy()
    frame["infeasible"] = says_infeasible(frame)
    for column in NUMERIC_COLUMNS:
        values = frame[column] if column in frame else pd.Series(float("nan"), index=frame.index)
        frame[column] = pd.to_numeric(values, errors="coerce")
    for column in ("drafter", "drafter_matches_target", "reason"):
        if column not in frame:
            frame[column] = None
    return frame


def says_infeasible(frame: pd.DataFrame) -> pd.Series:
    """True for each row with a cell that reads or begins with `infeasible`."""
    if frame.empty:
        return pd.Series(False, index=frame.index, dtype=bool)
    text = frame.astype(str).apply(lambda column: column.str.strip().str.lower())
    flagged = text.apply(lambda column: column.str.startswith("infeasible"))
    if "infeasible" in frame:
        flagged["infeasible"] = text["infeasible"].isin({"true", "1", "1.0", "infeasible"})
    return flagged.any(axis=1)


def label_rows(frame: pd.DataFrame) -> pd.DataFrame:
    """Add `label`: the method's name, and whichever settings tell its rows apart.

    Example: two rows of `eagle_dynamic` at batch sizes 1 and 4 become
    `eagle_dynamic, batch 1` and `eagle_dynamic, batch 4`.
    """
    frame = frame.copy()
    if frame.empty:
        frame["label"] = pd.Series(dtype=str)
        return frame
    parts = {index: [str(frame.at[index, "method"])] for index in frame.index}
    for _, rows in frame.groupby("method", sort=False):
        settings = [column for column in SETTINGS if column in rows]
        if {"depth", "num_nodes"} <= set(rows) and rows["depth"].equals(rows["num_nodes"]):
            settings.remove("num_nodes")  # chains: as many as levels
        for column in settings:
            if rows[column].nunique(dropna=False) > 1:
                for index, value in rows[column].items():
                    if not pd.isna(value):
                        parts[index].append(setting_text(column, value))
    labels = pd.Series([", ".join(parts[index]) for index in frame.index], index=frame.index)
    if "job" in frame:
        twice = labels.duplicated(keep=False) & (frame["job"] != "")
        labels = labels.where(~twice, labels + ", job " + frame["job"].astype(str))
    frame["label"] = labels
    return frame


def setting_text(column: str, value: Any) -> str:
    """One setting as a reader says it: `T = 1`, `batch 4`, `depth 6`, a drafter's folder name."""
    if column == "drafter":
        return Path(str(value)).name
    number = f"{float(value):g}"
    return {
        "temperature": f"T = {number}",
        "batch_size": f"batch {number}",
        "num_nodes": counted(float(value), "node"),
    }.get(column, f"{column} {number}")


def main_rows(summary: pd.DataFrame) -> pd.DataFrame:
    """The feasible rows at the smallest batch size: those that figures by method compare.

    Labels are made anew, since the batch size no longer tells rows apart.
    """
    rows = summary[~summary["infeasible"]]
    if rows["batch_size"].notna().any():
        rows = rows[(rows["batch_size"] == rows["batch_size"].min()) | rows["batch_size"].isna()]
    return label_rows(rows)


def label_generations(generations: pd.DataFrame, summary: pd.DataFrame) -> pd.DataFrame:
    """The generations of `summary`'s rows, each with its row's `label`.

    Rows are matched by method and by every setting that both frames hold.
    """
    if generations.empty or summary.empty:
        return generations.assign(label=pd.Series(dtype=str)).head(0)
    keys = ["method"] + [
        column
        for column in SETTINGS
        if column in generations and generations[column].notna().any() and column in summary
    ]
    rows = summary[[*keys, "label"]].drop_duplicates(keys)
    return generations.merge(rows, on=keys, how="inner")
