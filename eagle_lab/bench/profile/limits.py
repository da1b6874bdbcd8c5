"""Timings of passes as rows: cost curves, relative costs, shares of the machine's limits.

A pass that is bound by memory cannot be faster than its weights can be read, one bound by
arithmetic not faster than its products can be computed. Both limits are measured, in the same run
as the passes: reading a block far larger than any cache, and a square matrix product, of noise,
for a GPU is faster with equal numbers, which switch fewer of its transistors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from eagle_lab.drafters.base import AttentionShape, Drafter
from eagle_lab.targets.target import Target

Probe = Callable[[], object]
READ = "read"
_READ_BYTES = {"cpu": 2**28, "cuda": 2**31}
_MATRIX_SIZE = {"cpu": 1024, "cuda": 8192}
_NOISE = 2**20


def probes(device: torch.device, dtype: torch.dtype) -> dict[str, tuple[Probe, float]]:
    """What is run to find the limits, with its amount of bytes (`read`) or flops (a dtype's name).

    Products are measured in float32, bfloat16 and `dtype`, the target's own.
    """
    num_bytes, size = _READ_BYTES[device.type], _MATRIX_SIZE[device.type]
    noise = torch.randn(_NOISE, device=device)
    block = noise.repeat(num_bytes // 4 // _NOISE)
    found: dict[str, tuple[Probe, float]] = {READ: (block.max, float(num_bytes))}
    for precision in dict.fromkeys((torch.float32, torch.bfloat16, dtype)):
        matrix = torch.randn(size, size, device=device).to(precision)
        found[dtype_name(precision)] = (partial(torch.matmul, matrix, matrix), 2.0 * size**3)
    return found


def dtype_name(dtype: torch.dtype) -> str:
    """`float32` for torch.float32."""
    return str(dtype).removeprefix("torch.")


@dataclass(frozen=True)
class Model:
    """What the work of a model's passes depends on.

    Attributes:
        num_weights: that every token is multiplied with; an embedding is a look-up and not counted.
        num_layers, num_heads, num_kv_heads, head_dim: of its attention.
        bytes_per_number: of weights and cache.
    """

    num_weights: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    bytes_per_number: int

    @classmethod
    def of_target(cls, target: Target) -> Model:
        """A dense target; of a mixture of experts all experts would be counted."""
        embedding = _count(target.embedding)
        num_weights = _count(target.model.get_decoder()) - embedding + target.head_weight.numel()
        return cls(num_weights, *attention_of(target), target.dtype.itemsize)

    @classmethod
    def of_drafter(cls, drafter: Drafter) -> Model:
        """A drafter with its head over the draft vocabulary."""
        return cls(drafter.num_weights, *drafter.attention, drafter.dtype.itemsize)

    def read_bytes(self, batch_size: int, context: int, num_tokens: int) -> float:
        """Bytes that a pass reads at least: weights once, and each row's keys and values once."""
        slots = batch_size * (context + num_tokens)
        cached = 2 * self.num_layers * self.num_kv_heads * self.head_dim * slots
        return float(self.bytes_per_number * (self.num_weights + cached))

    def flops(self, batch_size: int, context: int, num_tokens: int) -> float:
        """Multiplications and additions of a pass's matrix products, attention included."""
        scored = self.num_layers * self.num_heads * self.head_dim * (context + num_tokens)
        return float(batch_size * num_tokens * (2 * self.num_weights + 4 * scored))


def _count(module: nn.Module) -> int:
    return sum(weight.numel() for weight in module.parameters())


def attention_of(target: Target) -> AttentionShape:
    """Layers of a target's attention."""
    config = target.config
    heads = config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    num_kv_heads = getattr(config, "num_key_value_heads", None) or heads
    return AttentionShape(target.num_layers, heads, num_kv_heads, width)


LOW, HIGH = 0.25, 0.75
"""Quantiles that `low_ms` and `high_ms` are: half of the measurements lie between them."""

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
        """One row per pass of the engine: those of cost_curves.csv, and the work."""
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
