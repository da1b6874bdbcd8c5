"""The tree pass equals plain Hugging Face forwards, for every architecture's quirks."""

import pytest
import torch

from eagle_lab.engine.draft_tree import DraftTree
from eagle_lab.errors import UserError
from eagle_lab.targets.features import default_feature_layers
from eagle_lab.targets.target import Target
from eagle_lab.targets.tiny import ARCHITECTURES, tiny_random

VARIANTS = [(name, tied) for name in ARCHITECTURES for tied in (False, True)]
PROMPTS = [list(range(40, 63)), list(range(100, 109)), [7]]
TOKENS = torch.tensor([11, 12, 13, 14, 15, 16])
PARENTS = torch.tensor([0, 0, 0, 1, 1, 4])
PATHS = [[0], [0, 1], [0, 2], [0, 1, 3], [0, 1, 4], [0, 1, 4, 5]]


def reference(architecture, tied, **changes):
    """The model as transformers ships it; eager attention, the only one all of them offer."""
    model, _ = tiny_random(architecture, tied_head=tied, **changes)
    model.set_attn_implementation("eager")
    return model


@torch.no_grad()
def plain(model, tokens):
    return model(torch.tensor([tokens]), output_hidden_states=True, use_cache=False)


@pytest.mark.parametrize(("architecture", "tied"), VARIANTS)
def test_tree_forward_equals_one_forward_per_path(architecture, tied):
    target = Target(*tiny_random(architecture, tied_head=tied))
    model = reference(architecture, tied)
    cache = target.new_cache(len(PROMPTS))
    prefill = target.prefill(PROMPTS, cache)
    tree = DraftTree.build(
        TOKENS.expand(len(PROMPTS), -1), PARENTS.expand(len(PROMPTS), -1), max_depth=3
    )
    scores = target.score(tree, cache)
    for row, prompt in enumerate(PROMPTS):
        alone = plain(model, prompt)
        torch.testing.assert_close(
            prefill.logits[row, 0], alone.logits[0, -1], atol=1e-4, rtol=1e-4
        )
        torch.testing.assert_close(
            prefill.features["top"][row, : len(prompt)],
            alone.hidden_states[-1][0],
            atol=1e-4,
            rtol=1e-4,
        )
        for column, path in enumerate(PATHS):
            whole = plain(model, prompt + TOKENS[path].tolist())
            torch.testing.assert_close(
                scores.logits[row, column], whole.logits[0, -1], atol=1e-4, rtol=1e-4
            )
            torch.testing.assert_close(
                scores.features["top"][row, column],
                whole.hidden_states[-1][0, -1],
                atol=1e-4,
                rtol=1e-4,
            )


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_keep_equals_recomputing(architecture):
    """A second tree after a kept path scores as if the path had been prefilled."""
    target = Target(*tiny_random(architecture))
    tree = DraftTree.build(TOKENS.expand(2, -1), PARENTS.expand(2, -1), max_depth=3)
    prompts = [PROMPTS[0], PROMPTS[1]]
    kept = target.new_cache(2)
    target.prefill(prompts, kept)
    target.score(tree, kept)
    kept.keep(torch.tensor([[0, 1, 4, 5], [0, 2, 0, 0]]), torch.tensor([4, 2]))
    anew = target.new_cache(2)
    target.prefill([prompts[0] + [11, 12, 15, 16], prompts[1] + [11, 13]], anew)
    torch.testing.assert_close(
        target.score(tree, kept).logits, target.score(tree, anew).logits, atol=1e-4, rtol=1e-4
    )


def test_final_norm_head_over_the_feature_is_the_models_output():
    """Over the post-norm state the head gives the logits to 1e-5; over the un-normed it differs."""
    target = Target(*tiny_random("llama"), fast_layers=False)
    model = reference("llama", False)
    outputs = plain(model, PROMPTS[0])
    cache = target.new_cache(1)
    features = target.prefill([PROMPTS[0]], cache).features["top"][0]
    torch.testing.assert_close(target.head(features), outputs.logits[0], atol=1e-5, rtol=1e-5)
    before_norm: list[torch.Tensor] = []
    model.model.norm.register_forward_pre_hook(lambda _, args: before_norm.append(args[0]))
    plain(model, PROMPTS[0])
    assert float((target.head(before_norm[0][0]) - outputs.logits[0]).abs().max()) > 0.1


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_captured_layers_equal_hidden_states(architecture):
    """And the top feature beside them is the one that is handed out alone, bit for bit."""
    target = Target(*tiny_random(architecture), feature_layers=[2, 4, 5])
    alone = target.prefill([PROMPTS[0]], target.new_cache(1)).features
    target.hand_out(["fused"])
    states = plain(reference(architecture, False), PROMPTS[0]).hidden_states
    features = target.prefill([PROMPTS[0]], target.new_cache(1)).features
    assert (list(alone), list(features)) == (["top"], ["top", "fused"])
    assert target.feature_width("fused") == 3 * target.hidden_size
    expected = torch.cat([states[layer] for layer in (2, 4, 5)], dim=-1)
    torch.testing.assert_close(features["fused"], expected, atol=1e-4, rtol=1e-4)
    assert torch.equal(features["top"], alone["top"])


def test_default_feature_layers():
    assert default_feature_layers(30) == (2, 15, 27)
    assert default_feature_layers(8) == (2, 4, 5)
    for num_layers in (2, 3, 5, 6):
        with pytest.raises(UserError, match="strictly increasing"):
            default_feature_layers(num_layers)


def test_a_head_that_does_more_than_a_linear_map_is_refused():
    model, tokenizer = tiny_random("llama")
    model.lm_head.register_forward_hook(lambda module, args, output: output * 2 + 1)
    with pytest.raises(UserError, match=type(model).__name__):
        Target(model, tokenizer)


def test_fingerprint_follows_the_weights_not_the_precision():
    first = Target(*tiny_random("llama", seed=0)).fingerprint
    model, tokenizer = tiny_random("llama", seed=0)
    assert Target(model.to(torch.bfloat16), tokenizer).fingerprint == first
    assert Target(*tiny_random("llama", seed=1)).fingerprint != first


def test_all_end_of_sequence_ids_of_the_generation_config_count():
    model, tokenizer = tiny_random("llama")
    model.generation_config.eos_token_id = [2, 17]
    assert Target(model, tokenizer).eos_ids == {2, 17}
