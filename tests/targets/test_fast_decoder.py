"""Whole decoder layers in one call: which models have them, and that they compute the same."""

import copy

import pytest
import torch
from torch import nn

from eagle_lab.engine.draft_tree import DraftTree
from eagle_lab.targets.cpu.patch import FastDecoderLayer
from eagle_lab.targets.target import Target
from eagle_lab.targets.tiny import tiny_random

TOKENS = torch.tensor([[11, 12, 13, 14, 15, 16]] * 2)
PARENTS = torch.tensor([[0, 0, 0, 1, 1, 4]] * 2)
PROMPTS = [list(range(40, 63)), list(range(100, 109))]
TAKEN = [
    ("llama", {}),
    ("qwen2", {"hidden_size": 64, "head_dim": 16}),  # with biases
    ("qwen3", {}),  # with norms of queries and keys
    ("mistral", {}),  # with a sliding window
]


def num_fast(target):
    layers = target.model.get_decoder().layers
    return sum(isinstance(each.__dict__.get("forward"), FastDecoderLayer) for each in layers)


def scored(target):
    """Logits and features of a tree after ragged prompts."""
    cache = target.new_cache(2)
    target.prefill(PROMPTS, cache)
    return target.score(DraftTree.build(TOKENS, PARENTS, max_depth=3), cache)


def assert_close(scores, expected):
    """To 1e-4 of the largest number: the noise of eight layers summed in another order."""
    for ours, theirs in zip(vars(scores).values(), vars(expected).values(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4 * float(theirs.abs().max()), rtol=0)


@pytest.mark.parametrize(("architecture", "changes"), TAKEN)
@pytest.mark.parametrize("feature_layers", [None, [2, 4, 5]])
def test_the_llama_family_runs_layer_by_layer(architecture, changes, feature_layers):
    fast = Target(*tiny_random(architecture, **changes), feature_layers=feature_layers)
    plain = Target(
        *tiny_random(architecture, **changes), feature_layers=feature_layers, fast_layers=False
    )
    assert num_fast(fast) == 8
    assert_close(scored(fast), scored(plain))
    with fast.plain_layers():
        assert num_fast(fast) == 0
        assert torch.equal(scored(fast).logits, scored(plain).logits)


@pytest.mark.parametrize("architecture", ["gemma2", "gemma3_text"])
def test_other_forms_keep_their_own_code(architecture):
    assert num_fast(Target(*tiny_random(architecture))) == 0


def test_a_layer_that_computes_something_else_keeps_its_own_code():
    models = [tiny_random("llama") for _ in range(2)]
    for model, _ in models:
        model.model.layers[3].mlp.act_fn = nn.GELU()
    fast, plain = Target(*models[0]), Target(*models[1], fast_layers=False)
    assert num_fast(fast) == 7
    assert_close(scored(fast), scored(plain))


def test_a_copy_of_a_fast_model_has_weights_of_its_own():
    target = Target(*tiny_random("llama"))
    before = scored(target).logits
    twin = Target(copy.deepcopy(target.model), target.tokenizer)
    for parameter in twin.model.model.layers.parameters():
        parameter.zero_()
    assert num_fast(twin) == 8
    assert torch.equal(scored(target).logits, before)
    embedded = twin.model.model.norm(twin.embedding(TOKENS))
    torch.testing.assert_close(scored(twin).features, embedded)
