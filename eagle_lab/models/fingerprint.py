"""Which weights a model has: a short hash that tells targets of the same shape apart."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import torch
from torch import nn

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
    described = {key: getattr(config, key, None) for key in _SHAPE_KEYS}
    digest.update(json.dumps(described, sort_keys=True, default=str).encode())
    for name, weight in sorted(model.named_parameters()):
        flat = weight.detach().flatten()
        sample = flat[:: max(1, flat.numel() // _SAMPLES)].to("cpu", torch.bfloat16)
        digest.update(name.encode() + sample.view(torch.int16).numpy().tobytes())
    return digest.hexdigest()[:16]
