"""Drafting with a language model of its own, on a cache that follows the rows' texts.

The model is a `Target`, so its cache rolls back a row at a time as the target's own does.

    Speculative       a smaller model of the same vocabulary (Leviathan et al. 2211.17192, Chen et
                      al. 2302.01318): tokens drawn from q are accepted with min(1, p/q)
    SelfSpeculation   the target drafts for itself, a control: all is accepted but ties, and less
                      than that means a fault in tree, cache or verification
    SharedVocabulary  which tokens two models share: q is renormalized over them, p and the residual
                      keep the target's whole vocabulary, so nothing that is not shared is lost

Shapes: B rows, T unread tokens, G drafted tokens, V vocabulary of the target, W of the draft
model, D tokens that can be drafted.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eagle_lab.engine.draft_tree import DraftTree
from eagle_lab.engine.proposer import Context, Proposer
from eagle_lab.errors import Missing, UserError
from eagle_lab.methods.chain import Chain, Draws, check_length, check_stop_confidence, draft_chain
from eagle_lab.targets.cuda.graphs import VerifyGraphs, no_graphs_reason
from eagle_lab.targets.load import DTYPES, load_target
from eagle_lab.targets.target import Target


@dataclass(frozen=True)
class SharedVocabulary:
    """Equal tokens of a draft model and a target.

    Attributes:
        draft_ids: [D] in the draft model.
        target_ids: [D] in the target.
        target_size: V.
    """

    draft_ids: Tensor
    target_ids: Tensor
    target_size: int

    @classmethod
    def by_id(cls, target: Target, model: Target) -> SharedVocabulary:
        """Two models of one tokenizer; embeddings may be padded to different sizes."""
        ids = torch.arange(min(target.vocab_size, model.vocab_size), device=target.device)
        return cls(ids, ids, target.vocab_size)

    @classmethod
    def by_text(cls, target: Target, model: Target) -> SharedVocabulary:
        """Two models with tokenizers of their own: the entries that are spelt alike.

        Raises:
            UserError: there are none.
        """
        ours, theirs = _entries(target), _entries(model)
        shared = sorted((theirs[entry], ours[entry]) for entry in ours.keys() & theirs.keys())
        if not shared:
            raise UserError(
                f"draft model '{model.name}' shares no token with target '{target.name}'"
            )
        draft_ids, target_ids = torch.tensor(shared, device=target.device).unbind(1)
        return cls(draft_ids, target_ids, target.vocab_size)

    def target_distribution(self, probs: Tensor) -> Tensor:
        """A distribution over the shared tokens [..., D] as one over the target's [..., V]."""
        distribution = probs.new_zeros(*probs.shape[:-1], self.target_size)
        distribution[..., self.target_ids] = probs
        return distribution


def check_same_vocabulary(target: Target, model: Target) -> None:
    """Refuse a draft model in which a token of the target has another id, or none.

    Raises:
        UserError: names both models and how many tokens differ.
    """
    ours, theirs = target.tokenizer.get_vocab(), model.tokenizer.get_vocab()
    num_other = sum(theirs.get(entry) != number for entry, number in ours.items())
    if num_other:
        raise UserError(
            f"draft model '{model.name}' has another vocabulary than target '{target.name}': "
            f"{num_other} of {len(ours)} tokens have another id there, or none; "
            "method universal drafts across vocabularies"
        )


def _entries(model: Target) -> dict[str, int]:
    """Spelling -> id of the entries with an embedding; both spellings of a space are one."""
    vocabulary: dict[str, Any] = model.tokenizer.get_vocab()
    return {
        entry.replace("▁", "Ġ"): number
        for entry, number in vocabulary.items()
        if number < model.vocab_size
    }


def load_draft_model(method: str, asked: str | Path | Target | None, target: Target) -> Target:
    """The model that `method.NAME.draft_model` names, or the one that is given.

    Raises:
        Missing: none is named.
        UserError: it cannot be loaded.
    """
    if isinstance(asked, Target):
        return asked
    if asked is None:
        raise Missing(
            f"method {method} needs draft_model.path=PATH, the hub id or folder of a causal "
            f"language model smaller than '{target.name}'; +experiment=train_draft makes one"
        )
    return open_draft_model(asked, target)


