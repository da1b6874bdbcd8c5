"""Hybrid: which draft a row gets follows from its match alone."""

import functools

import pytest

from eagle_lab.engine.loop import decode
from eagle_lab.errors import UserError
from eagle_lab.methods.eagle_trees import EagleDynamic
from eagle_lab.methods.hybrid import Hybrid
from eagle_lab.targets.target import Target
from eagle_lab.targets.tiny import tiny_random
from tests.drafters.fakes import eagle1
from tests.engine.paths import paths_of, prefixes

SIZES = {"depth": 3, "width": 3, "num_nodes": 9}
NO_MATCH, SHORT, LONG = [40, 41, 42], [20, 21, 50, 20], [30, 31, 32, 33, 34, 51, 30, 31, 32, 33]


@functools.cache
def target():
    return Target(*tiny_random("llama"))


@functools.cache
def drafter():
    return eagle1(target(), inner_norm=True)


class Recorded(Hybrid):
    """Keeps every cycle's tree, beside it the drafter's own and the copies."""

    def begin(self, context, features):
        super().begin(context, features)
        self.cycles = []

    def propose(self, context):
        tree = super().propose(context)
        self.cycles.append((tree, self.eagle.propose(context), self.copier.copies(context)))
        return tree


def test_each_row_gets_the_draft_of_its_match():
    """All three kinds, in one batch of rows of other kinds, are what the header says."""
    proposer = Recorded(target(), drafter(), **SIZES, n_min=1, alone_from=3)
    prompts = [NO_MATCH, SHORT * 2, LONG * 2, [20, 21, 20, 21, 20]]
    decode(target(), proposer, prompts, max_new_tokens=80)
    kinds, num_mixed = set(), 0
    for tree, drafted, copies in proposer.cycles:
        in_this_cycle = set()
        for row, copy in enumerate(copies):
            if copy.match_length == 0:
                kind, expected = "drafter", set(paths_of(drafted, row))
            elif copy.match_length < 3:
                kind, expected = "both", {*paths_of(drafted, row), *prefixes(copy.tokens)}
            else:
                kind, expected = "copy", prefixes(copy.tokens)
            assert set(paths_of(tree, row)) == expected
            assert int(tree.num_nodes()[row]) == len(expected)
            in_this_cycle.add(kind)
        kinds |= in_this_cycle
        num_mixed += len(in_this_cycle) > 1
    assert kinds == {"drafter", "both", "copy"}
    assert num_mixed > 0


def test_the_drafter_rests_while_every_row_copies(monkeypatch):
    proposer = Hybrid(target(), drafter(), **SIZES, n_min=1, alone_from=1)
    calls = []
    original = EagleDynamic.propose

    def counted(self, context):
        calls.append(context)
        return original(self, context)

    monkeypatch.setattr(EagleDynamic, "propose", counted)
    prompt = list(range(5, 300)) * 2  # every token has been there
    row = decode(target(), proposer, [prompt], max_new_tokens=30)[0]
    assert calls == []
    assert row.num_drafted > 0


def test_settings_that_cannot_be_are_refused():
    with pytest.raises(UserError, match="alone_from=1.*n_min=2"):
        Hybrid(target(), drafter(), **SIZES, alone_from=1)
