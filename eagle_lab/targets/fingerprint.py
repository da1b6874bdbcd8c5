"""Which weights a model has, and everything that a stored number depends on.

`fingerprint_of` is a short hash that tells targets of the same shape apart. A `Fingerprint` is a
set of named parts (a feature store's: target, layers, template, ...) with one digest and readable
differences.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from eagle_lab.errors import UserError


@dataclass(frozen=True)
class Fingerprint:
    """Named parts (JSON values) that together decide every stored number.

    Parts of a feature store: `target`, `layers`, `norm_state`, `chat_template`, `dtype`, `data`.
    """

    parts: Mapping[str, Any]

    @property
    def digest(self) -> str:
        """SHA-256 over all parts, 64 hexadecimal digits."""
        return hashlib.sha256(json.dumps(self.parts, sort_keys=True).encode()).hexdigest()

    def check_equal(self, other: Mapping[str, Any], what: str) -> None:
        """UserError naming the parts in which `other` differs, nested ones by dotted name."""
        ours, theirs = _flatten(self.parts), _flatten(other)
        differences = [
            f"{key} is {theirs.get(key)!r} there and {ours.get(key)!r} here"
            for key in sorted(ours.keys() | theirs.keys())
            if ours.get(key) != theirs.get(key)
        ]
        if differences:
            raise UserError(
                f"{what} was made with other settings: {'; '.join(differences)}; "
                "choose another output_dir, or overwrite=true"
            )


def _flatten(parts: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in parts.items():
        if isinstance(value, Mapping):
            flat |= _flatten(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = json.loads(json.dumps(value))
    return flat


_SHAPE_KEYS = (
    *("model_type", "hidden_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "intermediate_size", "vocab_size", "rope_parameters"),
    "sliding_window",
)
_SAMPLES = 256  # of each weight


def fingerprint_of(model: nn.Module, config: Any) -> str:
    """Hash of the architecture and of a sample of every weight, 16 hex digits.

    Samples are compared in bfloat16, so the precision a model is loaded in does not matter.
    """
    digest = hashlib.sha256()
    shape = {key: getattr(config, key, None) for key in _SHAPE_KEYS}
    digest.update(json.dumps(shape, sort_keys=True, default=str).encode())
    for name, weight in sorted(model.named_parameters()):
        flat = weight.detach().flatten()
        sample = flat[:: max(1, flat.numel() // _SAMPLES)].to("cpu", torch.bfloat16)
        digest.update(name.encode() + sample.view(torch.int16).numpy().tobytes())
    return digest.hexdigest()[:16]
