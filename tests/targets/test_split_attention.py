"""Prefix and tree attended to apart and merged equal one softmax over both."""

import itertools

import pytest
import torch

from eagle_lab.engine.draft_tree import DraftTree
from eagle_lab.engine.loop import decode
from eagle_lab.methods.eagle_trees import EagleDynamic
from eagle_lab.methods.vanilla import Vanilla
from eagle_lab.targets import tree_pass as tree_pass_module
from eagle_lab.targets.attention import attention, masked_part, merge, prefix_part, split_attention
from eagle_lab.targets.cache import TreeCache
from eagle_lab.targets.target import Target
from eagle_lab.targets.tiny import ARCHITECTURES, SLIDING_WINDOW, tiny_random
from eagle_lab.targets.tree_pass import TreePass
from tests.drafters.fakes import eagle1

PROMPTS = [[40, 41, 42], [7], list(range(100, 140)), [20, 21, 20, 21, 20]]
PARENTS = torch.tensor([0, 0, 0, 1, 1, 4, 2])


def test_merge_of_every_split_of_a_set_is_the_softmax_over_the_set():
    """All 2^5 splits of five keys into two sets, the empty ones included, in float64."""
    scores = torch.tensor([0.3, -2.0, 700.0, 699.0, -1000.0], dtype=torch.float64)
    values = torch.arange(10.0, dtype=torch.float64).reshape(5, 2).cos()
    weights = [torch.exp(score - 700.0) for score in scores]
    expected = sum(w * v for w, v in zip(weights, values, strict=True)) / sum(weights)

    def over(chosen):
        lse = scores[chosen].logsumexp(0)
        return scores[chosen].softmax(0) @ values[chosen], lse

    for inside in itertools.product([False, True], repeat=5):
        chosen = torch.tensor(inside)
        merged = merge(*over(chosen), *over(~chosen))
        torch.testing.assert_close(merged, expected, atol=1e-12, rtol=1e-12)


def test_two_empty_sets_merge_without_nan():
    nothing = torch.zeros(2, 3), torch.full((2,), -torch.inf)
    assert merge(*nothing, *nothing).tolist() == torch.zeros(2, 3).tolist()


def test_merge_keeps_the_wider_dtype():
    half = torch.ones(1, 2, dtype=torch.bfloat16), torch.zeros(1)
    assert merge(*half, *half).dtype == torch.float32


