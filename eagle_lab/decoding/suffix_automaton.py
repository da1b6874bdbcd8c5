"""A suffix automaton that grows token by token, in amortised constant time per token.

Its states are classes of substrings of the text that end at the same places; a state's link is
the longest suffix of its strings that ends at more places. So the link of the state that stands
for the whole text is the longest suffix that occurs earlier, with no search at all
(Blumer et al. 1985, The smallest automaton recognizing the subwords of a text).

    text   a b c a b      longest repeat  a b, its earlier occurrence ends at place 1
"""

from __future__ import annotations

from dataclasses import dataclass

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
