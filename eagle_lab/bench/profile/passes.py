"""Passes of target and drafter after a filled cache, ready to be timed as often as one likes.

    passes = TargetPasses(target, tokens, context=128)
    with passes.ready(num_tokens=8) as run:
        run()                          # the pass, and nothing but the pass

A pass leaves no trace: whenever it is run, the cache holds `context` tokens. Which tokens a pass
reads does not change what it costs, so any will do. Shapes: B rows, K columns of a pass.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor

from eagle_lab.drafters.base import Drafter, named
from eagle_lab.engine.draft_tree import DraftTree
from eagle_lab.engine.proposer import Context
from eagle_lab.engine.sampling import Sampling, Uniforms
from eagle_lab.methods.eagle import EagleChain
from eagle_lab.targets.target import Target
from eagle_lab.targets.tree_pass import use_tree_attention

Run = Callable[[], object]


class Passes(Protocol):
    """Passes of one model at one batch size and context."""

    def ready(self, num_tokens: int) -> AbstractContextManager[Run]:
        """A call that runs one pass over `num_tokens` columns per row, the root counted."""
        ...


class TargetPasses:
    """The engine's verify pass: a chain of drafted tokens after the root.

    Attributes:
        features: of what is in the cache, [B, context, F] by name.
    """

    def __init__(self, target: Target, tokens: Tensor, context: int):
        """`tokens` [B, T] fill the cache up to `context`; those after it are scored."""
        self._target, self._next = target, tokens[:, context:]
        self._cache = target.new_cache(len(tokens))
        counts = torch.full((len(tokens),), context, device=tokens.device)
        self.features = target.extend(tokens[:, :context], counts, self._cache).features

    @contextmanager
    def ready(self, num_tokens: int) -> Iterator[Run]:
        """See `Passes`."""
        tree = DraftTree.chain(self._next[:, 0], self._next[:, 1:num_tokens])
        yield lambda: self._target.score(tree, self._cache)


class PlainPasses:
    """The same passes through Hugging Face's own code: its layers, attention and cache."""

    def __init__(self, target: Target, tokens: Tensor, context: int):
        """See `TargetPasses`."""
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


class DraftPasses:
    """A draft step: the drafter over the nodes of one level, and their draft distributions."""

    def __init__(self, target: Target, drafter: Drafter, tokens: Tensor, features: Any):
        """`features` [B, context, F] are the target's after the first of `tokens` [B, T]."""
        states = drafter.encode(named(features))
        context = states.shape[1]
        self._proposer, self._next = EagleChain(target, drafter), tokens[:, context:]
        self._states = states[:, :1]
        cache = target.new_cache(len(tokens))
        cache.advance(torch.full((len(tokens),), context, device=tokens.device))
        read = Context(
            tokens=tokens[:, : context + 1].tolist(),
            roots=tokens[:, context],
            cache=cache,
            sampling=Sampling(),
            uniforms=Uniforms(range(len(tokens)), tokens.device),
        )
        self._proposer.begin(read, features)

    @contextmanager
    def ready(self, num_tokens: int) -> Iterator[Run]:
        """See `Passes`; the columns are siblings, each sees the context and itself."""
        tokens = self._next[:, :num_tokens]
        states = self._states.expand(-1, num_tokens, -1).contiguous()
        visible = torch.eye(num_tokens, dtype=torch.bool, device=tokens.device)
        visible = visible.expand(len(tokens), -1, -1)

        def run() -> Tensor:
            hidden = self._proposer.guess(self._proposer.cache, tokens, states, 1, visible)
            return self._proposer.drafter.logits(hidden)

        yield run
