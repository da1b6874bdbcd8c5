"""What a drafter is tested with: a target reduced to what it needs, and plain causal attention."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from eagle_lab.drafters.eagle1.network import Eagle1, Eagle1Settings


class FakeTarget:
    """Fingerprint, random embedding and head of a Llama-like target: 16 hidden units, 12 tokens."""

    def __init__(self, *, hidden_size: int = 16, vocab_size: int = 12, **changes: Any) -> None:
        generator = torch.Generator().manual_seed(0)
        self.name = "fake"
        self.fingerprint = "fake-0"
        self.hidden_size = hidden_size
        self.vocab_size = vocab_size
        self.device, self.dtype = torch.device("cpu"), torch.float32
        self.embedding = nn.Embedding(vocab_size, hidden_size).requires_grad_(False)
        self.embedding.weight.copy_(torch.randn(vocab_size, hidden_size, generator=generator))
        self.head_weight = torch.randn(vocab_size, hidden_size, generator=generator)
        self.head_bias = torch.randn(vocab_size, generator=generator)
        self.softcap: float | None = None
        self.config = SimpleNamespace(
            hidden_size=hidden_size,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=8,  # 4 heads of 8 are not the hidden size, as in Qwen3
            intermediate_size=24,
            hidden_act="silu",
            rms_norm_eps=1e-5,
            max_position_embeddings=64,
            rope_parameters={"rope_type": "default", "rope_theta": 5e6},
        )
        for name, value in changes.items():
            setattr(self, name, value)

    def scale_logits(self, logits: Tensor) -> Tensor:
        return logits if self.softcap is None else self.softcap * torch.tanh(logits / self.softcap)

    def head(self, hidden: Tensor) -> Tensor:
        hidden = hidden.to(self.head_weight.dtype)
        return self.scale_logits(hidden @ self.head_weight.T + self.head_bias)


def causal_attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attention over this call's own columns, no cache: an `Attend` to compare others with."""
    return nn.functional.scaled_dot_product_attention(
        query, key, value, is_causal=True, enable_gqa=True
    )


def eagle1(target: Any, kept: Tensor | None = None, *, seed: int = 0, **changes: Any) -> Eagle1:
    """An untrained drafter in the paper's plain form but for `changes`, attached, to draft with."""
    plain: dict[str, Any] = {"inner_norm": False, "draft_vocab_size": None, "fc_bias": False}
    if kept is not None:
        plain["draft_vocab_size"] = len(kept)
    settings = Eagle1Settings(**{**plain, "intermediate_size": None, **changes})
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Eagle1.from_target(target, settings, kept).eval()
