"""What is neither target nor drafter counts as overhead, and nothing stays wrapped."""

from __future__ import annotations

import time

import pytest

from eagle_lab.bench.profile import overhead
from eagle_lab.bench.profile.overhead import measure_overhead
from eagle_lab.columns import OVERHEAD, csv_names
from eagle_lab.drafters.eagle1.network import Eagle1
from eagle_lab.engine.clock import Clock
from eagle_lab.engine.draft_tree import DraftTree
from eagle_lab.engine.proposer import Context
from eagle_lab.methods.build import Method
from eagle_lab.methods.draft_model import SelfSpeculation, Speculative
from eagle_lab.methods.eagle import EagleChain
from eagle_lab.methods.eagle_trees import EagleDynamic
from eagle_lab.methods.hybrid import Hybrid
from eagle_lab.methods.vanilla import Vanilla
from eagle_lab.targets.cuda.graphs import VerifyGraphs
from eagle_lab.targets.target import Target
from tests.bench.fakes import tiny_target
from tests.drafters.fakes import eagle1
from tests.methods.draft_models import noisy_copy
from tests.targets.test_graphs import CallCapture

PROMPTS = [[5, 9, 200], [7, 8]]
SLEEP = 0.02


class Slow(Vanilla):
    """Takes its time outside the models; `time.sleep` never returns early."""

    def propose(self, context: Context) -> DraftTree:
        time.sleep(SLEEP)
        return super().propose(context)


def test_time_spent_drafting_without_a_model_is_overhead():
    row = measure_overhead(tiny_target(), Method("slow", Slow()), PROMPTS, max_new_tokens=6)
    assert set(row) == set(csv_names(OVERHEAD))
    assert (row["num_cycles"], row["batch_size"]) == (5, 2)
    assert row["overhead_low_ms"] >= 1000 * SLEEP
    assert row["cycle_ms"] >= row["models_ms"] > 0


def untrained(target: Target) -> Eagle1:
    return eagle1(target)


def test_time_spent_in_the_models_is_not(monkeypatch: pytest.MonkeyPatch):
    """Neither in the target, a draft model, nor the drafter of a hybrid; counted once."""
    target = tiny_target()
    model, drafter = noisy_copy(target), untrained(target)
    slow = ((model, "extend"), (drafter, "forward"), (target, "extend"), (target, "score"))
    for owner, name in slow:
        monkeypatch.setattr(owner, name, slowed(getattr(owner, name)))
    for proposer in (
        Vanilla(),
        Speculative(target, draft_model=model, num_draft_tokens=2),
        Hybrid(target, drafter, depth=2, width=2, num_nodes=4, alone_from=99),
        SelfSpeculation(target, num_draft_tokens=2),
    ):
        row = measure_overhead(target, Method("slow", proposer), PROMPTS[:1], max_new_tokens=8)
        assert row["num_cycles"] > 0
        assert row["cycle_ms"] >= row["models_ms"] >= 1000 * SLEEP


def slowed(call):
    def slow(*arguments):
        time.sleep(SLEEP)
        return call(*arguments)

    return slow


def test_drafter_passes_are_the_models_and_everything_is_unwrapped():
    target = tiny_target()
    drafter = untrained(target)
    calls = []
    drafter.register_forward_hook(lambda *_: calls.append(1))
    proposer = EagleChain(target, drafter, num_draft_tokens=2)
    wrapped = ((target, "score"), (target, "extend"), (drafter, "forward"), (proposer, "propose"))
    own = [vars(owner).get(name) for owner, name in wrapped]
    row = measure_overhead(target, Method("chain", proposer), PROMPTS, max_new_tokens=6)
    assert row["num_cycles"] > 0
    assert len(calls) > row["num_cycles"]
    assert [vars(owner).get(name) for owner, name in wrapped] == own


class SlowCapture(CallCapture):
    """Records for a long time, in which nothing may wait for the device."""

    capturing = False

    def __call__(self, work):
        SlowCapture.capturing = True
        time.sleep(10 * SLEEP)
        replay = super().__call__(work)
        SlowCapture.capturing = False
        return replay


class WatchedClock(Clock):
    """On CUDA every lap waits for the device."""

    def lap(self) -> float:
        assert not SlowCapture.capturing
        return super().lap()


@pytest.mark.parametrize("name", ["chain", "tree", "hybrid"])
def test_drafts_from_graphs_are_the_models(monkeypatch: pytest.MonkeyPatch, name: str):
    """And no time includes their capture."""
    monkeypatch.setattr(overhead, "Clock", WatchedClock)
    target = tiny_target()
    monkeypatch.setattr(target, "graphs", VerifyGraphs(target, SlowCapture()))
    drafter = untrained(target)
    monkeypatch.setattr(drafter, "forward", slowed(drafter.forward))
    sizes = {"depth": 2, "width": 2, "num_nodes": 4}
    proposer = {
        "chain": lambda: EagleChain(target, drafter, num_draft_tokens=2),
        "tree": lambda: EagleDynamic(target, drafter, **sizes),
        "hybrid": lambda: Hybrid(target, drafter, **sizes, alone_from=99),
    }[name]()
    row = measure_overhead(target, Method(name, proposer), PROMPTS[:1], max_new_tokens=4)
    assert target.graphs.capture.num_replays > 0
    assert 1000 * SLEEP <= row["models_ms"] <= row["cycle_ms"] < 10 * 1000 * SLEEP
    assert row["overhead_ms"] < 1000 * SLEEP


def test_an_answer_of_one_token_has_no_cycle():
    row = measure_overhead(tiny_target(), Method("vanilla", Vanilla()), PROMPTS, max_new_tokens=1)
    assert (row["num_cycles"], row["overhead_ms"]) == (0, None)
