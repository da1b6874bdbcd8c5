"""The EAGLE drafter at work: its cache, its passes, and the true features after each cycle.

    position        0        1       ...    P-1   |   P          P+1
    pair         (f_0,t_1) (f_1,t_2) ... (f,root) | (f̂,x)      (f̂,y)     x child of the root
    committed    ------------ true features ----- | --- the tree's guesses, then overwritten ---

The pair (f_i, t_{i+1}) sits at position i, so the drafter's cache is as long as the target's.
After each cycle the accepted + 1 new pairs are computed anew from the target's true features;
that same pass yields the state after the new root, from which level 1 of the next tree comes
(EAGLE 2401.15077, section 4; without the true features acceptance falls by 8-15 %).

On a GPU drafts of fixed shape run as captured graphs (`DraftGraphs`): a tree grown by a dozen small
operations per level is bound by their launches long before its passes are.

Shapes: B rows, N columns, K nodes of a level, M drafted slots so far, H hidden width, D draft
vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from eagle_lab.drafters.base import CacheAttend, Drafter
from eagle_lab.engine.draft_tree import DraftTree, Scores
from eagle_lab.engine.proposer import Context, Proposer
from eagle_lab.engine.verify import Acceptance
from eagle_lab.errors import Infeasible
from eagle_lab.methods.chain import Draws, check_length, check_stop_confidence, draft_chain
from eagle_lab.targets.cache import TreeCache
from eagle_lab.targets.cuda.graphs import CacheGraphs, GraphCapture, Tensors
from eagle_lab.targets.target import Target
from eagle_lab.targets.tree_pass import TreePass

Draft = Callable[[TreeCache, Tensor, Tensor], DraftTree]
"""(the drafter's cache, roots [B], states [B, 1, H] after them) -> a tree on the roots."""


class DraftGraphs:
    """A drafter's passes and whole drafts, by CUDA graphs."""

    def __init__(self, drafter: Drafter, capture: GraphCapture):
        self._drafter = drafter
        self._graphs = CacheGraphs(capture)
        self._wholes: dict[Draft, _Whole] = {}

    def run(
        self, cache: TreeCache, tokens: Tensor, states: Tensor, positions: Tensor, visible: Tensor
    ) -> Tensor:
        """States [B, N, H] after `tokens` [B, N]; `states` before them, `visible` [B, N, M]."""
        inputs = (tokens, states, positions, visible)
        return self._graphs.run(self._pass, cache, visible.shape[2], *inputs)[0]

    def tree(
        self, draft: Draft, num_slots: int, cache: TreeCache, roots: Tensor, hidden: Tensor
    ) -> DraftTree:
        """`draft(cache, roots, hidden)`, captured as a whole.

        Its nodes take `num_slots` slots of the cache.
        """
        whole = self._wholes.setdefault(draft, _Whole(draft))
        return whole.tree(self._graphs.run(whole, cache, num_slots, roots, hidden))

    def _pass(
        self, cache: TreeCache, tokens: Tensor, states: Tensor, positions: Tensor, visible: Tensor
    ) -> Tensors:
        attend = CacheAttend(TreePass(cache, positions, visible))
        return (self._drafter(tokens, states, positions, attend),)


class _Whole:
    """A draft that answers with the tensors of its tree, whose other fields never change."""

    def __init__(self, draft: Draft):
        self._draft = draft
        self._names: tuple[str, ...] = ()
        self._rest: dict[str, Any] = {}

    def __call__(self, cache: TreeCache, roots: Tensor, hidden: Tensor) -> Tensors:
        tree = self._draft(cache, roots, hidden)
        parts = {field.name: getattr(tree, field.name) for field in fields(tree)}
        tensors = {name: part for name, part in parts.items() if isinstance(part, Tensor)}
        self._names = tuple(tensors)
        self._rest = {name: part for name, part in parts.items() if name not in tensors}
        return tuple(part.contiguous() for part in tensors.values())

    def tree(self, tensors: Tensors) -> DraftTree:
        """The tree of `tensors`, answers of this draft."""
        parts: dict[str, Any] = dict(zip(self._names, tensors, strict=True)) | self._rest
        return DraftTree(**parts)


def states_at(states: Tensor, columns: Tensor) -> Tensor:
    """[B, K, X] the `columns` [B, K] of `states` [B, N, X]."""
    return states.gather(1, columns[:, :, None].expand(-1, -1, states.shape[-1]))


class EagleProposer(Proposer):
    """What chain, static and dynamic EAGLE proposers share; they differ in `propose`."""

    def __init__(self, target: Target, drafter: Drafter):
        self.target = target
        self.drafter = drafter
        target.hand_out(drafter.feature_names)
        if target.fast_layers:
            drafter.use_fast_form()
        self.graphs: DraftGraphs | None = None
        if target.graphs is not None:
            self.graphs = DraftGraphs(drafter, target.graphs.capture)

    @torch.no_grad()
    def begin(self, context: Context, features: dict[str, Tensor]) -> None:
        """Read all pairs of the prompts."""
        num_layers = self.drafter.attention.num_layers
        self.cache = self.target.new_cache(len(context.tokens), num_layers=num_layers)
        states = self.drafter.encode(features)
        width = states.shape[1]
        following = [row[1:] + [0] * (width + 1 - len(row)) for row in context.tokens]
        tokens = torch.tensor(following, device=context.roots.device)
        self._extend(tokens, states, context.cache.lengths, context.cache.max_length)

    @torch.no_grad()
    def observe(self, context: Context, acceptance: Acceptance, scores: Scores) -> None:
        """Replace guessed pairs by true ones: the accepted nodes' and the new root's."""
        counts = acceptance.num_accepted + 1
        # On a GPU equal shapes and a host that does not wait are worth more than fewer pairs
        longest = int(counts.max()) if self.target.fast_layers else acceptance.path.shape[1]
        path = acceptance.path[:, :longest]
        accepted = {
            name: states_at(scores.features[name], path) for name in self.drafter.feature_names
        }
        states = self.drafter.encode(accepted)
        self._extend(acceptance.tokens[:, :longest], states, counts, context.cache.max_length)

    def _extend(self, tokens: Tensor, states: Tensor, counts: Tensor, max_length: int) -> None:
        """Commit the first `counts` [B] pairs of `states` [B, N, H] and `tokens` [B, N].

        `max_length` is that of the target's cache, which is as long.
        """
        batch, num_pairs = tokens.shape
        steps = torch.arange(num_pairs, device=tokens.device)
        visible = (steps[:, None] >= steps).expand(batch, -1, -1)
        positions = self.cache.lengths[:, None] + steps
        hidden = self._run(self.cache, tokens, states, positions, visible)
        self.cache.advance(counts, max_length)
        # [B, 1, H] stands for the root's feature
        self.root_hidden = states_at(hidden, (counts - 1)[:, None])

    def guess(
        self, cache: TreeCache, tokens: Tensor, states: Tensor, depth: int, visible: Tensor
    ) -> Tensor:
        """States [B, K, H] after nodes of one level, nothing committed.

        Args:
            cache: the proposer's, or what stands for it while a whole tree is captured.
            tokens: [B, K] the nodes, target ids.
            states: [B, K, H] states after their parents.
            depth: their level, 1 for children of the root.
            visible: [B, K, M] drafted slots each node sees, its own level's K last.
        """
        positions = (cache.lengths + (depth - 1))[:, None].expand_as(tokens)
        return self._run(cache, tokens, states, positions, visible)

    def _run(
        self,
        cache: TreeCache,
        tokens: Tensor,
        states: Tensor,
        positions: Tensor,
        visible: Tensor,
    ) -> Tensor:
        if self.graphs is not None and cache is self.cache:  # else it is a part of a capture
            return self.graphs.run(cache, tokens, states, positions, visible)
        attend = CacheAttend(TreePass(cache, positions, visible))
        return self.drafter(tokens, states, positions, attend)

    def _check_width(self, width: int) -> None:
        """Raise `Infeasible` if the drafter has fewer tokens than a node has children."""
        size = self.drafter.draft_vocab_size
        if width > size:
            raise Infeasible(f"{width} children per node exceed the draft vocabulary of {size}")

    def select(self, rows: Sequence[int]) -> None:
        """Keep only the chosen rows."""
        self.cache.select(rows)
        self.root_hidden = self.root_hidden[torch.as_tensor(rows, dtype=torch.long)]

    def model_calls(self) -> list[tuple[object, str]]:
        """The drafter's, and the graphs', which replay what calls it."""
        graphs = [(self.graphs, "run"), (self.graphs, "tree")] if self.graphs is not None else []
        return [(self.drafter, "forward"), (self.drafter, "logits"), *graphs]


class EagleChain(EagleProposer):
    """One branch of up to `num_draft_tokens`."""

    draws_children = True

    def __init__(
        self,
        target: Target,
        drafter: Drafter,
        *,
        num_draft_tokens: int = 5,
        stop_confidence: float = 0.0,
    ):
        """Set up the chain.

        Args:
            target: the model.
            drafter: its drafter.
            num_draft_tokens: length of the chain, at least 1.
            stop_confidence: a row's draft ends where the drafter gives its best next path less
                probability than this; 0 never stops.

        Raises:
            UserError: a value outside its range.
        """
        super().__init__(target, drafter)
        self.max_nodes = check_length("eagle_chain", num_draft_tokens)
        self.stop_confidence = check_stop_confidence("eagle_chain", stop_confidence)

    @torch.no_grad()
    def propose(self, context: Context) -> DraftTree:
        """One pass of the drafter per token but the first, for all rows together."""
        hidden, depth = self.root_hidden, 0

        def next_logits(last: Tensor | None) -> Tensor:
            nonlocal hidden, depth
            if last is not None:
                depth += 1
                tokens = self.drafter.target_ids(last)[:, None]
                visible = torch.ones(len(last), 1, depth, dtype=torch.bool, device=last.device)
                hidden = self.guess(self.cache, tokens, hidden, depth, visible)
            return self.drafter.logits(hidden)[:, 0]

        chain = draft_chain(
            next_logits,
            len(context.tokens),
            self.max_nodes,
            device=context.roots.device,
            draws=Draws.of(context, self.max_nodes),
            stop_confidence=self.stop_confidence,
        )
        distributions = (
            None
            if chain.distributions is None
            else self.drafter.full_distribution(chain.distributions)
        )
        return DraftTree.chain(
            context.roots, self.drafter.target_ids(chain.tokens), chain.counts, distributions
        )
