"""Drafter: a draft network of any kind, as methods, profiles, training and folders know it.

    states = drafter.encode(features)                      the target's features -> its own state
    states = drafter(tokens, states, positions, attend)    one level further
    logits = drafter.logits(states)                        over its draft vocabulary

A kind is a subclass; its settings, recipe and configuration are named here or found from it, and
it may live in any importable module (`_target_` in conf/drafter/KIND.yaml).

Shapes: B rows, N columns, H hidden width, D draft vocabulary, V the target's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor, nn

from eagle_lab.drafters import blocks, vocabulary
from eagle_lab.errors import UserError
from eagle_lab.targets.cpu.ops import fits, kernels, linear, pack, round_weights
from eagle_lab.targets.cpu.patch import use_fast_layers
from eagle_lab.targets.tree_pass import TreePass


@dataclass(frozen=True, kw_only=True)
class DrafterConfig:
    """Everything a folder needs to rebuild a drafter; kinds add fields.

    Fields without a default are dimensions, which follow from the target; the others switches.
    """

    hidden_size: int
    vocab_size: int
    draft_vocab_size: int | None = None


class AttentionShape(NamedTuple):
    """The layers of a drafter that keep keys and values, none of them for (0, 0, 0, 0)."""

    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int


@dataclass(frozen=True)
class CacheAttend:
    """Attention of a pass over a drafter's cached layer, see `blocks.Attend`."""

    tree_pass: TreePass

    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """query [B, heads, N, d]; key, value [B, kv_heads, N, d] -> [B, heads, N, d]."""
        return self.tree_pass.attend(0, query, key, value, query.shape[-1] ** -0.5)


class Attached:
    """What a drafter borrows from its target: embedding, head rows, logit scaling. Frozen.

    A plain object, so that none of it is a parameter, a buffer or part of `state_dict`.
    """

    def __init__(self, target: Any, kept: Tensor | None, *, rounded: bool = False) -> None:
        """`kept`: ids of the draft vocabulary [D], None for all; `rounded`: round their head rows
        to bfloat16.
        """
        self.target, self.rounded, self._kept = target, rounded, kept
        self.embedding: Callable[[Tensor], Tensor] = target.embedding
        self.scale_logits: Callable[[Tensor], Tensor] = target.scale_logits

    @cached_property
    def head_weight(self) -> Tensor:
        """The target's head, rows of the draft vocabulary: [D or V, H]."""
        weight: Tensor = self.target.head_weight.detach()
        if self._kept is None:
            return weight
        weight = weight[self._kept.to(weight.device)]
        return round_weights(weight) if self.rounded else weight

    @cached_property
    def head_bias(self) -> Tensor | None:
        """Its bias [D or V], if it has one."""
        bias: Tensor | None = getattr(self.target, "head_bias", None)
        return bias if bias is None or self._kept is None else bias[self._kept.to(bias.device)]

    @cached_property
    def _packed(self) -> Tensor | None:
        """The head's rows in half the bytes, where the kernel can read them."""
        weight = self.head_weight
        return pack(weight, kernels().LANES) if fits(weight) else None

    def head(self, hidden: Tensor) -> Tensor:
        """Unscaled logits [..., D or V] of states [..., H], by the fast layers if the target has
        them.
        """
        hidden = hidden.to(self.head_weight.dtype)
        if getattr(self.target, "fast_layers", False):
            return linear(hidden, self.head_weight, self.head_bias, self._packed)
        return nn.functional.linear(hidden, self.head_weight, self.head_bias)


