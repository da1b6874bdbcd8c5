"""Acceptance without the target: known answers are drafted for again.

A method whose children are chosen emits plain decoding's text at the same uniforms, at temperature
0 and above (`verify.py`), so what its draft is worth can be told from that text and the target's
features along it, both recorded once. A pass over a tree then costs two look-ups: the node at
depth d of a row that has come to position p stands at p + d, where the answer goes on with a known
token after a known feature. Nodes off the answer get the same, which is wrong and never read:
their parents are rejected. Children drawn at T > 0 would need the target's whole distribution.

What stays is the drafter's own work, a tenth of the whole and less: sizes of a tree can be swept
on whole question files. Accepted lengths are those of a real run up to ties of the arithmetic.

`SharedPrefill` does the same for prompts, which all methods of a batch have in common: with short
answers reading them is most of an untimed bench.

Shapes: B rows, N columns, T tokens of the longest prompt and answer, F feature width.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from eagle_lab.engine.draft_tree import DraftTree, Scores
from eagle_lab.engine.record import Generation
from eagle_lab.targets.cache import TreeCache
from eagle_lab.targets.target import Target


class SharedPrefill:
    """A target that remembers the prompts it read last; `decode` takes it for the target.

    Args:
        target: the model. Its answers come out bit for bit.
    """

    def __init__(self, target: Target):
        self._target = target
        self.name, self.device = target.name, target.device
        self.context_length, self.eos_ids = target.context_length, target.eos_ids
        self._read: tuple[list[list[int]], TreeCache, Scores] | None = None

    def new_cache(self, num_rows: int) -> TreeCache:
        """See `Target.new_cache`."""
        return self._target.new_cache(num_rows)

    def prefill(self, prompts: Sequence[Sequence[int]], cache: TreeCache) -> Scores:
        """See `Target.prefill`; the same prompts again cost a copy of their keys and values."""
        asked = [list(prompt) for prompt in prompts]
        if self._read is not None and self._read[0] == asked:
            _, kept, scores = self._read
            cache.copy_from(kept)
            return scores
        scores = self._target.prefill(prompts, cache)
        kept = self.new_cache(len(asked))
        kept.copy_from(cache)
        self._read = asked, kept, scores
        return scores

    def score(self, tree: DraftTree, cache: TreeCache) -> Scores:
        """See `Target.score`."""
        return self._target.score(tree, cache)


class RowsCache(TreeCache):
    """A cache without layers that remembers which recorded rows are still under way.

    Attributes:
        rows: [B] their places in the recording.
    """

    def __init__(self, num_rows: int, device: torch.device):
        super().__init__(0, num_rows, device)
        self.rows = torch.arange(num_rows, device=device)

    def select(self, rows: Sequence[int]) -> None:
        """See `TreeCache.select`."""
        super().select(rows)
        self.rows = self.rows[torch.as_tensor(rows, dtype=torch.long, device=self.rows.device)]


class Replay:
    """Stands in for the target in `decode`, for the prompts of one recording.

    Args:
        target: the model that answered.
        answers: its answers by plain decoding, with features.
    """

    def __init__(self, target: Target, answers: Sequence[Generation]):
        self.name, self.device = target.name, target.device
        self.context_length, self.eos_ids = target.context_length, target.eos_ids
        self._vocab_size = target.vocab_size
        texts = [torch.tensor(answer.prompt_tokens + answer.tokens) for answer in answers]
        self._tokens = pad_sequence(texts, batch_first=True).to(self.device)  # [B, T]
        kept = [answer.features for answer in answers if answer.features is not None]
        self._features = {  # [B, T - 1, F]
            name: pad_sequence([one[name] for one in kept], batch_first=True) for name in kept[0]
        }
        self._dtype = target.dtype

    def new_cache(self, num_rows: int) -> RowsCache:
        """Where the rows stand; nothing else is kept."""
        return RowsCache(num_rows, self.device)

    def prefill(self, prompts: Sequence[Sequence[int]], cache: RowsCache) -> Scores:
        """See `Target.prefill`; the prompts are the recording's."""
        counts = torch.tensor([len(prompt) for prompt in prompts], device=self.device)
        cache.advance(counts)
        logits, _ = self._at(cache, (counts - 1)[:, None])
        read = {name: one[:, : cache.max_length] for name, one in self._features.items()}
        return Scores(logits, read)

    def score(self, tree: DraftTree, cache: RowsCache) -> Scores:
        """Logits [B, N, V] of a distribution that is sure of the answer's next token, and features.

        Raises:
            ValueError: the tree's children were drawn.
        """
        if tree.draft_probs is not None:
            raise ValueError(
                "drawn children cannot be replayed: they need the target's distribution"
            )
        return Scores(*self._at(cache, cache.lengths[:, None] + tree.depths))

    def _at(self, cache: RowsCache, positions: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """What stands at `positions` [B, N]; after the answer's end something is made up."""
        positions = positions.clamp(max=self._tokens.shape[1] - 2)
        rows = cache.rows[:, None]
        following = self._tokens[rows, positions + 1]
        size, impossible = (*following.shape, self._vocab_size), -torch.inf
        logits = torch.full(size, impossible, dtype=self._dtype, device=self.device)
        features = {name: one[rows, positions] for name, one in self._features.items()}
        return logits.scatter_(-1, following[..., None], 0), features
