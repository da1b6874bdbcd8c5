"""Suffix matching: copy what followed the longest suffix of the context that stood there before.

Unlike an n-gram, the match may be of any length, and the draft grows with it: a long match is
seldom a coincidence (SuffixDecoding, 2411.04975, section 3). A suffix automaton per row knows the
longest match at every token. Copies are point-mass proposals, hence lossless.

A suffix automaton that grows token by token, in amortised constant time per token.

Its states are classes of substrings of the text that end at the same places; a state's link is
the longest suffix of its strings that ends at more places. So the link of the state that stands
for the whole text is the longest suffix that occurs earlier, with no search at all
(Blumer et al. 1985, The smallest automaton recognizing the subwords of a text).

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


class Cursor:
    """Follows another text through an automaton: its longest suffix that occurs there.

    The automaton must not grow meanwhile.
    """

    def __init__(self, automaton: SuffixAutomaton):
        self.automaton = automaton
        self._state, self._matched = _START, 0

    def append(self, token: int) -> None:
        """Read the text's next token, in amortised constant time."""
        inner = self.automaton
        while self._state != _START and token not in inner._next[self._state]:
            self._state = inner._link[self._state]
            self._matched = inner._length[self._state]
        if token in inner._next[self._state]:
            self._state = inner._next[self._state][token]
            self._matched += 1

    def longest_match(self) -> Match:
        """The longest suffix of what was read that occurs in the automaton's text."""
        return self.automaton._match(self._state, self._matched)


_END_OF_ANSWER = -1  # between the texts of one automaton; no token has this id


@dataclass(frozen=True)
class Copy:
    """A branch copied after a match.

    Attributes:
        tokens: the branch, empty if there is no match.
        match_length: tokens of the context that it continues.
    """

    tokens: list[int]
    match_length: int


class _Row:
    """What is known of one row: its own text, and how it stands in the earlier answers."""

    def __init__(self, num_prompt_tokens: int, answers: SuffixAutomaton):
        self.num_prompt_tokens = num_prompt_tokens
        self.text = SuffixAutomaton()
        self.cursor = Cursor(answers)

    def read(self, tokens: Sequence[int]) -> None:
        """Take in what is new of the row's tokens."""
        for token in tokens[len(self.text.tokens) :]:
            self.text.append(token)
            self.cursor.append(token)

    def copy(self, n_min: int, num_draft_tokens: int, tokens_per_match: float) -> Copy:
        """What followed the longest match; the row's own text is preferred to earlier answers."""
        own, earlier = self.text.longest_repeat(), self.cursor.longest_match()
        length = max(own.length, earlier.length)
        if length < n_min:
            return Copy([], length)
        count = min(num_draft_tokens, int(length * tokens_per_match))
        if own.length == length:
            # A copy that runs into the end of the text goes on with itself: a loop goes on looping.
            following = cycle(self.text.tokens[own.end + 1 :])
            return Copy(list(islice(following, count)), length)
        start = earlier.end + 1
        found = self.cursor.automaton.tokens[start : start + count]
        if _END_OF_ANSWER in found:
            found = found[: found.index(_END_OF_ANSWER)]
        return Copy(found, length)


class SuffixCopier:
    """Copied branches for the rows under way.

    Args:
        n_min: shortest match that is continued.
        num_draft_tokens: most tokens of a branch.
        tokens_per_match: tokens of a branch per matched token.
        earlier_answers: also copy from the answers that this object saw in earlier batches. Rows
            of one batch never see each other, so what is accepted does not depend on neighbours.

    Raises:
        UserError: unless n_min >= 1, num_draft_tokens >= 1 and n_min * tokens_per_match >= 1.
    """

    def __init__(
        self, n_min: int, num_draft_tokens: int, tokens_per_match: float, earlier_answers: bool
    ):
        if n_min < 1 or num_draft_tokens < 1 or n_min * tokens_per_match < 1:
            raise UserError(
                f"n_min={n_min}, num_draft_tokens={num_draft_tokens}, tokens_per_match="
                f"{tokens_per_match}; n_min, num_draft_tokens and n_min * tokens_per_match must "
                "be at least 1"
            )
        self.n_min, self.num_draft_tokens = n_min, num_draft_tokens
        self.tokens_per_match, self.earlier_answers = tokens_per_match, earlier_answers
        self._answers = SuffixAutomaton()
        self._finished: list[list[int]] = []
        self._rows: list[_Row] = []

    def begin(self, context: Context) -> None:
        """Read new rows; answers that finished until now become earlier ones."""
        for answer in self._finished:
            for token in (*answer, _END_OF_ANSWER):
                self._answers.append(token)
        self._finished = []
        self._rows = [_Row(len(tokens) - 1, self._answers) for tokens in context.tokens]
        self._read(context)

    def forget(self) -> None:
        """Forget all earlier answers, those of the rows under way included."""
        self._answers = SuffixAutomaton()
        self._finished, self._rows = [], []

    def copies(self, context: Context) -> list[Copy]:
        """A branch for each row, possibly empty."""
        self._read(context)
        sizes = (self.n_min, self.num_draft_tokens, self.tokens_per_match)
        return [row.copy(*sizes) for row in self._rows]

    def _read(self, context: Context) -> None:
        for row, tokens in zip(self._rows, context.tokens, strict=True):
            row.read(tokens)

    def select(self, rows: Sequence[int]) -> None:
        """Keep only the chosen rows; the others' answers are finished, but for their last cycle."""
        if self.earlier_answers:
            for place in sorted(set(range(len(self._rows))) - set(rows)):
                dropped = self._rows[place]
                self._finished.append(dropped.text.tokens[dropped.num_prompt_tokens :])
        self._rows = [self._rows[row] for row in rows]


class Suffix(Proposer):
    """Copies a branch that grows with the length of the match; see `SuffixCopier`."""

    def __init__(
        self,
        *,
        n_min: int = 1,
        num_draft_tokens: int = 16,
        tokens_per_match: float = 2.0,
        earlier_answers: bool = False,
    ):
        self.copier = SuffixCopier(n_min, num_draft_tokens, tokens_per_match, earlier_answers)
        self.max_nodes, self.remembers_answers = num_draft_tokens, earlier_answers

    def begin(self, context: Context, features: dict[str, Tensor]) -> None:
        """Forget the rows before, remember their answers if asked to."""
        self.copier.begin(context)

    def forget(self) -> None:
        """Forget the answers of earlier batches."""
        self.copier.forget()

    def propose(self, context: Context) -> DraftTree:
        """A chain per row, none where nothing matches."""
        copies = self.copier.copies(context)
        return DraftTree.from_branches(context.roots, [[copy.tokens] for copy in copies])

    def select(self, rows: Sequence[int]) -> None:
        """Keep only the chosen rows."""
        self.copier.select(rows)
