"""What a profile run holds: cost curves, the machine's limits, overheads, predicted speedups."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

CURVES = "cost_curves.csv"
SIZES = ("batch_size", "context")


@dataclass(frozen=True)
class Profile:
    """The tables of a profile run.

    Attributes:
        passes: one row per pass of `target` or `draft` (cost_curves.csv), with its relative cost
            and its share of the machine's limits (summary.csv) where they are known.
        overhead: one row per method and batch size (overhead.csv).
        predictions: predicted beside measured speedups (predictions.csv).
        crossover: speedups predicted from assumed acceptance by batch size (crossover.csv).
        totals: summary.json.
    """

    passes: pd.DataFrame
    overhead: pd.DataFrame = field(default_factory=pd.DataFrame)
    predictions: pd.DataFrame = field(default_factory=pd.DataFrame)
    crossover: pd.DataFrame = field(default_factory=pd.DataFrame)
    totals: dict[str, Any] = field(default_factory=dict)

    def of(self, model_pass: str) -> pd.DataFrame:
        """The passes of one model, by batch size, context and tokens."""
        rows = self.passes[self.passes["model_pass"] == model_pass]
        return rows.sort_values([*SIZES, "num_tokens"], ignore_index=True)

    def first(self, model_pass: str) -> pd.DataFrame:
        """Its passes at the smallest batch size and context."""
        rows = self.of(model_pass)
        return rows[(rows[list(SIZES)] == rows[list(SIZES)].iloc[0]).all(axis=1)]


def read_profile(folder: Path, totals: dict[str, Any]) -> Profile | None:
    """The profile in `folder`; None if it holds no cost curves.

    Args:
        folder: a run's folder.
        totals: its summary.json.
    """
    if not (folder / CURVES).is_file():
        return None
    passes = pd.read_csv(folder / CURVES)
    work = _read(folder / "summary.csv")
    if "relative_cost" in work:
        keys = ["model_pass", *SIZES, "num_tokens"]
        added = [name for name in work if name not in passes]
        passes = passes.merge(work[[*keys, *added]], on=keys, how="left")
    names = ("overhead", "predictions", "crossover")
    return Profile(passes, totals=totals, **{name: _read(folder / f"{name}.csv") for name in names})


def _read(path: Path) -> pd.DataFrame:
    return pd.read_csv(path) if path.is_file() else pd.DataFrame()
