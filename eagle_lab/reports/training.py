"""The curve of a train run: the CSV file that has a column `val_acceptance_1`."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd

_DEPTH = re.compile(r"val_acceptance_(\d+)")
TAU = "val_tau"


def read_training(folder: Path) -> pd.DataFrame:
    """One row per validation, sorted by `step`; empty if the folder holds no curve."""
    for path in sorted(folder.glob("*.csv")):
        columns = pd.read_csv(path, nrows=0).columns if path.stat().st_size else []
        if "step" in columns and "val_acceptance_1" in columns:
            rows = pd.read_csv(path).dropna(subset=["val_acceptance_1"])
            return rows.sort_values("step", ignore_index=True)
    return pd.DataFrame()


def acceptance_columns(training: pd.DataFrame) -> list[str]:
    """Columns of held-out conditional acceptance, in the order of their depth."""
    found = {
        int(match.group(1)): str(column)
        for column in training.columns
        if (match := _DEPTH.fullmatch(str(column)))
    }
    return [found[depth] for depth in sorted(found)]


def tau_column(training: pd.DataFrame) -> str | None:
    """The column of the expected tokens per cycle of a chain, if there is one."""
    return TAU if TAU in training else None
