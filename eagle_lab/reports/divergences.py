"""Where a method's greedy output first leaves vanilla's, ties included.

The bench has the logits and judges each divergence a tie or a mismatch (`evaluation.matching`).
Where it wrote no list, the positions are found from the tokens alone and the verdict stays empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

COLUMNS = ["method", "question_id", "turn", "repeat", "position", "logit_gap", "verdict"]
_PLACE = ["question_id", "turn", "repeat"]
_METHOD = ["method", "depth", "width", "num_nodes"]


def find_divergences(
    folder: Path, totals: dict[str, Any], generations: pd.DataFrame
) -> pd.DataFrame:
    """The list that the bench wrote, or one made by comparing the tokens of greedy rows."""
    path = folder / "divergences.csv"
    if path.is_file() and path.stat().st_size:
        return pd.read_csv(path)
    written = totals.get("divergences")
    if isinstance(written, list):
        return pd.DataFrame(written) if written else pd.DataFrame(columns=COLUMNS)
    return compare_with_vanilla(generations)


def with_ties(summary: pd.DataFrame, divergences: pd.DataFrame) -> pd.DataFrame:
    """`summary` with `num_ties`: turns that count as equal by a tie, where a bench judged them."""
    if not {*_METHOD, "verdict"} <= set(divergences):
        return summary
    ties = divergences.loc[divergences["verdict"] == "tie", _METHOD]
    counted = ties.astype(dict.fromkeys(_METHOD[1:], float)).value_counts(dropna=False)
    found = summary.merge(counted.rename("num_ties").reset_index(), how="left", on=_METHOD)
    num_ties = found["num_ties"].fillna(0).where(found["greedy_match_rate"].notna())
    return found.assign(num_ties=num_ties)


def compare_with_vanilla(generations: pd.DataFrame) -> pd.DataFrame:
    """First differing position per turn of every greedy, lossless method; no logit gap."""
    if generations.empty or "tokens" not in generations:
        return pd.DataFrame(columns=COLUMNS)
    rows = generations
    if "temperature" in rows:
        rows = rows[rows["temperature"].fillna(0) == 0]
    keys = [*_PLACE, *(["batch_size"] if "batch_size" in rows else [])]
    base = rows[rows["method"] == "vanilla"].drop_duplicates(keys).set_index(keys)["tokens"]
    found = []
    for _, row in rows.iterrows():
        key = tuple(row[column] for column in keys)
        if row["method"] == "vanilla" or "lossy" in row["method"] or key not in base.index:
            continue
        position = first_difference(base.loc[key], row["tokens"])
        if position is not None:
            place = {column: row[column] for column in _PLACE}
            found.append({"method": row["method"], **place, "position": position})
    return pd.DataFrame(found, columns=COLUMNS)


def first_difference(one: Sequence[int], other: Sequence[int]) -> int | None:
    """Index of the first token that differs; a shorter text differs where it ends."""
    for position, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return position
    return None if len(one) == len(other) else min(len(one), len(other))
