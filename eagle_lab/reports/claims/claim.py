"""A claim: a folder that says what is claimed, what is expected and what was measured.

    experiments/NAME/
      claim.yaml        title, paper, the runs its numbers come from, commands, tolerances
      expected.csv      numbers of papers or of reasoning, and the settings to be measured
      measured.csv      numbers of real runs
      provenance.json   where each of these runs comes from
      README.md         how to read it, what it shows, deviations

One line of a table holds for one setting; an empty setting means any, an empty quantity says
nothing. Reads only: `measure` writes measured.csv, `compare` compares.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from eagle_lab.columns import CATEGORIES, SUMMARY, Column, csv_names, pick
from eagle_lab.errors import UserError, choose
from eagle_lab.reports.load import read_json

CHECKOUT_CLAIMS = Path(__file__).resolve().parents[3] / "experiments"

TEXT = ("target", "benchmark", "method", "category")
_SETTINGS = (
    *(Column("target"), Column("benchmark")),
    *pick((*SUMMARY, *CATEGORIES), "temperature", "method", "category"),
    *pick(SUMMARY, "batch_size", "depth", "width", "num_nodes"),
    *(Column("num_draft_tokens", "draft tokens"), Column("num_training_tokens", "training tokens")),
    *(Column("training_minutes"), Column("draft_position", "draft token")),
    *(Column("confidence_from"), Column("confidence_to", "to")),
)
SETTINGS = {column.key: column for column in _SETTINGS}
"""Columns that say what was measured; numbers but for those in `TEXT`."""

_QUANTITIES = (
    Column("tau", "τ", "mean over turns; papers do not say how they average", 2),
    *pick(SUMMARY, "tau_micro", "speedup"),
    Column("decode_speedup", "speedup without prefill", decimals=2, unit="×"),
    Column("acceptance", decimals=3),
    *pick(SUMMARY, "greedy_match_rate"),
    Column("val_tau", "expected τ of a chain on held-out answers", decimals=2),
    *pick(SUMMARY, "tokens_per_second", "decode_tokens_per_second", "drafted_per_cycle"),
    *pick(SUMMARY, "draft_ms", "verify_ms", "overhead_ms", "ttft_ms"),
    *pick(SUMMARY, "itl_p50_ms", "itl_p95_ms", "itl_p99_ms", "peak_memory_mb"),
)
QUANTITIES = {
    column.key: replace(column, ends=(f"{column.key}_low", f"{column.key}_high"))
    for column in _QUANTITIES
}
"""What is measured, each with its 95 % interval."""
PREDICTED = {
    "tau_micro": "predicted_tau_micro",
    "decode_speedup": "predicted_decode_speedup",
    "acceptance": "mean_confidence",
}
"""Quantities that a run itself predicts, by a formula or its drafter's confidence, and where."""

EXPECTED_COLUMNS = ("source", *SETTINGS, *QUANTITIES)
MEASURED_COLUMNS = (
    *("run", *SETTINGS, *csv_names(QUANTITIES.values()), *PREDICTED.values()),
    *("num_questions", "num_turns", "num_tokens", "num_cycles", "num_trials", "num_ties"),
)

TABLES = ("summary", "categories", "acceptance", "calibration", "formula")
"""What of a run makes a claim's lines; see `measure`."""
KEYS = {
    "title": str,
    "paper": str,
    "table": str,
    "runs": dict,
    "commands": dict,
    "target": str,
    "tolerance": dict,
}
"""Keys of claim.yaml; title, paper and runs must be there."""

YES, NO, NOT_SHOWN = "yes", "no", "not shown"
"""Whether a number is within its tolerance; not shown where an interval holds the bound."""
BOUND = "at_least"
ROUNDING = 1e-9


