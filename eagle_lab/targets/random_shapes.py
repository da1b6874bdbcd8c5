"""Models of well-known shapes with random weights, made on the device they run on.

The cost of a pass does not depend on the values of the weights. So the cost of a model that does
not fit, or need not be fetched, is measured on one of its shape; of a deep one on a few layers, at
two depths whose difference is the cost of a layer.

    target = random_target("llama_8b", 32, device, torch.bfloat16)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from eagle_lab.targets.target import Target
from eagle_lab.targets.tiny import byte_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class Shape:
    """Dimensions of a model of the Llama family.

    Attributes:
        num_layers: of the whole model.
        measured_layers: depths it is built at: its own, or two smaller ones, from which the time of
            all layers follows.
        head_dim: width of a head; `num_heads` of them for queries, `num_kv_heads` for keys.
    """

    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    tied_head: bool = False
    measured_layers: tuple[int, ...] = ()

    @property
    def depths(self) -> tuple[int, ...]:
        """Numbers of layers that are measured, ascending: one, or two to extrapolate from."""
        return self.measured_layers or (self.num_layers,)

    def num_layer_weights(self) -> int:
        """Weights of one decoder layer, norms included."""
        heads = 2 * self.num_heads + 2 * self.num_kv_heads  # queries and output, keys and values
        attention = heads * self.head_dim * self.hidden_size
        return attention + 3 * self.intermediate_size * self.hidden_size + 2 * self.hidden_size

    def num_weights(self, num_layers: int) -> int:
        """Weights of the model at `num_layers`, embedding and head included."""
        tables = (1 if self.tied_head else 2) * self.vocab_size * self.hidden_size
        return tables + num_layers * self.num_layer_weights() + self.hidden_size

    def num_cached(self, num_layers: int) -> int:
        """Numbers that keys and values of one token take in the cache."""
        return 2 * num_layers * self.num_kv_heads * self.head_dim


SHAPES = {
    "llama_1b": Shape(16, 2048, 8192, 32, 8, 64, 128256, tied_head=True),  # Llama-3.2-1B
    "llama_8b": Shape(32, 4096, 14336, 32, 8, 128, 128256),  # Llama-3.1-8B
    "llama_70b": Shape(80, 8192, 28672, 64, 8, 128, 128256, measured_layers=(2, 6)),  # 3.1-70B
    "tiny": Shape(2, 64, 96, 4, 2, 16, 300),
    "tiny_deep": Shape(6, 64, 96, 4, 2, 16, 300, measured_layers=(1, 2)),
}
"""By name; the tiny ones are for tests and dry runs on a CPU."""

CONTEXT_LENGTH = 131072


def random_model(
    shape: Shape, num_layers: int, device: torch.device, dtype: torch.dtype
) -> PreTrainedModel:
    """A model of `shape` with `num_layers` random layers, made on `device`, never anywhere else."""
    from transformers import AutoModelForCausalLM, LlamaConfig

    config = LlamaConfig(
        num_hidden_layers=num_layers,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        vocab_size=shape.vocab_size,
        tie_word_embeddings=shape.tied_head,
        max_position_embeddings=CONTEXT_LENGTH,
    )
    with torch.device(device):
        return AutoModelForCausalLM.from_config(config, dtype=dtype)


def random_target(
    name: str, num_layers: int, device: torch.device, dtype: torch.dtype, attention: str = "auto"
) -> Target:
    """The target over `random_model` of `SHAPES[name]`; its tokenizer knows bytes only."""
    model = random_model(SHAPES[name], num_layers, device, dtype)
    return Target(model, byte_tokenizer(), name=name, attention=attention)
