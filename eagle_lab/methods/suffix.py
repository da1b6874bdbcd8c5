"""Suffix matching: copy what followed the longest suffix of the context that stood there before.

Unlike an n-gram, the match may be of any length, and the draft grows with it: a long match is
seldom a coincidence (SuffixDecoding, 2411.04975, section 3). Copies are point-mass proposals, hence
lossless. A suffix automaton per row grows token by token, in amortized constant time, and knows the
longest match at every token (Blumer et al. 1985, The smallest automaton recognizing the subwords of
a text): its states are classes of substrings that end at the same places, a state's link is the
longest suffix that ends at more places, so the whole text's link is its longest repeat.

    text   a b c a b      longest repeat  a b, its earlier occurrence ends at place 1
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, islice

from torch import Tensor

from eagle_lab.engine.draft_tree import DraftTree
from eagle_lab.engine.proposer import Context, Proposer
from eagle_lab.errors import UserError

_START = 0


@dataclass(frozen=True)
class Match:
    """A suffix found in a text.

    Attributes:
        length: tokens matched.
        end: place of the last of them in the text; what follows it is worth copying.
    """

    length: int
    end: int


NO_MATCH = Match(0, -1)


class SuffixAutomaton:
    """All substrings of `tokens`, which only `append` changes."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self._next: list[dict[int, int]] = [{}]
        self._link = [-1]
        self._length = [0]  # of the longest string of each state
        self._end = [-1]  # where a state's strings occur: at the latest place known to be so
        self._last = _START
        self._repeat = NO_MATCH

    def append(self, token: int) -> None:
        """Add one token to the text."""
        place = len(self.tokens)
        self.tokens.append(token)
        new = self._add_state({}, _START, self._length[self._last] + 1, place)
        state = self._last
        while state != -1 and token not in self._next[state]:
            self._next[state][token] = new
            state = self._link[state]
        if state != -1:
            self._link[new] = self._state_of(state, token)
        self._last = new
        repeated = self._link[new]
        self._repeat = self._match(repeated, self._length[repeated])
        self._end[repeated] = place

    def _state_of(self, state: int, token: int) -> int:
        """The state of `state`'s longest string and `token`, split off where it shares one."""
        following = self._next[state][token]
        length = self._length[state] + 1
        if self._length[following] == length:
            return following
        clone = self._add_state(
            dict(self._next[following]), self._link[following], length, self._end[following]
        )
        self._link[following] = clone
        while state != -1 and self._next[state].get(token) == following:
            self._next[state][token] = clone
            state = self._link[state]
        return clone

    def _add_state(self, following: dict[int, int], link: int, length: int, end: int) -> int:
        self._next.append(following)
        self._link.append(link)
        self._length.append(length)
        self._end.append(end)
        return len(self._next) - 1

    def longest_repeat(self) -> Match:
        """The longest suffix of the text that also ends earlier, and where it does.

        Of several places it is the one where it was last the longest repeat, else the first.
        """
        return self._repeat

    def _match(self, state: int, length: int) -> Match:
        return Match(length, self._end[state]) if length else NO_MATCH


@dataclass(frozen=True)
class Copy:
    """A branch copied after a match.

    Attributes:
        tokens: the branch, empty if there is no match.
        match_length: tokens of the context that it continues.
    """

    tokens: list[int]
    match_length: int


class SuffixCopier:
    """Copied branches for the rows under way.

    Args:
        n_min: shortest match that is continued.
        num_draft_tokens: most tokens of a branch.
        tokens_per_match: tokens of a branch per matched token.

    Raises:
        UserError: unless n_min >= 1, num_draft_tokens >= 1 and n_min * tokens_per_match >= 1.
    """

    def __init__(self, n_min: int, num_draft_tokens: int, tokens_per_match: float = 2.0):
        if n_min < 1 or num_draft_tokens < 1 or n_min * tokens_per_match < 1:
            raise UserError(
                f"n_min={n_min}, num_draft_tokens={num_draft_tokens}, tokens_per_match="
                f"{tokens_per_match}; n_min, num_draft_tokens and n_min * tokens_per_match must "
                "be at least 1"
            )
        self.n_min, self.num_draft_tokens = n_min, num_draft_tokens
        self.tokens_per_match = tokens_per_match
        self._rows: list[SuffixAutomaton] = []

    def begin(self, context: Context) -> None:
        """Read new rows."""
        self._rows = [SuffixAutomaton() for _ in context.tokens]
        self._read(context)

    def copies(self, context: Context) -> list[Copy]:
        """A branch for each row, possibly empty."""
        self._read(context)
        return [self._copy(row) for row in self._rows]

    def select(self, rows: Sequence[int]) -> None:
        """Keep only the chosen rows."""
        self._rows = [self._rows[row] for row in rows]

    def _read(self, context: Context) -> None:
        for row, tokens in zip(self._rows, context.tokens, strict=True):
            for token in tokens[len(row.tokens) :]:
                row.append(token)

    def _copy(self, row: SuffixAutomaton) -> Copy:
        match = row.longest_repeat()
        if match.length < self.n_min:
            return Copy([], match.length)
        count = min(self.num_draft_tokens, int(match.length * self.tokens_per_match))
        # A copy that runs into the end of the text goes on with itself: a loop goes on looping
        following = cycle(row.tokens[match.end + 1 :])
        return Copy(list(islice(following, count)), match.length)


class Suffix(Proposer):
    """Copies a branch that grows with the length of the match; see `SuffixCopier`."""

    def __init__(
        self,
        *,
        n_min: int = 1,
        num_draft_tokens: int = 16,
        tokens_per_match: float = 2.0,
    ):
        """Raises what `SuffixCopier` does."""
        self.copier = SuffixCopier(n_min, num_draft_tokens, tokens_per_match)
        self.max_nodes = num_draft_tokens

    def begin(self, context: Context, features: dict[str, Tensor]) -> None:
        """Read the prompts."""
        self.copier.begin(context)

    def propose(self, context: Context) -> DraftTree:
        """A chain per row, none where nothing matches."""
        copies = self.copier.copies(context)
        return DraftTree.from_branches(context.roots, [[copy.tokens] for copy in copies])

    def select(self, rows: Sequence[int]) -> None:
        """Keep only the chosen rows."""
        self.copier.select(rows)
