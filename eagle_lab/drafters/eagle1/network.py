"""The EAGLE-1 drafter (arXiv 2401.15077): one decoder layer over features and next tokens.

    x_i     = fc([E(t_{i+1}) ; f_i])              embedding first
    f̂_{i+1} = layer(x_1 .. x_i)                   own attention, position i
    p̂_{i+2} = softmax(head(f̂_{i+1}))              the target's own frozen head

Row i of a call holds the feature f_i and the token t_{i+1} that follows it; its output, un-normed,
stands in for the feature of t_{i+1}, and its logits are a distribution of t_{i+2}.

The paper's plain form has no norm before attention and none after the layer. Switches:
`inner_norm` puts an RMSNorm before attention (the residual stays un-normed), `draft_vocab_size`
restricts the head to the target's rows of the kept tokens, `fc_bias` gives fc a bias.

On a CPU in float32 a pass is fc, then the whole layer in one kernel call (`FastEagle1`).

Shapes: B rows, N columns, H hidden width.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from eagle_lab.drafters import blocks
from eagle_lab.drafters.base import AttentionShape, CacheAttend, Drafter, DrafterConfig
from eagle_lab.targets.cpu.ops import fits, kernels, multiply, pack
from eagle_lab.targets.cpu.patch import FastForward, LayerCall


@dataclass(frozen=True, kw_only=True)
class Eagle1Config(DrafterConfig):
    """Dimensions and switches of an EAGLE-1 drafter."""

    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    hidden_act: str
    rms_norm_eps: float
    max_position_embeddings: int
    rope_parameters: dict[str, Any]
    inner_norm: bool = False
    fc_bias: bool = False


@dataclass
class Eagle1Settings:
    """Keys of conf/drafter/eagle1.yaml that describe a new drafter, explained there."""

    inner_norm: bool
    draft_vocab_size: int | None
    fc_bias: bool
    intermediate_size: int | None


class Eagle1(Drafter):
    """The network."""

    kind = "eagle1"
    Config = Eagle1Config
    Settings = Eagle1Settings
    recipe = "eagle_lab.drafters.eagle1.recipe.Eagle1Recipe"

    def __init__(self, config: Eagle1Config, kept: Tensor | None = None) -> None:
        """See `Drafter`."""
        super().__init__(config, kept)
        self.fc = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=config.fc_bias)
        self.layers = nn.ModuleList([_decoder_layer(config)])
        self.rotary = blocks.Rotary(
            head_dim=config.head_dim,
            max_position_embeddings=config.max_position_embeddings,
            rope_parameters=config.rope_parameters,
        )

    @classmethod
    def config_for(cls, target: Any, settings: Eagle1Settings) -> Eagle1Config:
        """The target's own dimensions. A draft vocabulary of the target's size means none."""
        config, size = target.config, settings.draft_vocab_size
        num_heads = config.num_attention_heads
        return Eagle1Config(
            hidden_size=target.hidden_size,
            num_attention_heads=num_heads,
            num_key_value_heads=getattr(config, "num_key_value_heads", None) or num_heads,
            head_dim=getattr(config, "head_dim", None) or target.hidden_size // num_heads,
            intermediate_size=settings.intermediate_size or config.intermediate_size,
            hidden_act=getattr(config, "hidden_act", None) or config.hidden_activation,
            rms_norm_eps=getattr(config, "rms_norm_eps", 1e-6),
            vocab_size=target.vocab_size,
            max_position_embeddings=config.max_position_embeddings,
            rope_parameters=blocks.full_attention_rope(config),
            inner_norm=settings.inner_norm,
            draft_vocab_size=None if size is None or size >= target.vocab_size else size,
            fc_bias=settings.fc_bias,
        )

    def encode(self, features: Mapping[str, Tensor]) -> Tensor:
        """The feature itself."""
        return features["top"]

    def forward(
        self,
        tokens: Tensor,
        states: Tensor,
        positions: Tensor,
        attend: blocks.Attend,
        columns: Tensor | None = None,
    ) -> Tensor:
        """See `Drafter`: (t_{i+1}, f_i) -> f̂_{i+1}."""
        assert self.attached is not None, "attach(target) comes first"
        states = states.to(self.fc.weight.dtype)
        embedded = self.attached.embedding(tokens).to(states.dtype)  # [B, N, H]
        hidden = self.fc(torch.cat((embedded, states), dim=-1))
        rotary = self.rotary(hidden, positions)
        return self.layers[0](hidden, rotary, attend, columns)

    def logits(self, states: Tensor) -> Tensor:
        """See `Drafter`: the target's head over f̂."""
        return self.target_logits(states)

    @property
    def attention(self) -> AttentionShape:
        """Its one layer."""
        own = self.config
        return AttentionShape(1, own.num_attention_heads, own.num_key_value_heads, own.head_dim)

    @property
    def description(self) -> str:
        """For the model card."""
        own = self.config
        return (
            f"EAGLE-1 (arXiv 2401.15077): one decoder layer of width {own.hidden_size} over the "
            "target's last state and the next token's embedding, "
            f"{'with' if own.inner_norm else 'without'} a norm before attention; embedding and "
            f"head are the target's, the head over {self.draft_vocab_size} of its "
            f"{own.vocab_size} tokens."
        )

    def use_fast_form(self) -> None:
        """See `Drafter`; passes that the kernels do not take run layer by layer.

        Weights that are bfloat16 numbers are read from packed copies, made once: whoever changes
        weights afterwards makes a drafter anew.
        """
        super().use_fast_form()
        linears = [module for module in self.modules() if isinstance(module, nn.Linear)]
        if (
            "forward" not in self.__dict__
            and self.config.hidden_act == "silu"
            and self.config.head_dim % kernels().LANES == 0
            and all(fits(layer.weight) for layer in linears)
        ):
            self.__dict__["forward"] = FastEagle1(self)


