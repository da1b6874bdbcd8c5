"""What may stand in the tables of a claim: settings, quantities, counts; and reading them.

    expected.csv   source, settings, quantities
    measured.csv   run, settings, quantities with `_low` and `_high` (95 % intervals), counts,
                   and what the same run predicts of a quantity (`PREDICTED`)

One line holds for one setting; an empty setting means any, an empty quantity says nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from eagle_lab.errors import UserError, choose

NUMBER = "%.8g"
"""How numbers are written."""
TEXT = ("target", "benchmark", "method", "category")
SETTINGS = {
    "target": "target",
    "benchmark": "benchmark",
    "temperature": "T",
    "method": "method",
    "category": "category",
    "batch_size": "batch",
    "depth": "depth",
    "width": "width",
    "num_nodes": "nodes",
    "num_draft_tokens": "draft tokens",
    "num_training_tokens": "training tokens",
    "training_minutes": "training minutes",
    "draft_position": "draft token",
    "confidence_from": "confidence from",
    "confidence_to": "to",
}
"""Columns that say what was measured, with their headings; numbers but for those in `TEXT`."""


@dataclass(frozen=True)
class Quantity:
    """How a measured column is called and shown."""

    heading: str
    places: int = 2
    unit: str = ""


QUANTITIES = {
    "tau": Quantity("τ"),
    "tau_micro": Quantity("τ pooled over cycles"),
    "speedup": Quantity("speedup", unit="×"),
    "decode_speedup": Quantity("speedup without prefill", unit="×"),
    "acceptance": Quantity("acceptance", 3),
    "greedy_match_rate": Quantity("greedy match rate", 3),
    "val_tau": Quantity("expected τ of a chain on held-out answers"),
    "tokens_per_second": Quantity("tokens/s", 1),
    "decode_tokens_per_second": Quantity("decode tokens/s", 1),
    "drafted_per_cycle": Quantity("drafted tokens per cycle", 1),
    "draft_ms": Quantity("draft ms per cycle", 1),
    "verify_ms": Quantity("verify ms per cycle", 1),
    "overhead_ms": Quantity("overhead ms per cycle", 1),
    "ttft_ms": Quantity("time to the first token, ms", 1),
    "itl_p50_ms": Quantity("inter-token latency p50, ms", 1),
    "itl_p95_ms": Quantity("inter-token latency p95, ms", 1),
    "itl_p99_ms": Quantity("inter-token latency p99, ms", 1),
    "peak_memory_mb": Quantity("peak memory, MB", 0),
}
PREDICTED = {
    "tau_micro": "predicted_tau_micro",
    "decode_speedup": "predicted_decode_speedup",
    "acceptance": "mean_confidence",
}
"""Quantities that a run itself predicts, by a formula or its drafter's confidence, and where."""
COUNTS = ("num_questions", "num_turns", "num_tokens", "num_cycles", "num_trials", "num_ties")

EXPECTED_COLUMNS = ("source", *SETTINGS, *QUANTITIES)
MEASURED_COLUMNS = (
    "run",
    *SETTINGS,
    *(f"{name}{suffix}" for name in QUANTITIES for suffix in ("", "_low", "_high")),
    *PREDICTED.values(),
    *COUNTS,
)


def read_expected(path: Path) -> pd.DataFrame:
    """expected.csv with every setting as a column; numbers as numbers, empty cells as NaN.

    Raises:
        UserError: no such file, no line, no quantity, an unknown column, or a cell that is no
            number; names file, column and line.
    """
    frame = _read(path, EXPECTED_COLUMNS, first="source")
    if frame.empty:
        raise UserError(f"{path} has no line; one per setting says what is to be measured")
    if not set(frame) & set(QUANTITIES):
        raise UserError(f"{path} has no quantity; add a column: {', '.join(QUANTITIES)}")
    return with_settings(frame)


def read_measured(path: Path) -> pd.DataFrame:
    """measured.csv likewise; an absent file has no lines.

    Raises:
        UserError: as `read_expected`.
    """
    if not path.is_file():
        return with_settings(pd.DataFrame(columns=["run"]))
    return with_settings(_read(path, MEASURED_COLUMNS, first="run"))


def with_settings(frame: pd.DataFrame) -> pd.DataFrame:
    """`frame` with every setting as a column, missing ones empty."""
    return frame.assign(**{name: float("nan") for name in SETTINGS if name not in frame})


def quantities_of(frame: pd.DataFrame) -> list[str]:
    """The quantities that are columns of `frame`, in its order."""
    return [str(column) for column in frame if column in QUANTITIES]


def _read(path: Path, allowed: Iterable[str], first: str) -> pd.DataFrame:
    if not path.is_file():
        raise UserError(f"{path} is missing")
    try:
        frame = pd.read_csv(path, dtype=str, keep_default_na=False, encoding="utf-8")
    except ValueError as error:  # pandas' parser and empty-file errors, and undecodable bytes
        raise UserError(f"{path} is no CSV table: {str(error).strip()}") from error
    if first not in frame:
        raise UserError(f"{path} has no column '{first}'")
    if not isinstance(frame.index, pd.RangeIndex):
        raise UserError(f"{path}: its lines have more cells than its header")
    for column in frame:
        choose(str(column), allowed, f"column of {path}")
        frame[column] = frame[column].str.strip()
        frame[column] = (
            frame[column].mask(frame[column] == "")
            if column in (first, *TEXT)
            else _numbers(frame[column], path)
        )
    return frame


def _numbers(cells: pd.Series, path: Path) -> pd.Series:
    numbers = pd.to_numeric(cells.mask(cells == ""), errors="coerce")
    broken = cells[numbers.isna() & (cells != "")]
    if len(broken):
        raise UserError(
            f"{path}, line {broken.index[0] + 2}: {cells.name} is '{broken.iloc[0]}', not a number"
        )
    return numbers
