"""How far measured may lie from expected: a claim's tolerance.yaml, and the verdict on a number.

target: SmolLM2-135M-Instruct                   whose expectations are held
tau: {at_least: 0}                              what is expected is a lower bound
acceptance: {absolute: 0.03, relative: 0.25}    within both distances
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from eagle_lab.errors import UserError, choose

YES, NO, NOT_SHOWN = "yes", "no", "not shown"
"""Whether a number is within its tolerance; not shown where an interval holds the bound."""
BOUND = "at_least"
DISTANCES = ("absolute", "relative")
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


def read_tolerances(path: Path) -> tuple[str | None, dict[str, Tolerance]]:
    """The target whose expectations are held, and the tolerance of each quantity; or neither.

    Raises:
        UserError: a malformed file; names what is wrong and what is allowed.
    """
    if not path.is_file():
        return None, {}
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise UserError(f"{path} is no YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, Mapping) or not isinstance(content.get("target"), str):
        raise UserError(
            f"{path} must name the target whose expectations are held, `target: NAME`, and the "
            "tolerance of each quantity, as `tau: {relative: 0.1}`"
        )
    entries = {str(name): entry for name, entry in content.items() if name != "target"}
    tolerances = {name: _tolerance(path, name, entry) for name, entry in entries.items()}
    return content["target"], tolerances


def _tolerance(path: Path, name: str, entry: Any) -> Tolerance:
    if not isinstance(entry, Mapping) or not entry or (BOUND in entry and len(entry) > 1):
        raise UserError(
            f"{path}: {name} is {entry}; give its kind and size, as {{absolute: 0.05}}, and "
            f"{BOUND} alone"
        )
    for kind, size in entry.items():
        choose(str(kind), (*DISTANCES, BOUND), f"tolerance of {name} in {path}")
        if not isinstance(size, int | float) or isinstance(size, bool) or not 0 <= size < math.inf:
            raise UserError(f"{path}: {name}.{kind} is {size}; it must be a number, 0 or more")
    return Tolerance({str(kind): float(size) for kind, size in entry.items()})
