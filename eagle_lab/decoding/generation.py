"""What a row of a batch produced, and the record that fills it cycle by cycle.

Output is cut here, at the first end-of-sequence id and at the token limit, before anything else
sees it: tokens behind the cut are not output, not counted and not timed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from eagle_lab.tree.draft_tree import DraftTree
from eagle_lab.verify import Acceptance


@dataclass
class Generation:
    """One row's output.

    Attributes:
        prompt_tokens: the prompt.
        tokens: emitted tokens; the first comes from the prefill, an end-of-sequence id is the
            last one if there is any.
        accepted_lengths: drafted tokens accepted and emitted, per cycle.
        emitted_lengths: tokens emitted per cycle, the target's own included; their mean is tau.
        num_drafted: drafted nodes verified, summed over the cycles.
        prefill_s: seconds of the batch's prefill, the proposer's own and the first token included.
        decode_s: seconds from there until this row ended.
        cycle_s: seconds of each cycle of this row.
        draft_s: seconds of drafting (proposing and observing), summed over its cycles.
        verify_s: seconds of target passes, summed over its cycles.
        finished_by: "eos" or "length".
        features: [T, F] target features of all tokens but the last, if they were asked for.
        draft_confidences: if they were asked for, the drafter's probability of each drafted token
            that the target judged, behind its parent: tokens whose parent was accepted and whose
            place the text reached, cycle by cycle.
        draft_accepted: 1 for each of them that was accepted, 0 for the others.
    """

    prompt_tokens: list[int]
    tokens: list[int] = field(default_factory=list)
    accepted_lengths: list[int] = field(default_factory=list)
    emitted_lengths: list[int] = field(default_factory=list)
    num_drafted: int = 0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    cycle_s: list[float] = field(default_factory=list)
    draft_s: float = 0.0
    verify_s: float = 0.0
    finished_by: str = ""
    features: Tensor | None = None
    draft_confidences: list[float] = field(default_factory=list)
    draft_accepted: list[int] = field(default_factory=list)


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
        self._max_new_tokens = max_new_tokens
        self._eos_ids = eos_ids
        self._on_tokens = on_tokens
        self._keep_confidences = keep_confidences
        self._features: list[list[Tensor]] | None = [[] for _ in prompts] if keep_features else None

    def emit(self, new_tokens: list[list[int]], num_nodes: list[int] | None) -> list[int]:
        """Add one cycle's tokens, cut them, and let finished rows go.

        Args:
            new_tokens: of the rows under way, the accepted ones and the target's own.
            num_nodes: nodes verified in this cycle in each row; None for the first token, which
                belongs to the prefill and to no cycle.

        Returns:
            Places, among the rows so far, of those that go on, in their new order: the last ones
            fill the gaps, so that few rows of a large state move.
        """
        going_on = []
        for place, row in enumerate(self.rows):
            generation = self.generations[row]
            emitted, generation.finished_by = self._cut(generation, new_tokens[place])
            generation.tokens += emitted
            if num_nodes is not None:
                generation.emitted_lengths.append(len(emitted))
                generation.accepted_lengths.append(min(len(new_tokens[place]) - 1, len(emitted)))
                generation.num_drafted += num_nodes[place]
            if self._on_tokens is not None:
                self._on_tokens(row, emitted)
            if not generation.finished_by:
                going_on.append(place)
        going_on = _gaps_filled(going_on)
        self.rows = [self.rows[place] for place in going_on]
        return going_on

    def _cut(self, generation: Generation, tokens: list[int]) -> tuple[list[int], str]:
        """The tokens that are output, and why the row ends with them ("" if it goes on)."""
        room = self._max_new_tokens - len(generation.tokens)
        for place, token in enumerate(tokens[:room]):
            if token in self._eos_ids:
                return tokens[: place + 1], "eos"
        return tokens[:room], "length" if len(tokens) >= room else ""

    def keep_prompt_features(self, features: Tensor) -> None:
        """Store `features` [B, T, F] of the prompts."""
        if self._features is not None:
            for kept, prompt, row in zip(self._features, self._prompts(), features, strict=True):
                kept.append(row[: len(prompt)].clone())

    def keep_features(self, features: Tensor, path: Tensor, new_tokens: list[list[int]]) -> None:
        """Store `features` [B, N, F] of the root and the accepted nodes of the rows under way.

        They stand at the columns `path` [B, A], as many as there are new tokens.
        """
        if self._features is not None:
            for place, (row, tokens) in enumerate(zip(self.rows, new_tokens, strict=True)):
                self._features[row].append(features[place, path[place, : len(tokens)]])

    def keep_confidences(
        self, tree: DraftTree, acceptance: Acceptance, new_tokens: list[list[int]]
    ) -> None:
        """Store confidence and fate of every node that was judged, of the rows under way.

        Called before `emit`. Behind a cut nothing was judged; a tree without scores has no
        confidences.
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

    def _prompts(self) -> list[list[int]]:
        return [generation.prompt_tokens for generation in self.generations]

    def time_cycle(
        self, rows: Sequence[int], draft_s: float, verify_s: float, rest_s: float
    ) -> None:
        """Charge one cycle to the rows that took part in it."""
        for row in rows:
            generation = self.generations[row]
            generation.cycle_s.append(draft_s + verify_s + rest_s)
            generation.draft_s += draft_s
            generation.verify_s += verify_s

    def finish(self, prefill_s: float) -> list[Generation]:
        """The generations, with sums of time and joined features."""
        for row, generation in enumerate(self.generations):
            generation.prefill_s = prefill_s
            generation.decode_s = sum(generation.cycle_s)
            if self._features is not None:
                length = len(generation.prompt_tokens) + len(generation.tokens) - 1
                generation.features = torch.cat(self._features[row])[:length]
        return self.generations


def _gaps_filled(places: list[int]) -> list[int]:
    """Ascending places, reordered so that all below their number stay where they are.

    [0, 2, 3, 5] -> [0, 5, 2, 3]
    """
    staying = set(places)
    movers = [place for place in places if place >= len(places)]
    return [place if place in staying else movers.pop() for place in range(len(places))]
