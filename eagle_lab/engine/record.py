"""The record of a decode: what each row of a batch produced, cycle by cycle.

`Outcome.fetch` brings a cycle to the host, `Record` adds it to the rows' `Generation`s. Output is
cut here, at the first end-of-sequence id and at the token limit, before anything else sees it:
tokens after the cut are not output, not counted and not timed. Knows no model and no method.

Host syncs: fetching a value from a GPU waits until all that was launched before has run. A cycle
needs one, for its tokens; everything else the host needs comes along, and the rest follows from the
lengths of the texts (lengths of the caches, uniforms). Further syncs are made by the top-p
distribution (how many tokens reach it), by drafts whose length follows acceptance or confidence, by
draft models (the tokens they drafted), and by copies grafted onto a drafted tree.

Shapes: B rows under way, N columns of the tree, A path length, T tokens, F feature width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from eagle_lab.engine.draft_tree import DraftTree, Scores
from eagle_lab.engine.verify import Acceptance


@dataclass
class Generation:
    """One row's output.

    Attributes:
        prompt_tokens: the prompt.
        tokens: emitted tokens; the first comes from the prefill, an end-of-sequence id is the
            last one if there is any.
        accepted_lengths: drafted tokens accepted and emitted, per cycle.
        judged_lengths: drafted tokens on the text's way that the target judged, per cycle: the
            accepted ones, and one more where both draft and text continued after them.
        emitted_lengths: tokens emitted per cycle, the bonus token included; their mean is tau.
        num_drafted: drafted nodes verified, summed over the cycles.
        prefill_s: seconds of the batch's prefill, with the proposer's and the first token.
        decode_s: seconds from there until this row ended.
        cycle_s: seconds of each cycle of this row.
        draft_s: seconds of drafting (proposing and observing), summed over its cycles.
        verify_s: seconds of target passes, summed over its cycles.
        finished_by: "eos" or "length".
        features: by name, [T, F] of all tokens but the last (`keep_features`).
        draft_confidences: the drafter's probability, after its parent, of each drafted token that
            the target judged: those whose parent was accepted and whose place the text reached,
            cycle by cycle (`keep_confidences`).
        draft_accepted: 1 for each of them that was accepted, 0 for the others.
    """

    prompt_tokens: list[int]
    tokens: list[int] = field(default_factory=list)
    accepted_lengths: list[int] = field(default_factory=list)
    judged_lengths: list[int] = field(default_factory=list)
    emitted_lengths: list[int] = field(default_factory=list)
    num_drafted: int = 0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    cycle_s: list[float] = field(default_factory=list)
    draft_s: float = 0.0
    verify_s: float = 0.0
    finished_by: str = ""
    features: dict[str, Tensor] | None = None
    draft_confidences: list[float] = field(default_factory=list)
    draft_accepted: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Outcome:
    """A cycle on the host.

    Attributes:
        new_tokens: accepted tokens and the bonus token of each row.
        num_nodes: nodes verified in each row.
        num_judged: drafted tokens on the text's way that were judged, in each row: the accepted
            ones, and one more if the draft continued after them.
        moved: whether any row keeps a node that does not follow the one kept before it.
    """

    new_tokens: list[list[int]]
    num_nodes: list[int]
    num_judged: list[int]
    moved: bool

    @classmethod
    def fetch(cls, tree: DraftTree, acceptance: Acceptance) -> Outcome:
        """The outcome of verifying `tree`, in one host sync."""
        num_accepted, path = acceptance.num_accepted[:, None], acceptance.path
        steps = torch.arange(path.shape[1], device=path.device)
        moved = ((path != steps) & (steps <= num_accepted)).any(1, keepdim=True)
        last = path.gather(1, num_accepted)
        continued = (tree.candidates & (tree.parents == last)).any(1, keepdim=True)
        num_judged = num_accepted + continued
        num_nodes = tree.num_nodes()[:, None]
        parts = (num_accepted, num_nodes, num_judged, moved, acceptance.tokens)
        rows = torch.cat([part.long() for part in parts], dim=1).tolist()
        return cls(
            new_tokens=[tokens[: count + 1] for count, _, _, _, *tokens in rows],
            num_nodes=[row[1] for row in rows],
            num_judged=[row[2] for row in rows],
            moved=any(row[3] for row in rows),
        )


class CycleTime(NamedTuple):
    """Seconds of one cycle: drafting (proposing and observing), the target's pass, the rest."""

    draft_s: float
    verify_s: float
    rest_s: float


