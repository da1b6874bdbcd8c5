"""What passes over a model of a given shape cost, one batch size and context at a time.

The weights are random and made on the device. A deep shape is measured at two depths j < k: every
layer costs the same, so L layers take T(k) + (L - k) (T(k) - T(j)) / (k - j), head and all else
that depth does not change included once. What will not fit the memory is told before it is tried.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from eagle_lab.bench.memory import free_bytes, give_back, total_bytes
from eagle_lab.bench.profile.limits import HIGH, LOW, Profile, Spread
from eagle_lab.bench.profile.passes import after_noise
from eagle_lab.bench.profile.profiler import Profiler
from eagle_lab.bench.profile.settings import PassSettings
from eagle_lab.drafters.base import Drafter
from eagle_lab.errors import Infeasible
from eagle_lab.targets.cuda.graphs import GraphCapture, VerifyGraphs, block_size, slot_bucket
from eagle_lab.targets.random_shapes import SHAPES, random_model, random_target
from eagle_lab.targets.target import Target

_SHARE_OF_FREE = 0.9  # the rest goes into pieces too small to use
_NUM_RESAMPLES = 2000


@dataclass
class ShapeCosts:
    """Cost curves of the shape `name`: its target at one or two depths, and a drafter.

    Attributes:
        name: a key of `SHAPES`.
        device, dtype: where and in what it is made.
        num_tokens: columns of the passes, 1 among them.
        repeats: rounds that count.
        new_drafter: makes a drafter with random weights for a target, see `Drafter.from_target`.
        attention: see `Target`.
        new_capture: makes what captures CUDA graphs; None launches every kernel.
    """

    name: str
    device: torch.device
    dtype: torch.dtype
    num_tokens: Sequence[int]
    new_drafter: Callable[[Any], Drafter]
    repeats: int = 5
    seed: int = 0
    attention: str = "auto"
    new_capture: Callable[[], GraphCapture] | None = None

    def __post_init__(self) -> None:
        self._shape = SHAPES[self.name]
        self._models: tuple[list[Target], Drafter] | None = None

    @torch.no_grad()
    def measure(self, batch_size: int, context: int) -> Profile:
        """Time all passes after `context` tokens.

        Raises:
            Infeasible: weights, cache and results do not fit the memory that is free.
        """
        give_back()
        self._check_memory(batch_size, context)
        settings = PassSettings([batch_size], [context], list(self.num_tokens), self.repeats)
        try:
            targets, drafter = self._models or self._build()
            profiles = [
                self._profile(target, drafter if target is targets[-1] else None, settings)
                for target in targets
            ]
        except torch.OutOfMemoryError:
            raise Infeasible(
                "the device ran out of memory, though an estimate said it fits"
            ) from None
        if len(profiles) == 1:
            return profiles[0]
        shallow, deep = profiles
        return extrapolated(shallow, deep, self._shape.depths, self._shape.num_layers)

    def needed_bytes(self, batch_size: int, context: int) -> int:
        """Memory of the largest pass beside the weights: cache, logits, inner states, mask."""
        return self._pass_bytes(batch_size, context, self._shape.depths[-1])

    def weight_bytes(self) -> int:
        """Memory of the targets' and the drafter's weights."""
        return self._weight_bytes(self._shape.depths)

    def whole_model_fits(self, batch_size: int, context: int) -> bool:
        """Whether the model with all its layers could decode there on this device.

        Of a deep shape only some layers are made, so its cost is known where it does not fit.
        """
        num_layers = self._shape.num_layers
        needed = self._weight_bytes([num_layers]) + self._pass_bytes(
            batch_size, context, num_layers
        )
        return needed <= _SHARE_OF_FREE * total_bytes(self.device)

    def _pass_bytes(self, batch_size: int, context: int, num_layers: int) -> int:
        """See `needed_bytes`.

        Graphs take a second place for the cache, and logits leave a graph by way of a buffer.
        """
        shape, size = self._shape, self.dtype.itemsize
        columns, num_slots = batch_size * max(self.num_tokens), context + max(self.num_tokens)
        slots = slot_bucket(num_slots)
        cached, copies = batch_size * slots, 2  # of the logits
        if self.new_capture is not None:
            rows, capacity = block_size(batch_size, num_slots)
            cached, copies = cached + rows * capacity, 2 * copies
        cached *= shape.num_cached(num_layers + 1)  # and the drafter's
        logits = columns * shape.vocab_size * (copies * size + 4)  # and the drafter's in float32
        inner = columns * (3 * shape.intermediate_size + 6 * shape.hidden_size)
        mask = columns * shape.num_heads // shape.num_kv_heads * slots * (1 + size)
        return cached * size + logits + inner * size + mask

    def _weight_bytes(self, depths: Sequence[int]) -> int:
        """Of targets with so many layers each, and of the drafter."""
        drafter = self._drafter_on_meta
        head = (drafter.config.draft_vocab_size or 0) * drafter.config.hidden_size
        own = sum(weight.numel() for weight in drafter.parameters())
        return (sum(map(self._shape.num_weights, depths)) + own + head) * self.dtype.itemsize

    @cached_property
    def _drafter_on_meta(self) -> Drafter:
        """The drafter without its weights, made for a target without any."""
        device = torch.device("meta")
        config = random_model(self._shape, 1, device, self.dtype).config
        target = SimpleNamespace(
            name=self.name, config=config, device=device, hidden_size=config.hidden_size,
            vocab_size=config.vocab_size, embedding=None, scale_logits=None,
        )  # fmt: skip
        with device:
            return self.new_drafter(target)

    def _check_memory(self, batch_size: int, context: int) -> None:
        needed = self.needed_bytes(batch_size, context)
        if self._models is None:
            needed += self.weight_bytes()
        free = free_bytes(self.device)
        if needed > _SHARE_OF_FREE * free:
            raise Infeasible(f"needs about {needed / 1e9:.1f} GB; {free / 1e9:.1f} GB are free")

    def _build(self) -> tuple[list[Target], Drafter]:
        torch.manual_seed(self.seed)
        targets = [
            random_target(self.name, depth, self.device, self.dtype, self.attention)
            for depth in self._shape.depths
        ]
        with torch.device(self.device):
            drafter = self.new_drafter(targets[-1])
        drafter.to(self.dtype).requires_grad_(False).eval()
        self._models = targets, drafter
        return self._models

    def _profile(self, target: Target, drafter: Drafter | None, settings: PassSettings) -> Profile:
        target.graphs = (
            None if self.new_capture is None else VerifyGraphs(target, self.new_capture())
        )
        try:
            return Profiler(target, drafter, settings, seed=self.seed, prepare=after_noise).run()
        finally:
            target.graphs = None
            give_back()  # graphs hold each other, and a block as large as the cache


def extrapolated(
    shallow: Profile, deep: Profile, depths: Sequence[int], num_layers: int
) -> Profile:
    """The profile of `num_layers` layers from those of models with `depths` of them.

    The target's medians lie on a straight line in the depth, and never below those of `deep`. Low
    and high are quantiles of what the line says after resampling the rounds of both depths. The
    drafter's passes and the machine's limits are those of `deep`.
    """
    fewer, more = depths
    times = (num_layers - more) / (more - fewer)  # the step between both, as often as it takes
    less, much = shallow.models["target"], deep.models["target"]
    num_weights = round(much.num_weights + times * (much.num_weights - less.num_weights))
    target = replace(much, num_weights=num_weights, num_layers=num_layers)
    of_target = {s: rounds for s, rounds in deep.milliseconds.items() if s.model_pass == "target"}
    return replace(
        deep,
        milliseconds={s: r for s, r in deep.milliseconds.items() if s not in of_target},
        extrapolated={
            setting: _beyond(shallow.milliseconds[setting], rounds, times)
            for setting, rounds in of_target.items()
        },
        models={**deep.models, "target": target},
    )


def _beyond(less: Sequence[float], much: Sequence[float], times: float) -> Spread:
    """`much` and `times` the step from `less` to it, each a number per round."""
    generator = np.random.default_rng(0)
    small, large = (
        np.median(generator.choice(rounds, (_NUM_RESAMPLES, len(rounds))), axis=1)
        for rounds in (less, much)
    )
    floor = float(np.median(much))
    median = floor + times * (floor - float(np.median(less)))
    low, high = np.quantile(large + times * (large - small), (LOW, HIGH))
    return Spread(
        *(max(floor, float(value)) for value in (median, min(low, median), max(high, median)))
    )