class FastEagle1(FastForward):
    """`Eagle1.forward` with its layer in one call."""

    def __init__(self, drafter: Eagle1):
        self._drafter = drafter
        self._scaling = drafter.config.head_dim**-0.5
        weight = drafter.fc.weight
        self._fc = weight if (packed := pack(weight, kernels().LANES)) is None else packed
        self._layer = LayerCall(drafter.layers[0], drafter.config.rms_norm_eps, packed=True)

    def __call__(
        self,
        tokens: Tensor,
        states: Tensor,
        positions: Tensor,
        attend: blocks.Attend,
        columns: Tensor | None = None,
    ) -> Tensor:
        """See `Eagle1.forward`."""
        drafter = self._drafter
        angles = drafter.rotary(states, positions)
        if not (
            columns is None
            and isinstance(attend, CacheAttend)
            and self._layer.takes(states, angles, attend.tree_pass)
        ):
            return Eagle1.forward(drafter, tokens, states, positions, attend, columns)
        assert drafter.attached is not None, "attach(target) comes first"
        embedded = drafter.attached.embedding(tokens)  # [B, N, H]
        [hidden] = multiply(torch.cat((embedded, states), dim=-1), [self._fc])
        if drafter.fc.bias is not None:
            hidden = hidden + drafter.fc.bias
        return self._layer(hidden, angles, attend.tree_pass, 0, self._scaling)


def _decoder_layer(config: Eagle1Config) -> blocks.DecoderLayer:
    def norm() -> blocks.RMSNorm:
        return blocks.RMSNorm(config.hidden_size, eps=config.rms_norm_eps)

    return blocks.DecoderLayer(
        input_norm=norm() if config.inner_norm else None,
        attention=blocks.Attention(
            input_size=config.hidden_size,
            hidden_size=config.hidden_size,
            num_heads=config.num_attention_heads,
            num_kv_heads=config.num_key_value_heads,
            head_dim=config.head_dim,
        ),
        mlp_norm=norm(),
        mlp=blocks.Mlp(
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            activation=config.hidden_act,
        ),
    )