@dataclass(frozen=True)
class Tolerance:
    """How far a measured number may lie from the expected one.

    Attributes:
        sizes: by kind: `absolute` (distance), `relative` (distance as a share of what is expected),
            or both, where the narrower one holds; or `at_least` alone (how far it may fall short;
            more is always right).
    """

    sizes: dict[str, float]

    @property
    def is_bound(self) -> bool:
        """Whether what is expected is a lower bound."""
        return BOUND in self.sizes

    def verdict(
        self, expected: float, measured: float, interval: tuple[float, float] = (math.nan, math.nan)
    ) -> str:
        """`yes`, `no` or `not shown`; rounding errors aside.

        A distance is that of `measured` itself. A lower bound is met or missed by the whole 95 %
        `interval` where there is one (no NaN); one that holds the bound shows neither.
        """
        if not self.is_bound:
            scales = {"absolute": 1.0, "relative": abs(expected)}
            allowed = min(size * scales[kind] for kind, size in self.sizes.items())
            return YES if abs(expected - measured) <= allowed + ROUNDING else NO
        low, high = (measured, measured) if any(map(math.isnan, interval)) else interval
        bound = expected - self.sizes[BOUND] - ROUNDING
        return YES if low >= bound else NO if high < bound else NOT_SHOWN


@dataclass(frozen=True)
class Claim:
    """One folder of experiments/.

    Attributes:
        folder: where it lies; its name is the claim's.
        title: the claim in a sentence.
        paper: whose claim it is, and where it stands there.
        table: what of a run makes its lines, one of `TABLES`.
        runs: the runs its numbers come from, with settings that a run's files do not hold.
        commands: how to make a run, by its name; runs of other claims have theirs there.
        target: whose expectations are held against; those for other targets stand beside.
        tolerance: of that target's expectations, by quantity.
        expected: lines of expected.csv.
        measured: lines of measured.csv, none if nothing was measured.
        provenance: of each run that measured.csv names.
    """

    folder: Path
    title: str
    paper: str
    table: str
    runs: dict[str, dict[str, Any]]
    commands: dict[str, str]
    target: str | None
    tolerance: dict[str, Tolerance]
    expected: pd.DataFrame
    measured: pd.DataFrame
    provenance: dict[str, dict[str, Any]]

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.folder.name

    @property
    def quantities(self) -> list[str]:
        """What the claim is about, in the order of expected.csv; τ is one, however averaged."""
        columns = [str(column) for column in self.expected if column in QUANTITIES]
        return [key for key in columns if key != "tau_micro" or "tau" not in columns]

    def tolerance_of(self, quantity: str, target: Any) -> Tolerance | None:
        """The tolerance that an expectation for `target` is held with, if it is held."""
        return self.tolerance.get(quantity) if target == self.target else None


def claims_folder(path: str | Path | None = None) -> Path:
    """The folder of claims: `path`, or experiments/ of the checkout the package runs from.

    Raises:
        UserError: there is no such folder, or no claim in it.
    """
    folder = CHECKOUT_CLAIMS if path is None else Path(path).expanduser()
    if not claim_names(folder):
        where = "experiments/ beside the package" if path is None else f"report.claims={path}"
        raise UserError(
            f"{where} holds no claim (a folder with a claim.yaml); report.claims=PATH names the "
            "folder of claims"
        )
    return folder


def claim_names(folder: Path) -> list[str]:
    """Names of the claims in `folder`, sorted."""
    return sorted(path.parent.name for path in folder.glob("*/claim.yaml"))


def load_claims(folder: Path) -> list[Claim]:
    """All claims of the folder of claims, by name; raises like `load_claim`."""
    return [load_claim(folder, name) for name in claim_names(folder)]


def load_claim(folder: Path, name: str) -> Claim:
    """The claim `name` of the folder of claims.

    Raises:
        UserError: there is no such claim (those there are are listed, with the nearest match), or
            a file of it is malformed; names the file and what is wrong in it.
    """
    place = folder / choose(name, claim_names(folder), "claim")
    described = _read_description(place / "claim.yaml")
    tolerance = {
        key: _tolerance(value, f"tolerance.{key} of {place / 'claim.yaml'}")
        for key, value in described.pop("tolerance").items()
    }
    measured = place / "measured.csv"
    claim = Claim(
        **described,
        folder=place,
        tolerance=tolerance,
        expected=_read(place / "expected.csv", EXPECTED_COLUMNS, first="source"),
        measured=_read(measured, MEASURED_COLUMNS, first="run")
        if measured.is_file()
        else with_settings(pd.DataFrame(columns=["run"])),
        provenance=read_json(place / "provenance.json"),
    )
    if not claim.quantities or claim.expected.empty:
        raise UserError(
            f"{place / 'expected.csv'} must have a line per setting to be measured, and a column "
            f"for a quantity: {', '.join(QUANTITIES)}"
        )
    for quantity in tolerance:
        choose(quantity, claim.quantities, f"quantity in the tolerance of {place / 'claim.yaml'}")
    for run in claim.measured["run"].unique():
        choose(run, claim.provenance, f"run of {measured} in {place / 'provenance.json'}")
    return claim