def open_draft_model(asked: str | Path, target: Target) -> Target:
    """Load a hub id or folder, on the target's device in its precision, with graphs if it has them.

    Raises:
        UserError: it cannot be loaded.
    """
    dtype = next(name for name, value in DTYPES.items() if value == target.dtype)
    model = load_target(
        str(asked),
        device=target.device.type,
        dtype=dtype,
        fast_layers=target.fast_layers,
        attention=target.attention,
        graphs=False,
    )
    if target.graphs is not None and no_graphs_reason(model.config) is None:
        model.graphs = VerifyGraphs(model, target.graphs.capture)
    return model


class DraftModel:
    """A model and what it has read of each row; `num_draft_tokens` is how far it may go ahead."""

    def __init__(self, model: Target, num_draft_tokens: int):
        self.model = model
        self.num_draft_tokens = num_draft_tokens

    def begin(self, num_rows: int) -> None:
        """Start afresh: nothing read."""
        self._cache = self.model.new_cache(num_rows)
        self._read: list[list[int]] = [[] for _ in range(num_rows)]
        self._drafted: list[Tensor] = []  # read after `_read`, one [B] a step

    def read(self, rows: Sequence[Sequence[int]]) -> Tensor:
        """Logits [B, W] after `rows`; what the cache has of them is not read again.

        A row must hold at least one token; tokens that the model does not know are read as its
        last one.

        Raises:
            UserError: a row and a draft do not fit the model's context.
        """
        needed = max(map(len, rows)) + self.num_draft_tokens
        if needed > self.model.context_length:
            raise UserError(
                f"a row and its draft are {needed} tokens of draft model '{self.model.name}', "
                f"whose context is {self.model.context_length}"
            )
        self._remember_drafts()
        kept = [
            min(_num_equal(known, row), len(row) - 1)
            for known, row in zip(self._read, rows, strict=True)
        ]
        lengths = self._cache.lengths
        self._cache.advance(torch.tensor(kept, device=lengths.device) - lengths)
        unread = [list(row[count:]) for count, row in zip(kept, rows, strict=True)]
        self._read = [list(row) for row in rows]
        widest = max(len(row) for row in unread)
        padded = torch.tensor([row + [0] * (widest - len(row)) for row in unread])
        counts = torch.tensor([len(row) for row in unread], device=lengths.device)
        return self._extend(padded.to(lengths.device), counts)

    def step(self, tokens: Tensor) -> Tensor:
        """Logits [B, W] after one more token of each row [B]."""
        self._drafted.append(tokens)
        return self._extend(tokens[:, None], torch.ones_like(tokens))

    def select(self, rows: Sequence[int]) -> None:
        """Keep only the chosen rows."""
        self._remember_drafts()
        self._cache.select(rows)
        self._read = [self._read[row] for row in rows]

    def _extend(self, tokens: Tensor, counts: Tensor) -> Tensor:
        tokens, num_tokens = tokens.clamp(max=self.model.vocab_size - 1), tokens.shape[1]
        if self.model.graphs is None or num_tokens > 1 + self.num_draft_tokens:
            return self.model.extend(tokens, counts, self._cache).logits[:, 0]
        # The same pass as a chain that is scored, which may be a graph's replay
        scores = self.model.score(DraftTree.chain(tokens[:, 0], tokens[:, 1:]), self._cache)
        self._cache.advance(counts, self._cache.max_length + 1 if num_tokens == 1 else None)
        return scores.logits[torch.arange(len(counts), device=counts.device), counts - 1]

    def _remember_drafts(self) -> None:
        """Fetch the drafted tokens from the device, once a cycle."""
        if self._drafted:
            drafted = torch.stack(self._drafted, dim=1).tolist()
            for known, tokens in zip(self._read, drafted, strict=True):
                known += tokens
            self._drafted = []