class Drafter(nn.Module, ABC):
    """Base of every kind. `attach(target)` comes before the first pass.

    Class attributes of a kind:
        kind: its name, as in conf/drafter/KIND.yaml and in config.json.
        Config: what `config` is.
        Settings: dataclass of the keys of conf/drafter/KIND.yaml that describe a new drafter;
            `draft_vocab_size` among them is the size of a vocabulary that its recipe chooses.
        recipe: dotted path of the `Recipe` that trains it.
        feature_names: the target's features that `encode` reads.

    Attributes:
        config: dimensions and switches.
        d2t: offsets of the reduced vocabulary [D], None for the full one.
        draft_to_target: target id of each draft id [D], None for the full vocabulary.
        attached: what it borrows from its target.
    """

    kind: ClassVar[str]
    Config: ClassVar[type[DrafterConfig]]
    Settings: ClassVar[type]
    recipe: ClassVar[str]
    feature_names: ClassVar[tuple[str, ...]] = ("top",)

    config: Any
    d2t: Tensor | None

    def __init__(self, config: DrafterConfig, kept: Tensor | None = None) -> None:
        """`kept`: sorted target ids [D]; needed when a reduced vocabulary is configured, except
        where `load_state_dict` brings them.
        """
        super().__init__()
        self.config = config
        self.attached: Attached | None = None
        size = config.draft_vocab_size
        if size is None:
            if kept is not None:
                raise ValueError("kept ids given, but the configuration has the full vocabulary")
            self.register_buffer("d2t", None)
        else:
            if kept is not None and len(kept) != size:
                raise ValueError(f"{len(kept)} kept ids for a draft vocabulary of {size}")
            first = torch.zeros(size, dtype=torch.long)
            self.register_buffer("d2t", first if kept is None else vocabulary.to_offsets(kept))
        self.draft_to_target: Tensor | None = None
        self._target_to_draft: Tensor | None = None
        self._refresh()
        self.register_load_state_dict_post_hook(_refresh_after_load)

    @classmethod
    @abstractmethod
    def config_for(cls, target: Any, settings: Any) -> DrafterConfig:
        """Dimensions of a new drafter for `target`, with `Settings`."""

    @classmethod
    def from_target(cls, target: Any, settings: Any, kept: Tensor | None = None) -> Self:
        """A new drafter with random weights, attached, on the target's device."""
        drafter = cls(cls.config_for(target, settings), kept).to(target.device)
        drafter.attach(target)
        return drafter

    def attach(self, target: Any, *, rounded: bool = False) -> None:
        """Borrow the target's embedding and head (its rows of the draft vocabulary).

        Raises:
            UserError: a target of other dimensions.
        """
        shape, own = (target.hidden_size, target.vocab_size), self.config
        if shape != (own.hidden_size, own.vocab_size):
            raise UserError(
                f"drafter of hidden size {own.hidden_size} and vocabulary {own.vocab_size} does "
                f"not fit target '{target.name}' of hidden size {shape[0]} and vocabulary "
                f"{shape[1]}"
            )
        self.attached = Attached(target, self.draft_to_target, rounded=rounded)

    @abstractmethod
    def encode(self, features: Mapping[str, Tensor]) -> Tensor:
        """The target's named features [..., F] as the drafter's own states [..., H]."""

    @abstractmethod
    def forward(
        self,
        tokens: Tensor,
        states: Tensor,
        positions: Tensor,
        attend: blocks.Attend,
        columns: Tensor | None = None,
    ) -> Tensor:
        """One pass over columns of pairs: a state and the token that follows it.

        Args:
            tokens: t_{i+1}, target ids [B, N].
            states: of t_i, encoded from the target or the drafter's own output [B, N, H].
            positions: i, [B, N]; siblings share one.
            attend: attention over the past, see `blocks.Attend`.
            columns: [n] the columns whose output is wanted, the others give keys and values only;
                None wants all.

        Returns:
            states of t_{i+1} [B, n, H].
        """

    @abstractmethod
    def logits(self, states: Tensor) -> Tensor:
        """Draft logits, float32: [..., H] -> [..., D] (or [..., V] with the full vocabulary)."""

    def target_logits(self, top: Tensor) -> Tensor:
        """The target's logits over the draft vocabulary: its feature `top` [..., H] -> [..., D]."""
        assert self.attached is not None, "attach(target) comes first"
        return self.attached.scale_logits(self.attached.head(top).float())

    @property
    def attention(self) -> AttentionShape:
        """Layers of its cache."""
        return AttentionShape(0, 0, 0, 0)

    @property
    def num_weights(self) -> int:
        """Weights that every token of a pass is multiplied with: its own and the head's rows."""
        own = sum(weight.numel() for weight in self.parameters())
        return own + self.draft_vocab_size * int(self.config.hidden_size)

    @property
    def draft_vocab_size(self) -> int:
        """D, the target's V with the full vocabulary."""
        return int(self.config.draft_vocab_size or self.config.vocab_size)

    @property
    def dtype(self) -> torch.dtype:
        """Of its weights."""
        return next(self.parameters()).dtype

    @property
    def description(self) -> str:
        """What it is, in a sentence or two of its model card."""
        return ""

    def use_fast_form(self) -> None:
        """Take the kernels of a CPU for what they compute; once is enough."""
        use_fast_layers(self)

    def draft_ids(self, tokens: Tensor) -> Tensor:
        """Draft ids of target ids, -1 where the drafter cannot say the token."""
        if self.draft_to_target is None:
            return tokens
        if self._target_to_draft is None:
            self._target_to_draft = vocabulary.to_draft(
                self.draft_to_target, self.config.vocab_size
            )
        return self._target_to_draft[tokens]

    def target_ids(self, draft_ids: Tensor) -> Tensor:
        """Target ids of draft ids."""
        mapping = self.draft_to_target
        return draft_ids if mapping is None else mapping.take(draft_ids)

    def full_distribution(self, draft_probs: Tensor) -> Tensor:
        """A distribution over the draft vocabulary [..., D] as one over the target's [..., V]."""
        mapping = self.draft_to_target
        if mapping is None:
            return draft_probs
        distribution = draft_probs.new_zeros(*draft_probs.shape[:-1], self.config.vocab_size)
        distribution[..., mapping] = draft_probs
        return distribution

    def _refresh(self) -> None:
        """Derive everything that hangs on d2t, which may have been loaded or moved."""
        self.draft_to_target = None if self.d2t is None else vocabulary.to_ids(self.d2t)
        self._target_to_draft = None
        if self.attached is not None:
            self.attach(self.attached.target, rounded=self.attached.rounded)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)
        self._refresh()
        return self


def _refresh_after_load(drafter: Any, _incompatible_keys: Any) -> None:
    drafter._refresh()
