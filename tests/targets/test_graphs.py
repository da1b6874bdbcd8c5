"""Captured passes equal plain ones, whatever was captured before.

On a CPU `CallCapture` stands in for CUDA graphs: it too repeats the same work on the same tensors,
whose contents are all that may change, and its outputs are overwritten by the next replay.
"""

from __future__ import annotations

import gc
import weakref
from collections import Counter
from types import SimpleNamespace

import pytest
import torch

from eagle_lab.engine.draft_tree import DraftTree
from eagle_lab.engine.loop import decode
from eagle_lab.methods.draft_model import Speculative, open_draft_model
from eagle_lab.methods.vanilla import Vanilla
from eagle_lab.targets.cuda.graphs import (
    CacheGraphs,
    CaptureFailed,
    CudaGraphCapture,
    VerifyGraphs,
    column_bucket,
    no_graphs_reason,
    row_bucket,
    slot_bucket,
)
from eagle_lab.targets.target import Target
from eagle_lab.targets.tiny import tiny_random
from tests.engine.test_host_syncs import HostSyncs
from tests.methods.test_contract import METHODS as CONTRACT
from tests.methods.test_contract import PROMPTS

ARCHITECTURES = ("llama", "mistral", "gemma2")
METHODS = CONTRACT | {
    "vanilla": lambda target: Vanilla(),
    "speculative": lambda target: Speculative(
        target, draft_model=open_draft_model("tiny_random", target), num_draft_tokens=3
    ),
}
NAMES = (
    *("vanilla", "prompt_lookup", "suffix", "self_speculation", "speculative"),
    *("eagle_chain", "eagle_static", "eagle_dynamic"),
)


class CallCapture:
    """Replays by calling again."""

    def __init__(self):
        self.num_replays = 0

    def __call__(self, work):
        work()

        def replay():
            self.num_replays += 1
            work()

        return replay


def refuse(work):
    raise CaptureFailed("operation not permitted when stream is capturing")


def graphed(architecture: str = "llama", capture=None) -> Target:
    target = Target(*tiny_random(architecture))
    target.graphs = VerifyGraphs(target, capture or CallCapture())
    return target


def test_buckets_hold_what_they_are_for_and_waste_little():
    for count in range(1, 5000):
        assert count <= slot_bucket(count) <= max(256, 1.25 * count)
        assert slot_bucket(count) % 64 == 0  # memory-aligned masks
        assert count <= row_bucket(count) < 2 * count
        assert count <= column_bucket(count) < count + 8
    assert len({slot_bucket(count) for count in range(1, 4097)}) == 17
    assert [column_bucket(n) for n in (1, 2, 3, 5, 8, 26, 60)] == [1, 2, 4, 8, 8, 32, 64]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@torch.no_grad()