def with_settings(frame: pd.DataFrame) -> pd.DataFrame:
    """`frame` with every setting as a column, missing ones empty."""
    return frame.assign(**{name: float("nan") for name in SETTINGS if name not in frame})


def _read_description(path: Path) -> dict[str, Any]:
    """claim.yaml with every key of `KEYS`."""
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise UserError(f"{path} is no YAML: {' '.join(str(error).split())}") from error
    found = found if isinstance(found, dict) else {}
    for key, value in found.items():
        choose(str(key), KEYS, f"key of {path}")
        if not isinstance(value, KEYS[key]):
            raise UserError(f"{path}: {key} is {value!r}; it must be a {KEYS[key].__name__}")
    if missing := {"title", "paper", "runs"} - set(found):
        raise UserError(f"{path} lacks {', '.join(sorted(missing))}")
    rest = {"table": TABLES[0], "commands": {}, "target": None, "tolerance": {}, **found}
    choose(rest["table"], TABLES, f"table of {path}")
    rest["paper"] = " ".join(rest["paper"].split())
    rest["runs"] = {run: _run_settings(path, run, value) for run, value in rest["runs"].items()}
    rest["commands"] = {run: str(text).rstrip() for run, text in rest["commands"].items()}
    return rest


def _run_settings(path: Path, run: str, settings: Any) -> dict[str, Any]:
    settings = settings or {}
    for name, value in settings.items():
        choose(name, SETTINGS, f"setting of runs.{run} in {path}")
        if name not in TEXT and not isinstance(value, int | float):
            raise UserError(f"{path}: runs.{run}.{name} is {value!r}; it must be a number")
    return dict(settings)


def _tolerance(sizes: Any, what: str) -> Tolerance:
    kinds = ("absolute", "relative", BOUND)
    if not isinstance(sizes, dict) or not sizes or (BOUND in sizes and len(sizes) > 1):
        raise UserError(f"{what} is {sizes}; give {', '.join(kinds[:2])} or both, or {BOUND} alone")
    for kind, size in sizes.items():
        choose(str(kind), kinds, f"kind of {what}")
        if isinstance(size, bool) or not isinstance(size, int | float) or not 0 <= size < math.inf:
            raise UserError(f"{what} is {sizes}; {kind} must be a number, 0 or more")
    return Tolerance({str(kind): float(size) for kind, size in sizes.items()})


def _read(path: Path, allowed: Collection[str], first: str) -> pd.DataFrame:
    """A table with every setting as a column; numbers as numbers, empty cells as NaN."""
    if not path.is_file():
        raise UserError(f"{path} is missing")
    try:
        frame = pd.read_csv(path, dtype=str, keep_default_na=False, encoding="utf-8")
    except ValueError as error:  # pandas' parser and empty-file errors, and undecodable bytes
        raise UserError(f"{path} is no CSV table: {str(error).strip()}") from error
    if first not in frame or not isinstance(frame.index, pd.RangeIndex):
        raise UserError(f"{path} must have a column '{first}', and no line longer than its header")
    for column in frame:
        choose(str(column), allowed, f"column of {path}")
        cells = frame[column].str.strip()
        frame[column] = cells.mask(cells == "")
        if column not in (first, *TEXT):
            try:
                frame[column] = pd.to_numeric(frame[column])
            except ValueError as error:
                raise UserError(f"{path}, column {column}: {error}") from error
    return with_settings(frame)
