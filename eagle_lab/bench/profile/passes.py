"""Passes of target and drafter after a filled cache, ready to be timed as often as one likes.

    passes = after_text(target, drafter, tokens, context=128)["target"]
    with passes.ready(num_tokens=8) as run:
        run()                          # the pass, and nothing but the pass

A pass leaves no trace: whenever it is run, the cache holds `context` tokens. Which tokens a pass
reads does not change what it costs, so any will do; nor what the cache says, and reading 128 long
prompts takes longer than all measurements after them: `after_noise` fills it with noise. Shapes: B
rows, T tokens, K columns of a pass.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from eagle_lab.bench.profile.limits import attention_of
from eagle_lab.drafters.base import AttentionShape, Drafter
from eagle_lab.engine.draft_tree import DraftTree
from eagle_lab.engine.proposer import Context
from eagle_lab.engine.sampling import Sampling, Uniforms
from eagle_lab.methods.eagle import EagleChain
from eagle_lab.targets.cache import TreeCache
from eagle_lab.targets.target import Target
from eagle_lab.targets.tree_pass import use_tree_attention

Run = Callable[[], object]


class Passes(Protocol):
    """Passes of one model at one batch size and context."""

    def ready(self, num_tokens: int) -> AbstractContextManager[Run]:
        """A call that runs one pass over `num_tokens` columns per row, the root counted."""
        ...


def after_text(
    target: Target, drafter: Drafter | None, tokens: Tensor, context: int
) -> dict[str, Passes]:
    """Passes of each model after the first `context` of `tokens` [B, T]; `plain` is the target's
    through Hugging Face's own layers."""
    cache = target.new_cache(len(tokens))
    counts = torch.full((len(tokens),), context, device=tokens.device)
    features = target.extend(tokens[:, :context], counts, cache).features
    rest = tokens[:, context:]
    passes: dict[str, Passes] = {
        "target": TargetPasses(target, cache, rest),
        "plain": PlainPasses(target, tokens, context),
    }
    if drafter is not None:
        proposer = EagleChain(target, drafter)
        read = Context(
            tokens=tokens[:, : context + 1].tolist(),
            roots=tokens[:, context],
            cache=cache,
            sampling=Sampling(),
            uniforms=Uniforms(range(len(tokens)), tokens.device),
        )
        proposer.begin(read, features)
        states = drafter.encode(features)[:, :1]
        passes["draft"] = DraftPasses(proposer, states, rest)
    return passes


def after_noise(
    target: Target, drafter: Drafter | None, tokens: Tensor, context: int
) -> dict[str, Passes]:
    """The same without Hugging Face's layers; `tokens` [B, T] after `context` have free slots."""
    rest, rows = tokens[:, context:], len(tokens)
    cache = target.new_cache(rows)
    fill_with_noise(cache, attention_of(target), context, rest.shape[1], target.head_weight)
    passes: dict[str, Passes] = {"target": TargetPasses(target, cache, rest)}
    if drafter is not None:
        proposer, weight = EagleChain(target, drafter), next(drafter.parameters())
        proposer.cache = target.new_cache(rows, num_layers=drafter.attention.num_layers)
        fill_with_noise(proposer.cache, drafter.attention, context, rest.shape[1], weight)
        states = weight.new_empty(rows, 1, drafter.config.hidden_size).normal_()
        passes["draft"] = DraftPasses(proposer, states, rest)
    return passes


def fill_with_noise(
    cache: TreeCache, shape: AttentionShape, context: int, room: int, like: Tensor
) -> None:
    """Commit `context` slots of noise in every row of an empty cache, with `room` slots after.

    Args:
        shape: of the attention.
        like: gives dtype and device.
    """
    num_rows = len(cache.lengths)
    heads = like.new_empty(num_rows, shape.num_kv_heads, 0, shape.head_dim)
    for layer in range(cache.num_layers):
        cache.room(layer, context + room, heads).normal_()
    cache.advance(torch.full((num_rows,), context, device=like.device))


@dataclass
class TargetPasses:
    """The engine's verify pass: a chain of drafted tokens after the root.

    Attributes:
        cache: filled up to the context.
        rest: [B, T - context], the tokens that are scored.
    """

    target: Target
    cache: TreeCache
    rest: Tensor

    @contextmanager
    def ready(self, num_tokens: int) -> Iterator[Run]:
        """See `Passes`."""
        tree = DraftTree.chain(self.rest[:, 0], self.rest[:, 1:num_tokens])
        yield lambda: self.target.score(tree, self.cache)


class PlainPasses:
    """The same passes through Hugging Face's own code: its layers, attention and cache."""

    def __init__(self, target: Target, tokens: Tensor, context: int):
        """`tokens` [B, T] fill the cache up to `context`; those after it are scored."""
        from transformers import DynamicCache

        self._target, self._context, self._next = target, context, tokens[:, context:]
        # 5.17 knows the cache by its old name only; the new one would vanish into **kwargs
        new_name = "cache" in inspect.signature(target.model.forward).parameters
        self._cache = DynamicCache()
        self._arguments = {("cache" if new_name else "past_key_values"): self._cache}
        with _as_shipped(target):
            target.model.get_decoder()(tokens[:, :context], use_cache=True, **self._arguments)

    @contextmanager
    def ready(self, num_tokens: int) -> Iterator[Run]:
        """See `Passes`; scores every column, as verification must."""
        tokens = self._next[:, :num_tokens]
        with _as_shipped(self._target):
            yield lambda: self._target.model(tokens, use_cache=True, **self._arguments)
        if added := self._cache.get_seq_length() - self._context:
            self._cache.crop(-added)


@contextmanager
def _as_shipped(target: Target) -> Iterator[None]:
    """The layers of a target's network as Hugging Face ships them, attention included."""
    network: Any = target.model
    try:
        network.set_attn_implementation("sdpa")
    except ValueError:
        network.set_attn_implementation("eager")
    try:
        with target.plain_layers():
            yield
    finally:
        use_tree_attention(network)


@dataclass
class DraftPasses:
    """A draft step: the drafter over the nodes of one level, and their draft distributions.

    Attributes:
        proposer: its cache is filled up to the context.
        states: [B, 1, …] that every node is drafted from.
        rest: [B, T - context], the tokens of the nodes.
    """

    proposer: EagleChain
    states: Tensor
    rest: Tensor

    @contextmanager
    def ready(self, num_tokens: int) -> Iterator[Run]:
        """See `Passes`; the columns are siblings, each sees the context and itself."""
        tokens = self.rest[:, :num_tokens]
        states = self.states.expand(-1, num_tokens, -1).contiguous()
        visible = torch.eye(num_tokens, dtype=torch.bool, device=tokens.device)
        visible = visible.expand(len(tokens), -1, -1)

        def run() -> Tensor:
            hidden = self.proposer.guess(self.proposer.cache, tokens, states, 1, visible)
            return self.proposer.drafter.logits(hidden)

        yield run