def test_a_padded_and_bucketed_pass_equals_the_plain_one(architecture):
    """Ragged rows, trees that are no bucket's size, and graphs that served larger ones."""
    plain, ours = Target(*tiny_random(architecture)), graphed(architecture)
    branches = [[[5, 6, 7], [5, 8], [9]], [[4]], [[1, 2], [3, 4, 5, 6, 7]]]
    for prompts in (PROMPTS[:3], PROMPTS[3:], [[7]]):
        caches = plain.new_cache(len(prompts)), ours.new_cache(len(prompts))
        for target, cache in zip((plain, ours), caches, strict=True):
            target.prefill(prompts, cache)
        for first in range(3):
            roots = torch.arange(20, 20 + len(prompts))
            rows = [branches[(first + row) % 3] for row in range(len(prompts))]
            tree = DraftTree.from_branches(roots, rows)
            expected, scores = (
                target.score(tree, cache)
                for target, cache in zip((plain, ours), caches, strict=True)
            )
            parts = [
                (each.logits[tree.valid], each.features["top"][tree.valid])
                for each in (scores, expected)
            ]
            torch.testing.assert_close(*parts, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_decoding_from_graphs_equals_plain_vanilla_and_accepts_as_much(name):
    """In ragged batches whose rows finish one by one, twice over, and alone."""
    plain, ours = Target(*tiny_random()), graphed()
    ours.eos_ids = plain.eos_ids = frozenset({2, 97, 111})
    proposer = METHODS[name](ours)
    expected = [decode(plain, Vanilla(), [prompt], max_new_tokens=24)[0] for prompt in PROMPTS]
    launched = decode(plain, METHODS[name](plain), PROMPTS, max_new_tokens=24)
    for step in (1, -1):
        rows = decode(ours, proposer, PROMPTS[::step], max_new_tokens=24)[::step]
        assert [row.tokens for row in rows] == [answer.tokens for answer in expected]
        accepted = [row.accepted_lengths for row in rows]
        assert accepted == [row.accepted_lengths for row in launched]
    for prompt, answer in zip(PROMPTS, expected, strict=True):
        assert decode(ours, proposer, [prompt], max_new_tokens=24)[0].tokens == answer.tokens
    assert ours.graphs.capture.num_replays > 20


def test_draft_models_read_from_graphs_like_the_target():
    """All but the prompt: a replay for each cycle of the target and each drafted token."""
    target = graphed()
    proposer = METHODS["speculative"](target)
    extended = []
    model = proposer.model.model
    extend, model.extend = model.extend, lambda *inputs: extended.append(1) or extend(*inputs)
    (row,) = decode(target, proposer, [PROMPTS[3]], max_new_tokens=13)
    assert len(extended) == 1
    num_passes = len(row.emitted_lengths) + row.num_drafted
    assert target.graphs.capture.num_replays == num_passes > 8


def test_graphs_are_captured_once_and_serve_later_texts():
    target = graphed()
    decode(target, Vanilla(), [PROMPTS[0]], max_new_tokens=8)
    before = CacheGraphs.num_captures
    decode(target, Vanilla(), [PROMPTS[3]], max_new_tokens=8)
    assert CacheGraphs.num_captures == before
    decode(target, Vanilla(), PROMPTS[:2], max_new_tokens=8)  # two rows: another bucket
    assert CacheGraphs.num_captures == before + 1


@torch.no_grad()
def test_features_that_are_named_after_a_capture_are_handed_out():
    plain, ours = Target(*tiny_random()), graphed()
    tree = DraftTree.root_only(torch.tensor([9]))
    for names in ([], ["fused"]):
        caches = []
        for target in (plain, ours):
            target.hand_out(names)
            caches.append(target.new_cache(1))
            target.prefill(PROMPTS[:1], caches[-1])
        expected, features = (
            target.score(tree, cache).features
            for target, cache in zip((plain, ours), caches, strict=True)
        )
        assert list(features) == ["top", *names]
        torch.testing.assert_close(features, expected, atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_two_caches_alive_do_not_share_memory():
    target = graphed()
    caches = [target.new_cache(1) for _ in range(2)]
    roots = torch.tensor([9])
    for cache, prompt in zip(caches, PROMPTS, strict=False):
        target.prefill([prompt], cache)
    first = [target.score(DraftTree.root_only(roots), cache).logits for cache in caches]
    again = [target.score(DraftTree.root_only(roots), cache).logits for cache in caches]
    assert caches[0].store.data_ptr() != caches[1].store.data_ptr()
    torch.testing.assert_close(first, again, atol=0, rtol=0)
    assert not torch.equal(first[0], first[1])


def test_a_text_that_outgrows_its_memory_goes_on():
    prompt = torch.randint(3, 300, (230,), generator=torch.Generator().manual_seed(0)).tolist()
    plain, ours = Target(*tiny_random()), graphed()
    expected = decode(plain, Vanilla(), [prompt], max_new_tokens=120)
    assert decode(ours, Vanilla(), [prompt], max_new_tokens=120)[0].tokens == expected[0].tokens


@torch.no_grad()
def test_all_that_a_graph_reads_lives_as_long_as_it():
    """A CUDA graph keeps addresses, not the call and its tensors; nor does this capture."""
    references = []

    def function(cache, *inputs):
        tensors = (cache.lengths, cache.store, cache._rows, *inputs)
        references.extend(map(weakref.ref, tensors))
        return (inputs[0] + 1,)

    def forgetful(work):
        work()
        return lambda: None

    target = Target(*tiny_random())
    cache = target.new_cache(3)
    target.prefill(PROMPTS[:3], cache)
    graphs = CacheGraphs(forgetful)
    graphs.run(function, cache, 1, torch.zeros(3, 1), torch.ones(3, 2))
    gc.collect()
    assert len(references) == 5
    assert all(reference() is not None for reference in references)


def test_after_a_failure_nothing_is_captured_any_more(monkeypatch):
    """A capture that failed leaves CUDA's allocator broken: one warning, whatever is decoded."""
    monkeypatch.setattr(CacheGraphs, "failed", False)
    expected = decode(Target(*tiny_random()), Vanilla(), [PROMPTS[0]], max_new_tokens=8)
    with pytest.warns(UserWarning, match="not permitted") as warnings:
        rows = decode(graphed(capture=refuse), Vanilla(), [PROMPTS[0]], max_new_tokens=8)
    assert len(warnings) == 1
    later = graphed()
    again = decode(later, METHODS["eagle_dynamic"](later), [PROMPTS[0]], max_new_tokens=8)
    assert later.graphs.capture.num_replays == 0
    assert rows[0].tokens == again[0].tokens == expected[0].tokens


@pytest.mark.parametrize(
    ("rope", "words"),
    [
        ({"rope_type": "llama3", "factor": 8.0}, None),
        ({"rope_type": "longrope"}, "longrope"),
        ({"full_attention": {"rope_type": "dynamic"}, "sliding": {"rope_type": "default"}}, "dyn"),
        (None, None),
    ],
)
def test_models_whose_capture_would_fail_are_named(rope, words):
    reason = no_graphs_reason(SimpleNamespace(rope_parameters=rope))
    assert reason is None if words is None else words in reason


@torch.no_grad()
def test_an_error_of_the_work_itself_is_none_of_capturing():
    def exhausted(cache, *inputs):
        raise torch.OutOfMemoryError("CUDA out of memory")

    target = Target(*tiny_random())
    cache = target.new_cache(1)
    target.prefill(PROMPTS[:1], cache)
    with pytest.raises(torch.OutOfMemoryError):
        CacheGraphs(CallCapture()).run(exhausted, cache, 1, torch.zeros(1, 1))
    assert not CacheGraphs.failed


@torch.no_grad()
def test_graphs_share_the_memory_of_their_outputs():
    """Twenty graphs over growing texts keep one output, and results stay what they were."""
    kept = []

    def function(cache, values):
        output = values.repeat(1, 1000)
        kept.append(weakref.ref(output))
        return (output,)

    target = Target(*tiny_random())
    cache = target.new_cache(1)
    target.prefill([[7] * 4], cache)
    graphs = CacheGraphs(CallCapture())
    results = []
    for number in range(20):
        results += graphs.run(function, cache, 1, torch.full((1, 1), float(number)))
        cache.advance(torch.tensor([100]))
    gc.collect()
    assert all(reference() is None for reference in kept)
    assert len(graphs._outputs._buffers) == 1
    assert [result.unique().tolist() for result in results] == [[number] for number in range(20)]


class Watching(CallCapture):
    """Counts what a capture forbids: values fetched to the host, and values sent from it."""

    def __init__(self):
        super().__init__()
        self.num_captured, self.forbidden = 0, Counter()

    def __call__(self, function):
        with HostSyncs() as mode:
            replay = super().__call__(function)
        self.num_captured += 1
        self.forbidden += mode.counts
        return replay


@pytest.mark.parametrize("attention", ["sdpa", "split"])
@pytest.mark.parametrize("name", NAMES)
def test_nothing_captured_talks_to_the_host(name, attention):
    target = Target(*tiny_random(), fast_layers=False, attention=attention)
    target.graphs = VerifyGraphs(target, Watching())
    decode(target, METHODS[name](target), PROMPTS[:2], max_new_tokens=6)
    assert target.graphs.capture.num_captured > 0
    assert not target.graphs.capture.forbidden


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("name", NAMES)
def test_cuda_graphs_decode_what_launched_kernels_decode(name):
    plain, ours = (Target(tiny_random()[0].cuda(), tiny_random()[1]) for _ in range(2))
    ours.graphs = VerifyGraphs(ours, CudaGraphCapture())
    expected = [decode(plain, Vanilla(), [prompt], max_new_tokens=24)[0] for prompt in PROMPTS]
    before = CacheGraphs.num_captures
    rows = decode(ours, METHODS[name](ours), PROMPTS, max_new_tokens=24)
    assert [row.tokens for row in rows] == [answer.tokens for answer in expected]
    assert CacheGraphs.num_captures > before
