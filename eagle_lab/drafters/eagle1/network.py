"""The EAGLE-1 drafter (arXiv 2401.15077): one decoder layer over features and next tokens.

    x_i     = fc([E(t_{i+1}) ; f_i])              embedding first
    f̂_{i+1} = layer(x_1 .. x_i)                   own attention, position i
    p̂_{i+2} = softmax(head(f̂_{i+1}))              the target's own frozen head

Row i of a call holds the feature f_i and the token t_{i+1} that follows it; its output stands in
for the feature of t_{i+1}, and its logits are a distribution of t_{i+2}.

The paper's plain form has no norm before attention and none after the layer. Switches:
`inner_norm` puts an RMSNorm before attention (the residual stays un-normed), `draft_vocab_size`
restricts the head to the target's rows of the kept tokens, `fc_bias` gives fc a bias.

Embedding and head belong to the target. They are attached, never copied into `state_dict`, never
trained.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from eagle_lab.drafters import blocks, vocabulary
from eagle_lab.drafters.attached import Attached
from eagle_lab.errors import UserError


@dataclass(frozen=True)
class Eagle1Config:
    """Dimensions and switches of an EAGLE-1 drafter; everything a folder needs to rebuild it."""

    hidden_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    hidden_act: str
    rms_norm_eps: float
    vocab_size: int
    max_position_embeddings: int
    rope_parameters: dict[str, Any]
    inner_norm: bool = False
    draft_vocab_size: int | None = None
    fc_bias: bool = False

    @classmethod
    def from_target(
        cls,
        target: Any,
        *,
        inner_norm: bool = False,
        draft_vocab_size: int | None = None,
        fc_bias: bool = False,
        intermediate_size: int | None = None,
    ) -> Eagle1Config:
        """The target's own dimensions. A draft vocabulary of the target's size means none."""
        config = target.config
        if target.feature_width != target.hidden_size:
            raise UserError(
                f"an eagle1 drafter takes the target's top feature (width {target.hidden_size}); "
                f"these features are {target.feature_width} wide (several captured layers)"
            )
        num_heads = config.num_attention_heads
        activation = getattr(config, "hidden_act", None) or config.hidden_activation
        if draft_vocab_size is not None and draft_vocab_size >= target.vocab_size:
            draft_vocab_size = None
        return cls(
            hidden_size=target.hidden_size,
            num_attention_heads=num_heads,
            num_key_value_heads=getattr(config, "num_key_value_heads", None) or num_heads,
            head_dim=getattr(config, "head_dim", None) or target.hidden_size // num_heads,
            intermediate_size=intermediate_size or config.intermediate_size,
            hidden_act=activation,
            rms_norm_eps=getattr(config, "rms_norm_eps", 1e-6),
            vocab_size=target.vocab_size,
            max_position_embeddings=config.max_position_embeddings,
            rope_parameters=blocks.full_attention_rope(config),
            inner_norm=inner_norm,
            draft_vocab_size=draft_vocab_size,
            fc_bias=fc_bias,
        )


class Eagle1(nn.Module):
    """The network. Call `attach(target)` before `forward` or `logits`."""

    d2t: Tensor | None

    def __init__(self, config: Eagle1Config, kept: Tensor | None = None) -> None:
        """`kept`: sorted target ids [D]; needed when a reduced vocabulary is configured, except
        where `load_state_dict` brings them.
        """
        super().__init__()
        self.config = config
        self.fc = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=config.fc_bias)
        self.layers = nn.ModuleList([_decoder_layer(config)])
        self.rotary = blocks.Rotary(
            head_dim=config.head_dim,
            max_position_embeddings=config.max_position_embeddings,
            rope_parameters=config.rope_parameters,
        )
        self.attached: Attached | None = None
        size = config.draft_vocab_size
        if size is None:
            if kept is not None:
                raise ValueError("kept ids given, but the configuration has the full vocabulary")
            self.register_buffer("d2t", None)
        else:
            kept = torch.arange(size) if kept is None else kept
            if len(kept) != size:
                raise ValueError(f"{len(kept)} kept ids for a draft vocabulary of {size}")
            self.register_buffer("d2t", vocabulary.to_offsets(kept))
        self.draft_to_target: Tensor | None = None
        self._refresh()
        self.register_load_state_dict_post_hook(_refresh_after_load)

    @property
    def card_paragraph(self) -> str:
        """What a model card says of the network."""
        own = self.config
        kept = f"{own.draft_vocab_size:,} of" if own.draft_vocab_size else "all"
        return (
            f"EAGLE-1 (arXiv 2401.15077): one decoder layer of width {own.hidden_size} over the "
            f"target's features and the next tokens, {'with' if own.inner_norm else 'without'} a "
            "norm before attention; it borrows the target's embedding and output head and can "
            f"propose {kept} the target's {own.vocab_size:,} tokens."
        )

    def attach(self, target: Any, *, rounded: bool = False) -> None:
        """Take the target's embedding and head (its rows of the draft vocabulary), frozen.

        `rounded`: see `Attached`.
        """
        shape, own = (target.hidden_size, target.vocab_size), self.config
        if shape != (own.hidden_size, own.vocab_size):
            raise UserError(
                f"drafter of hidden size {own.hidden_size} and vocabulary {own.vocab_size} does "
                f"not fit target '{target.name}' of hidden size {shape[0]} and vocabulary "
                f"{shape[1]}"
            )
        self.attached = Attached(target, self.draft_to_target, rounded=rounded)

    def _refresh(self) -> None:
        """Derive draft_to_target (and an attached head) from d2t, which may have been loaded."""
        self.draft_to_target = None if self.d2t is None else vocabulary.to_ids(self.d2t)
        if self.attached is not None:
            self.attach(self.attached.target, rounded=self.attached.rounded)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Eagle1:
        super()._apply(fn, recurse)
        self._refresh()
        return self

    def forward(
        self,
        tokens: Tensor,
        features: Tensor,
        positions: Tensor,
        attend: blocks.Attend,
        columns: Tensor | None = None,
    ) -> Tensor:
        """One pass of the drafter over columns of pairs.

        Args:
            tokens: t_{i+1}, target ids [B, N].
            features: f_i (the target's, or the drafter's own output) [B, N, H].
            positions: i, [B, N]; siblings share one.
            attend: attention over the past, see `blocks.Attend`.
            columns: [n] the columns whose output is wanted, the others give keys and values only;
                None wants all.

        Returns:
            f̂_{i+1} [B, n, H], un-normed.
        """
        assert self.attached is not None, "attach(target) comes first"
        features = features.to(self.fc.weight.dtype)
        embedded = self.attached.embedding(tokens).to(features.dtype)  # [B, N, H]
        hidden = self.fc(torch.cat((embedded, features), dim=-1))
        rotary = self.rotary(hidden, positions)
        return self.layers[0](hidden, rotary, attend, columns)

    def logits(self, hidden: Tensor) -> Tensor:
        """Draft logits, float32: [..., H] -> [..., D] (or [..., V] with the full vocabulary)."""
        assert self.attached is not None, "attach(target) comes first"
        return self.attached.scale_logits(self.attached.head(hidden).float())


def _refresh_after_load(drafter: Any, _incompatible_keys: Any) -> None:
    drafter._refresh()


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
