"""Prompts read once for all methods of a batch, where no time is measured.

Methods answer the same prompts one after the other, and what the target says of a prompt is the
same each time: its keys and values are kept and copied instead of computed anew. With short answers
reading prompts is most of an untimed bench.
"""

from __future__ import annotations

from collections.abc import Sequence

from eagle_lab.models.cache import TreeCache
from eagle_lab.models.target import Scores, Target
from eagle_lab.tree.draft_tree import DraftTree


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