class DraftModelProposer(Proposer):
    """A chain drafted by a model that shares tokens with the target.

    Args:
        method: name of the method, for errors.
        target: the model whose text is made.
        model: what drafts.
        shared: which of its tokens are which of the target's.
        num_draft_tokens: length of the chain, at least 1.
        stop_confidence: where a row's chain ends, see `draft_chain`.

    Raises:
        UserError: a value outside its range.
    """

    draws_children = True

    def __init__(
        self,
        method: str,
        target: Target,
        model: Target,
        shared: SharedVocabulary,
        *,
        num_draft_tokens: int,
        stop_confidence: float = 0.0,
    ):
        self.target = target
        self.model = DraftModel(model, num_draft_tokens)
        self.shared = shared
        self.max_nodes = check_length(method, num_draft_tokens)
        self.context_length = model.context_length
        self.stop_confidence = check_stop_confidence(method, stop_confidence)

    def begin(self, context: Context, features: dict[str, Tensor]) -> None:
        """Read the prompts."""
        self.model.begin(len(context.tokens))
        self.model.read(self.rows(context))

    def rows(self, context: Context) -> list[list[int]]:
        """The rows so far as tokens of the draft model."""
        return context.tokens

    def propose(self, context: Context) -> DraftTree:
        """A chain of shared tokens."""
        chain = self.draft(context, self.rows(context), self.shared.draft_ids)
        distribution = (
            None
            if chain.distributions is None
            else self.shared.target_distribution(chain.distributions)
        )
        tokens = self.shared.target_ids[chain.tokens]
        return DraftTree.chain(context.roots, tokens, chain.counts, distribution)

    def draft(self, context: Context, rows: list[list[int]], draft_ids: Tensor) -> Chain:
        """Draft after `rows`, among the draft model's tokens `draft_ids` [D]."""

        def next_logits(last: Tensor | None) -> Tensor:
            logits = self.model.read(rows) if last is None else self.model.step(draft_ids[last])
            return logits[:, draft_ids]

        return draft_chain(
            next_logits,
            len(rows),
            self.max_nodes,
            device=context.roots.device,
            draws=Draws.of(context, self.max_nodes),
            stop_confidence=self.stop_confidence,
        )

    def select(self, rows: Sequence[int]) -> None:
        """Keep only the chosen rows."""
        self.model.select(rows)

    def model_calls(self) -> list[tuple[object, str]]:
        """The draft model's."""
        return [(self.model.model, "extend"), (self.model.model, "score")]


def _num_equal(first: Sequence[int], second: Sequence[int]) -> int:
    """Length of the longest common prefix."""
    differs = list(map(operator.ne, first, second))
    return differs.index(True) if True in differs else len(differs)


class Speculative(DraftModelProposer):
    """Drafts with a model of its own."""

    def __init__(
        self,
        target: Target,
        *,
        draft_model: str | Path | Target | None = None,
        num_draft_tokens: int = 5,
        stop_confidence: float = 0.0,
    ):
        """Load the draft model: a hub id, a folder, or one that is loaded; see the base class.

        Raises:
            UserError: no model, one of another vocabulary, or a value outside its range.
        """
        model = load_draft_model("speculative", draft_model, target)
        check_same_vocabulary(target, model)
        super().__init__(
            "speculative",
            target,
            model,
            SharedVocabulary.by_id(target, model),
            num_draft_tokens=num_draft_tokens,
            stop_confidence=stop_confidence,
        )


class SelfSpeculation(DraftModelProposer):
    """Drafts a chain with the target itself, on a cache of its own."""

    def __init__(self, target: Target, *, num_draft_tokens: int = 4):
        """Raises `UserError` if `num_draft_tokens` < 1."""
        super().__init__(
            "self_speculation",
            target,
            target,
            SharedVocabulary.by_id(target, target),
            num_draft_tokens=num_draft_tokens,
        )
