"""Timings of passes as rows: cost curves, relative costs, shares of the machine's limits."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from eagle_lab.evaluation.ceilings import READ, Model

LOW, HIGH = 0.25, 0.75
"""Quantiles that `low_ms` and `high_ms` are: half of the measurements lie between them."""

CURVE_COLUMNS = (
    *("model_pass", "batch_size", "context", "num_tokens"),
    *("median_ms", "low_ms", "high_ms", "plain_median_ms"),
)
WORK_COLUMNS = (
    *("relative_cost", "plain_relative_cost", "gigabytes_per_second", "gigaflops"),
    *("read_share", "arithmetic_share"),
)
Row = dict[str, Any]


class Setting(NamedTuple):
    """One pass that is timed: `target`, `plain` (Hugging Face's layers) or `draft`."""

    model_pass: str
    batch_size: int
    context: int
    num_tokens: int


class Spread(NamedTuple):
    """Milliseconds of one pass: `low` and `high` are the quantiles `LOW` and `HIGH`."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Profile:
    """Timings of all rounds.

    Attributes:
        milliseconds: of each setting, one number per round.
        ceilings: the machine's limits, medians as the passes': bytes per second (`read`), flops
            per second by dtype.
        models: `target` and, with a drafter, `draft`.
        dtype: of the target, which names its arithmetic ceiling.
        extrapolated: what follows for settings that were not timed themselves.
    """

    milliseconds: dict[Setting, list[float]]
    ceilings: dict[str, float]
    models: dict[str, Model]
    dtype: str
    extrapolated: dict[Setting, Spread] = field(default_factory=dict)

    def spread(self, setting: Setting) -> Spread:
        """Median and quantiles of a setting."""
        if setting in self.extrapolated:
            return self.extrapolated[setting]
        low, median, high = np.quantile(self.milliseconds[setting], (LOW, 0.5, HIGH))
        return Spread(float(median), float(low), float(high))

    def rows(self) -> list[Row]:
        """One row per pass of the engine: `CURVE_COLUMNS` and `WORK_COLUMNS`."""
        known = {**self.milliseconds, **self.extrapolated}
        settings = [setting for setting in known if setting.model_pass in self.models]
        return [self._row(setting) for setting in sorted(settings, key=_in_order)]

    def _row(self, setting: Setting) -> Row:
        median, low, high = self.spread(setting)
        plain = self._median(setting._replace(model_pass="plain"), setting)
        plain_one = self._median(setting._replace(model_pass="plain", num_tokens=1), setting)
        model, sizes = self.models[setting.model_pass], setting[1:]
        per_second = 1000 / median
        read, flops = model.read_bytes(*sizes) * per_second, model.flops(*sizes) * per_second
        return {
            **setting._asdict(),
            "median_ms": median,
            "low_ms": low,
            "high_ms": high,
            "plain_median_ms": plain,
            "relative_cost": median / self.spread(_one_token(setting)).median,
            "plain_relative_cost": plain / plain_one if plain and plain_one else None,
            "gigabytes_per_second": read / 1e9,
            "gigaflops": flops / 1e9,
            "read_share": read / self.ceilings[READ],
            "arithmetic_share": flops / self.ceilings[self.dtype],
        }

    def _median(self, plain: Setting, setting: Setting) -> float | None:
        """Hugging Face's median for a target's pass, if it was timed; a drafter has none."""
        if setting.model_pass != "target" or plain not in self.milliseconds:
            return None
        return self.spread(plain).median


def _one_token(setting: Setting) -> Setting:
    return setting._replace(num_tokens=1)


def _in_order(setting: Setting) -> tuple[Any, ...]:
    """The target's passes first, then by size."""
    return (setting.model_pass != "target", *setting[1:])
