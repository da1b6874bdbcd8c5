"""The EAGLE drafter at work: its cache, its passes, and the true features behind each cycle.

    position        0        1       ...    P-1   |   P          P+1
    pair         (f_0,t_1) (f_1,t_2) ... (f,root) | (f̂,x)      (f̂,y)     x child of the root
    committed    ------------ true features ----- | --- the tree's guesses, then overwritten ---

The pair (f_i, t_{i+1}) sits at position i, so the drafter's cache is as long as the target's.
After each cycle the accepted + 1 new pairs are computed anew from the target's true features;
that same pass yields the state behind the new root, from which level 1 of the next tree comes
(EAGLE 2401.15077, section 4; without the true features acceptance falls by 8-15 %).

Shapes: B rows, K nodes of a level, M drafted slots so far, H hidden width, D draft vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from eagle_lab.decoding.draft_graphs import DraftGraphs
from eagle_lab.decoding.proposer import Context, Proposer
from eagle_lab.drafters.eagle1 import Eagle1
from eagle_lab.drafters.fast_eagle1 import CacheAttend, use_fast_drafter
from eagle_lab.errors import Infeasible
from eagle_lab.models.cache import TreeCache
from eagle_lab.models.target import Scores, Target
from eagle_lab.models.tree_pass import TreePass
from eagle_lab.verify import Acceptance


def states_at(states: Tensor, columns: Tensor) -> Tensor:
    """[B, K, X] the `columns` [B, K] of `states` [B, N, X]."""
    return states.gather(1, columns[:, :, None].expand(-1, -1, states.shape[-1]))


class EagleProposer(Proposer):
    """What chain, static and dynamic EAGLE proposers share; they differ in `propose`."""

    def __init__(self, target: Target, drafter: Eagle1):
        self.target = target
        self.drafter = drafter
        if target.fast_layers:
            use_fast_drafter(drafter)
        self.graphs: DraftGraphs | None = None
        if target.graphs is not None:
            self.graphs = DraftGraphs(drafter, target.graphs.recorder)

    @torch.no_grad()
    def begin(self, context: Context, features: Tensor) -> None:
        """Read all pairs of the prompts."""
        self.cache = self.target.new_cache(len(context.tokens), num_layers=1)
        width = features.shape[1]
        following = [row[1:] + [0] * (width + 1 - len(row)) for row in context.tokens]
        tokens = torch.tensor(following, device=context.roots.device)
        self._extend(tokens, features, context.cache.lengths, context.cache.max_length)

    @torch.no_grad()
    def observe(self, context: Context, acceptance: Acceptance, scores: Scores) -> None:
        """Replace guessed pairs by true ones: the accepted nodes' and the new root's."""
        counts = acceptance.num_accepted + 1
        # On a GPU equal shapes and a host that does not wait are worth more than fewer pairs
        longest = int(counts.max()) if self.target.fast_layers else acceptance.path.shape[1]
        features = states_at(scores.features, acceptance.path[:, :longest])
        self._extend(acceptance.tokens[:, :longest], features, counts, context.cache.max_length)

    def _extend(self, tokens: Tensor, features: Tensor, counts: Tensor, max_length: int) -> None:
        """Commit the first `counts` [B] pairs of `features` [B, N, H] and `tokens` [B, N].

        `max_length` is that of the target's cache, which is as long.
        """
        batch, num_pairs = tokens.shape
        steps = torch.arange(num_pairs, device=tokens.device)
        visible = (steps[:, None] >= steps).expand(batch, -1, -1)
        positions = self.cache.lengths[:, None] + steps
        hidden = self._run(self.cache, tokens, features, positions, visible)
        self.cache.advance(counts, max_length)
        # [B, 1, H] stands for the root's feature
        self.root_hidden = states_at(hidden, (counts - 1)[:, None])

    def guess(
        self, cache: TreeCache, tokens: Tensor, features: Tensor, depth: int, visible: Tensor
    ) -> Tensor:
        """States [B, K, H] behind nodes of one level, nothing committed.

        Args:
            cache: the proposer's, or what stands for it while a whole tree is recorded.
            tokens: [B, K] the nodes, target ids.
            features: [B, K, H] states behind their parents.
            depth: their level, 1 for children of the root.
            visible: [B, K, M] drafted slots each node sees, its own level's K last.
        """
        positions = (cache.lengths + (depth - 1))[:, None].expand_as(tokens)
        return self._run(cache, tokens, features, positions, visible)

    def _run(
        self,
        cache: TreeCache,
        tokens: Tensor,
        features: Tensor,
        positions: Tensor,
        visible: Tensor,
    ) -> Tensor:
        if self.graphs is not None and cache is self.cache:  # else it is a part of a recording
            return self.graphs.run(cache, tokens, features, positions, visible)
        attend = CacheAttend(TreePass(cache, positions, visible))
        return self.drafter(tokens, features, positions, attend)

    def _check_width(self, width: int) -> None:
        """Raise `Infeasible` if the drafter has fewer tokens than a node has children."""
        config = self.drafter.config
        size = config.draft_vocab_size or config.vocab_size
        if width > size:
            raise Infeasible(f"{width} children per node exceed the draft vocabulary of {size}")

    def target_ids(self, draft_ids: Tensor) -> Tensor:
        """Target ids of draft-vocabulary ids."""
        mapping = self.drafter.draft_to_target
        return draft_ids if mapping is None else mapping.take(draft_ids)

    def full_law(self, draft_probs: Tensor) -> Tensor:
        """A law over the draft vocabulary [..., D] as one over the target's [..., V]."""
        mapping = self.drafter.draft_to_target
        if mapping is None:
            return draft_probs
        law = draft_probs.new_zeros(*draft_probs.shape[:-1], self.target.vocab_size)
        law[..., mapping] = draft_probs
        return law

    def select(self, rows: Sequence[int]) -> None:
        """Keep only the chosen rows."""
        self.cache.select(rows)
        self.root_hidden = self.root_hidden[torch.as_tensor(rows, dtype=torch.long)]

    def model_calls(self) -> list[tuple[object, str]]:
        """The drafter's, and the graphs', which replay what calls it."""
        graphs = [(self.graphs, "run"), (self.graphs, "tree")] if self.graphs is not None else []
        return [(self.drafter, "forward"), (self.drafter, "logits"), *graphs]
