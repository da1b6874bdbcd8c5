"""What passes over a model of a given shape cost, one batch size and context at a time.

The weights are random and made on the device. A deep shape is measured at two depths j < k: every
layer costs the same, so L layers take T(k) + (L - k) (T(k) - T(j)) / (k - j), head and all else
that depth does not change included once. What will not fit the memory is told before it is tried.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from eagle_lab.drafters.eagle1 import Eagle1, Eagle1Config
from eagle_lab.errors import Infeasible
from eagle_lab.evaluation.memory import free_bytes
from eagle_lab.evaluation.noise_passes import NoiseProfiler
from eagle_lab.evaluation.pass_costs import Profile
from eagle_lab.evaluation.profiling import ProfileSettings
from eagle_lab.models.graphs import Recorder, slot_bucket
from eagle_lab.models.shapes import SHAPES, random_target
from eagle_lab.models.target import Target
from eagle_lab.models.verify_graphs import VerifyGraphs

_SHARE_OF_FREE = 0.9  # the rest goes into pieces too small to use


@dataclass
class ShapeCosts:
    """Cost curves of the shape `name`: its target at one or two depths, and an EAGLE-1 drafter.

    Attributes:
        name: a key of `SHAPES`.
        device, dtype: where and in what it is made.
        num_tokens: columns of the passes, 1 among them.
        repeats: rounds that count.
        drafter: switches of the drafter, see `Eagle1Config.from_target`.
        attention: see `Target`.
        new_recorder: makes what records CUDA graphs; None launches every kernel.
    """

    name: str
    device: torch.device
    dtype: torch.dtype
    num_tokens: Sequence[int]
    repeats: int = 5
    seed: int = 0
    drafter: Mapping[str, Any] = field(default_factory=dict)
    attention: str = "auto"
    new_recorder: Callable[[], Recorder] | None = None

    def __post_init__(self) -> None:
        self._shape = SHAPES[self.name]
        self._models: tuple[list[Target], Eagle1] | None = None

    @torch.no_grad()
    def measure(self, batch_size: int, context: int) -> Profile:
        """Time all passes behind `context` tokens.

        Raises:
            Infeasible: weights, cache and results do not fit the memory that is free.
        """
        self._check_memory(batch_size, context)
        settings = ProfileSettings(
            [batch_size], [context], list(self.num_tokens), self.repeats, self.seed
        )
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
        finally:
            if self.device.type == "cuda":
                torch.cuda.empty_cache()
        if len(profiles) == 1:
            return profiles[0]
        shallow, deep = profiles
        return extrapolated(shallow, deep, self._shape.depths, self._shape.num_layers)

    def needed_bytes(self, batch_size: int, context: int) -> int:
        """Memory of the largest pass beside the weights: cache, logits, inner states, mask.

        The cache counts twice where graphs are recorded, which move it to a place of its own.
        """
        shape, size = self._shape, self.dtype.itemsize
        columns = batch_size * max(self.num_tokens)
        slots = slot_bucket(context + max(self.num_tokens))
        cached = batch_size * slots * shape.num_cached(shape.depths[-1] + 1)  # and the drafter's
        copies = 1 if self.new_recorder is None else 2.5
        logits = columns * shape.vocab_size * (2 * size + 4)  # and the drafter's in float32
        inner = columns * (3 * shape.intermediate_size + 6 * shape.hidden_size)
        mask = columns * shape.num_heads // shape.num_kv_heads * slots * (1 + size)
        return int(cached * copies * size + logits + inner * size + mask)

    def weight_bytes(self) -> int:
        """Memory of the targets' and the drafter's weights."""
        shape = self._shape
        drafter = shape.num_layer_weights() + 2 * shape.hidden_size**2
        head = (self.drafter.get("draft_vocab_size") or 0) * shape.hidden_size
        targets = sum(map(shape.num_weights, shape.depths))
        return (targets + drafter + head) * self.dtype.itemsize

    def _check_memory(self, batch_size: int, context: int) -> None:
        needed = self.needed_bytes(batch_size, context)
        if self._models is None:
            needed += self.weight_bytes()
        free = free_bytes(self.device)
        if needed > _SHARE_OF_FREE * free:
            raise Infeasible(f"needs about {needed / 1e9:.1f} GB; {free / 1e9:.1f} GB are free")

    def _build(self) -> tuple[list[Target], Eagle1]:
        torch.manual_seed(self.seed)
        targets = [
            random_target(self.name, depth, self.device, self.dtype, self.attention)
            for depth in self._shape.depths
        ]
        config = Eagle1Config.from_target(targets[-1], **self.drafter)
        with torch.device(self.device):
            drafter = Eagle1(config)
        drafter.to(self.dtype).requires_grad_(False).eval().attach(targets[-1])
        self._models = targets, drafter
        return self._models

    def _profile(
        self, target: Target, drafter: Eagle1 | None, settings: ProfileSettings
    ) -> Profile:
        target.graphs = (
            None if self.new_recorder is None else VerifyGraphs(target, self.new_recorder())
        )
        try:
            return NoiseProfiler(target, drafter, settings).run()
        finally:
            target.graphs = None


def extrapolated(
    shallow: Profile, deep: Profile, depths: Sequence[int], num_layers: int
) -> Profile:
    """The profile of `num_layers` layers from those of models with `depths` of them.

    Round by round; the drafter's passes are those of `deep`.
    """
    fewer, more = depths
    times = (num_layers - more) / (more - fewer)  # the step between both, as often as it takes

    def beyond(less: float, much: float) -> float:
        return much + times * max(much - less, 0.0)

    milliseconds = {
        setting: (
            list(map(beyond, shallow.milliseconds[setting], rounds))
            if setting.model_pass == "target"
            else rounds
        )
        for setting, rounds in deep.milliseconds.items()
    }
    less, much = shallow.models["target"], deep.models["target"]
    num_weights = round(beyond(less.num_weights, much.num_weights))
    target = replace(much, num_weights=num_weights, num_layers=num_layers)
    ceilings = {name: max(value, shallow.ceilings[name]) for name, value in deep.ceilings.items()}
    return replace(
        deep,
        milliseconds=milliseconds,
        ceilings=ceilings,
        models={**deep.models, "target": target},
    )