@pytest.mark.parametrize("softcap", [None, 1.5])
def test_a_part_is_an_explicit_softmax_with_grouped_heads(softcap):
    torch.manual_seed(0)
    query = torch.randn(2, 4, 3, 8, dtype=torch.float64)
    key, value = torch.randn(2, 2, 2, 5, 8, dtype=torch.float64)
    mask = torch.rand(2, 1, 3, 5) < 0.5
    mask[0, 0, 1] = False  # sees nothing
    output, lse = masked_part(query, key, value, mask, 0.7, softcap)
    for row, head, column in itertools.product(range(2), range(4), range(3)):
        seen = mask[row, 0, column]
        scores = key[row, head // 2, seen] @ query[row, head, column] * 0.7
        scores = scores if softcap is None else softcap * torch.tanh(scores / softcap)
        expected = scores.softmax(0) @ value[row, head // 2, seen]
        torch.testing.assert_close(output[row, head, column], expected)
        torch.testing.assert_close(lse[row, head, column], scores.exp().sum().log())
    assert lse[0, :, 1].eq(-torch.inf).all() and output[0, :, 1].eq(0).all()


@pytest.mark.parametrize("softcap", [None, 3.0])
def test_split_equals_one_mask_over_all(softcap):
    """Ragged rows, one of them empty; five columns of a tree, two of them padding."""
    torch.manual_seed(1)
    lengths = torch.tensor([6, 0, 2])
    query, tree = torch.randn(3, 4, 5, 8), torch.randn(2, 3, 2, 5, 8)
    cache = torch.randn(2, 3, 2, 6, 8)
    visible = torch.tensor(
        [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 0, 1, 0, 0], [0, 0, 0, 1, 0], [0, 0, 0, 0, 1]]
    )
    visible = visible.bool().expand(3, -1, -1)
    ours = split_attention(
        query, tuple(cache), tuple(tree), lengths, visible, 0.4, softcap, prefix_part
    )
    prefix = (torch.arange(6) < lengths[:, None])[:, None].expand(-1, 5, -1)
    mask = torch.cat([prefix, visible], dim=2)[:, None]
    key, value = torch.cat([cache, tree], dim=3)
    plain = attention(query, key, value, mask, 0.4, softcap)
    torch.testing.assert_close(ours, plain, atol=1e-6, rtol=1e-5)


def counting_parts(monkeypatch):
    """The lengths of the prefixes that are attended to apart, pass by pass."""
    seen: list[list[int]] = []

    def counted(query, key, value, lengths, scaling, softcap=None):
        assert key.shape[2] == lengths.max()  # nothing of the tree, nothing after the longest row
        seen.append(lengths.tolist())
        return prefix_part(query, key, value, lengths, scaling, softcap)

    monkeypatch.setattr(tree_pass_module, "prefix_part", counted)
    return seen


def windowed_layers(target):
    kinds = getattr(target.config, "layer_types", None)
    if kinds is None:
        return target.num_layers if getattr(target.config, "sliding_window", None) else 0
    return kinds.count("sliding_attention")


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_tree_scores_the_same_split_or_not(architecture, monkeypatch):
    """Grouped heads wider than the hidden state, soft-caps, windows; rows of very unequal length.

    Layers whose window cuts into the prefix are left to the mask.
    """
    seen = counting_parts(monkeypatch)
    model = tiny_random(architecture)
    scores = {}
    for way in ("sdpa", "split"):
        target = Target(*model, attention=way)
        for prompts in (PROMPTS, [row[:3] for row in PROMPTS]):
            cache = target.new_cache(4)
            prefill = target.prefill(prompts, cache)
            assert not seen  # there is no prefix yet
            valid = torch.ones(4, 7, dtype=torch.bool)
            valid[1, 5:] = False
            tokens = torch.arange(50, 57).expand(4, -1)
            tree = DraftTree.build(tokens, PARENTS.expand(4, -1), max_depth=3, valid=valid)
            logits = target.score(tree, cache).logits
            scores[way, len(prompts[2])] = torch.cat([prefill.logits, logits], dim=1)
            parts, seen[:] = list(seen), []
            apart = 0 if way == "sdpa" else target.num_layers
            if way == "split" and len(prompts[2]) + 7 > SLIDING_WINDOW:
                apart -= windowed_layers(target)
            assert parts == [list(map(len, prompts))] * apart
    for size in (3, 40):
        torch.testing.assert_close(
            scores["split", size], scores["sdpa", size], atol=1e-4, rtol=1e-4
        )


def test_levels_of_a_draft_see_the_tree_slots_of_earlier_passes():
    """The second pass of a tree reads back what the first one wrote, each row at its own length."""
    torch.manual_seed(2)
    outputs = []
    for way in ("sdpa", "split"):
        generator = torch.Generator().manual_seed(0)
        cache = TreeCache(1, 2, attention=way)
        sizes = [4, 2, 3]
        for step, size in enumerate(sizes):
            query, key, value = torch.randn(3, 2, 2, size, 8, generator=generator)
            first = step == 0
            drafted = size if first else sum(sizes[1 : step + 1])
            visible = torch.eye(drafted, dtype=torch.bool)[-size:].expand(2, -1, -1).clone()
            visible[:, :, 0] = True
            positions = cache.lengths[:, None].expand(-1, size)
            outputs.append(
                TreePass(cache, positions, visible).attend(0, query, key[:, :1], value[:, :1], 0.3)
            )
            if first:
                cache.advance(torch.tensor([4, 1]))
    for ours, plain in zip(outputs[3:], outputs[:3], strict=True):
        torch.testing.assert_close(ours, plain, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("architecture", ["llama", "gemma2"])
def test_greedy_text_is_the_same_split_or_not(architecture):
    model = tiny_random(architecture)
    texts = []
    for way in ("sdpa", "split"):
        target = Target(*model, attention=way)
        tree = EagleDynamic(target, eagle1(target, inner_norm=True), depth=3, width=3, num_nodes=9)
        for method in (Vanilla(), tree):
            rows = decode(target, method, PROMPTS, max_new_tokens=16)
            texts.append([row.tokens for row in rows])
    assert texts[1:] == texts[:-1]