class Record:
    """The generations of a batch and which of its rows are still under way.

    Attributes:
        generations: one per prompt, in order.
        rows: indices of the rows under way, in the order of the batch tensors.
    """

    def __init__(
        self,
        prompts: Sequence[Sequence[int]],
        max_new_tokens: int,
        eos_ids: frozenset[int],
        on_tokens: Callable[[int, list[int]], None] | None,
        keep_features: bool,
        keep_confidences: bool = False,
    ):
        self.generations = [Generation(list(prompt)) for prompt in prompts]
        self.rows = list(range(len(prompts)))
        self._cycles: list[list[int]] = []  # rows that took part in each
        self._max_new_tokens = max_new_tokens
        self._eos_ids = eos_ids
        self._on_tokens = on_tokens
        self._keep_confidences = keep_confidences
        kept: list[list[dict[str, Tensor]]] = [[] for _ in prompts]
        self._features = kept if keep_features else None

    def emit_first(self, new_tokens: list[list[int]]) -> list[int]:
        """Add the first tokens, which belong to the prefill and to no cycle; see `emit`."""
        for row, tokens in zip(self.rows, new_tokens, strict=True):
            self._emit(row, tokens)
        return self._drop_finished()

    def emit(self, outcome: Outcome) -> list[int]:
        """Add one cycle's tokens, cut them, and let finished rows go.

        Returns:
            Places, among the rows so far, of the rows that remain, in their new order: the last
            ones fill the gaps, so that few rows of a large state move.
        """
        self._cycles.append(self.rows)
        counts = zip(outcome.num_nodes, outcome.num_judged, strict=True)
        cycle = zip(self.rows, outcome.new_tokens, counts, strict=True)
        for row, new_tokens, (num_nodes, num_judged) in cycle:
            num_emitted = self._emit(row, new_tokens)
            generation = self.generations[row]
            generation.emitted_lengths.append(num_emitted)
            generation.accepted_lengths.append(min(len(new_tokens) - 1, num_emitted))
            generation.judged_lengths.append(min(num_judged, num_emitted))
            generation.num_drafted += num_nodes
        return self._drop_finished()

    def _emit(self, row: int, new_tokens: list[int]) -> int:
        """Add the part of `new_tokens` that is output; returns its length."""
        generation = self.generations[row]
        emitted, generation.finished_by = self._cut(generation, new_tokens)
        generation.tokens += emitted
        if self._on_tokens is not None:
            self._on_tokens(row, emitted)
        return len(emitted)

    def _drop_finished(self) -> list[int]:
        """Let finished rows go; returns the places of the others, see `emit`."""
        remaining = _fill_gaps(
            [place for place, row in enumerate(self.rows) if not self.generations[row].finished_by]
        )
        self.rows = [self.rows[place] for place in remaining]
        return remaining

    def _cut(self, generation: Generation, tokens: list[int]) -> tuple[list[int], str]:
        """The part of `tokens` that is output, and why the row ends there ("" if it does not)."""
        room = self._max_new_tokens - len(generation.tokens)
        for place, token in enumerate(tokens[:room]):
            if token in self._eos_ids:
                return tokens[: place + 1], "eos"
        return tokens[:room], "length" if len(tokens) >= room else ""

    def keep_prompt_features(self, features: dict[str, Tensor]) -> None:
        """Store `features` [B, T, F] of the prompts."""
        if self._features is not None:
            for row, generation in enumerate(self.generations):
                length = len(generation.prompt_tokens)
                kept = {name: one[row, :length].clone() for name, one in features.items()}
                self._features[row].append(kept)

    def keep(
        self, tree: DraftTree, scores: Scores, acceptance: Acceptance, outcome: Outcome
    ) -> None:
        """Store features and confidences of a cycle, where they are kept; called before `emit`."""
        self._keep_features(scores.features, acceptance.path, outcome.new_tokens)
        self.keep_confidences(tree, acceptance, outcome.new_tokens)

    def _keep_features(
        self, features: dict[str, Tensor], path: Tensor, new_tokens: list[list[int]]
    ) -> None:
        """Store `features` [B, N, F] of the root and the accepted nodes.

        They stand at the columns `path` [B, A], as many as there are new tokens.
        """
        if self._features is not None:
            for place, (row, tokens) in enumerate(zip(self.rows, new_tokens, strict=True)):
                columns = path[place, : len(tokens)]
                self._features[row].append(
                    {name: one[place, columns] for name, one in features.items()}
                )

    def keep_confidences(
        self, tree: DraftTree, acceptance: Acceptance, new_tokens: list[list[int]]
    ) -> None:
        """Store confidence and acceptance of every node that was judged.

        After a cut nothing was judged; a tree without scores has no confidences.
        """
        confidences = tree.confidences() if self._keep_confidences else None
        if confidences is None:
            return
        emitted = [
            len(self._cut(self.generations[row], tokens)[0])
            for row, tokens in zip(self.rows, new_tokens, strict=True)
        ]
        reached = tree.depths <= torch.tensor(emitted, device=tree.depths.device)[:, None]
        accepted = torch.zeros_like(tree.valid).scatter(1, acceptance.path, True)
        judged = tree.candidates & accepted.gather(1, tree.parents) & reached
        for place, row in enumerate(self.rows):
            of_row = judged[place]
            rounded = confidences[place, of_row].double().round(decimals=4)
            self.generations[row].draft_confidences += rounded.tolist()
            self.generations[row].draft_accepted += accepted[place, of_row].int().tolist()

    def finish(self, prefill_s: float, cycles: Sequence[CycleTime]) -> list[Generation]:
        """The generations, with joined features and every cycle charged to its rows."""
        for rows, time in zip(self._cycles, cycles, strict=True):
            for row in rows:
                generation = self.generations[row]
                generation.cycle_s.append(time.draft_s + time.verify_s + time.rest_s)
                generation.draft_s += time.draft_s
                generation.verify_s += time.verify_s
        for row, generation in enumerate(self.generations):
            generation.prefill_s = prefill_s
            generation.decode_s = sum(generation.cycle_s)
            if self._features is not None:
                length = len(generation.prompt_tokens) + len(generation.tokens) - 1
                parts = self._features[row]
                generation.features = {
                    name: torch.cat([part[name] for part in parts])[:length] for name in parts[0]
                }
        return self.generations


def _fill_gaps(places: list[int]) -> list[int]:
    """Ascending places, reordered so that all below their number stay where they are.

    [0, 2, 3, 5] -> [0, 5, 2, 3]
    """
    staying = set(places)
    movers = [place for place in places if place >= len(places)]
    return [place if place in staying else movers.pop() for place in range(len(places))]
