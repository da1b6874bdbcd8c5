"""The features that a target hands out, by name, and the layers that EAGLE-3 fuses.

top      the state after the final norm, the one that enters the LM head (EAGLE-1)
fused    `hidden_states[i]`, the un-normed inputs of some layers, concatenated (EAGLE-3)
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator, Sequence

from torch import Tensor, nn

from eagle_lab.errors import UserError, choose

TOP, FUSED = "top", "fused"
NAMES = (TOP, FUSED)


def check_names(names: Iterable[str], key: str) -> tuple[str, ...]:
    """`names` once each, in the order of `NAMES`; UserError about `key` for any other."""
    chosen = {choose(name, NAMES, key) for name in names}
    return tuple(name for name in NAMES if name in chosen)


def check_feature_layers(layers: Sequence[int], num_layers: int) -> tuple[int, ...]:
    """`layers` as a tuple.

    Raises:
        UserError: unless they are strictly increasing within 1 ... num_layers - 1.
    """
    increasing = all(a < b for a, b in itertools.pairwise(layers))
    if not layers or not increasing or layers[0] < 1 or layers[-1] > num_layers - 1:
        raise UserError(
            f"feature layers {list(layers)} must be strictly increasing within "
            f"1 ... {num_layers - 1} for a target of {num_layers} layers; name them explicitly"
        )
    return tuple(layers)


def default_feature_layers(num_layers: int) -> tuple[int, ...]:
    """EAGLE-3's rule (2, L // 2, L - 3), checked (2503.01840, reference implementation).

    Raises:
        UserError: for 2, 3, 5 or 6 layers, where the rule is not strictly increasing.
    """
    return check_feature_layers((2, num_layers // 2, num_layers - 3), num_layers)


@contextlib.contextmanager
def captured_inputs(layers: nn.ModuleList, ids: Sequence[int]) -> Iterator[list[Tensor]]:
    """The states that enter `layers[i]` for each of `ids`, collected while the model runs."""
    captured: list[Tensor] = []

    def capture(_module: nn.Module, args: tuple, kwargs: dict) -> None:
        captured.append(args[0] if args else kwargs["hidden_states"])

    handles = [layers[i].register_forward_pre_hook(capture, with_kwargs=True) for i in ids]
    try:
        yield captured
    finally:
        for handle in handles:
            handle.remove()
