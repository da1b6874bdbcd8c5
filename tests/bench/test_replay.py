"""A replay accepts what the real target accepts, cycle for cycle, without running it."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from eagle_lab.bench.replay import Replay
from eagle_lab.bench.results import evaluate
from eagle_lab.bench.runner import Bench
from eagle_lab.bench.settings import BenchSettings
from eagle_lab.engine.loop import decode
from eagle_lab.engine.sampling import Sampling
from eagle_lab.errors import UserError
from eagle_lab.methods.build import Method
from eagle_lab.methods.draft_model import SelfSpeculation
from eagle_lab.methods.eagle import EagleChain
from eagle_lab.methods.eagle_trees import EagleDynamic
from eagle_lab.methods.lookahead import Lookahead
from eagle_lab.methods.prompt_lookup import PromptLookup
from eagle_lab.methods.vanilla import Vanilla
from tests.bench.fakes import QUESTIONS, tiny_target, vanilla
from tests.bench.profile.test_overhead import untrained

SETTINGS = BenchSettings(max_new_tokens=24, timing=False, batch_size=3)
COUNTED = ("tokens", "accepted_lengths", "emitted_lengths", "num_drafted", "finished_by")


def methods_of(target):
    drafter = untrained(target)
    tree = EagleDynamic(target, drafter, depth=3, width=3, num_nodes=7)
    return [
        vanilla(),
        Method("eagle_chain", EagleChain(target, drafter, num_draft_tokens=3), num_nodes=3),
        Method("eagle_dynamic", tree, depth=3, width=3, num_nodes=7),
        Method("prompt_lookup", PromptLookup(), num_nodes=10),
        Method("self_speculation", SelfSpeculation(target, num_draft_tokens=4), num_nodes=4),
    ]


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.8, top_p=0.9)])
@pytest.mark.parametrize("with_end", [False, True])
def test_a_replayed_bench_counts_what_the_real_one_counts(with_end, sampling, monkeypatch):
    """Ragged batches whose rows end at different times, by length and by an end token.

    Above temperature 0 the chains are drawn, and decoded for real in both.
    """
    target = tiny_target()
    if with_end:
        [first] = decode(target, Vanilla(), [[5, 6, 7]], max_new_tokens=8)
        monkeypatch.setattr(target, "eos_ids", frozenset(first.tokens[3:5]))
    settings = dataclasses.replace(SETTINGS, sampling=sampling)
    real = Bench(target, methods_of(target), QUESTIONS, settings).run()
    settings = dataclasses.replace(settings, replay=True)
    replayed = Bench(target, methods_of(target), QUESTIONS, settings).run()
    assert len(real) == len(replayed) > 0
    for one, other in zip(real, replayed, strict=True):
        assert {key: one[key] for key in COUNTED} == {key: other[key] for key in COUNTED}
    assert max(max(row["accepted_lengths"], default=0) for row in replayed) >= 4


def test_the_target_answers_each_batch_once(monkeypatch):
    target, calls = tiny_target(), []
    score = target.score
    monkeypatch.setattr(target, "score", lambda *given: calls.append(1) or score(*given))
    settings = dataclasses.replace(SETTINGS, replay=True, turns=1, batch_size=len(QUESTIONS))
    rows = Bench(target, methods_of(target), QUESTIONS, settings).run()
    longest = max(len(row["tokens"]) for row in rows)
    assert len(calls) == longest - 1


def test_methods_that_read_other_scores_are_decoded(monkeypatch):
    target = tiny_target()
    real = Bench(target, [vanilla(), Method("lookahead", Lookahead())], QUESTIONS, SETTINGS)
    settings = dataclasses.replace(SETTINGS, replay=True)
    bench = Bench(target, [vanilla(), Method("lookahead", Lookahead())], QUESTIONS, settings)
    counted = [[row["accepted_lengths"] for row in one.run()] for one in (real, bench)]
    assert counted[0] == counted[1]


def test_features_and_tokens_are_the_recorded_ones():
    target = tiny_target()
    prompts = [[5, 6, 7], [9, 8, 7, 6, 5]]
    answers = decode(target, Vanilla(), prompts, max_new_tokens=6, keep_features=True)
    replay = Replay(target, answers)
    again = decode(replay, Vanilla(), prompts, max_new_tokens=6, keep_features=True)
    for answer, copy in zip(answers, again, strict=True):
        assert answer.tokens == copy.tokens
        assert torch.equal(answer.features["top"], copy.features["top"])


def test_nothing_is_said_about_equality():
    target = tiny_target()
    settings = dataclasses.replace(SETTINGS, replay=True)
    methods = methods_of(target)
    results = evaluate(target, methods, Bench(target, methods, QUESTIONS, settings).run(), settings)
    assert {line["greedy_match_rate"] for line in results.summary} == {None}
    assert results.noise is None


def test_drawn_children_are_refused():
    target = tiny_target()
    prompts = [[5, 6, 7]]
    answers = decode(target, Vanilla(), prompts, max_new_tokens=6, keep_features=True)
    drawing = EagleChain(target, untrained(target), num_draft_tokens=2)
    with pytest.raises(ValueError, match="drawn"):
        decode(Replay(target, answers), drawing, prompts, sampling=Sampling(temperature=1.0))


def test_timings_are_refused():
    with pytest.raises(UserError, match=r"eval\.replay=true"):
        BenchSettings(timing=True, replay=True)
