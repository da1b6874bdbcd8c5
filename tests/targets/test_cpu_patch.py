"""Networks with fast layers compute what Hugging Face's do, and can be had without them again."""

import copy

import pytest
import torch
from torch import nn

from eagle_lab.engine.draft_tree import DraftTree
from eagle_lab.errors import UserError
from eagle_lab.targets.cpu.patch import FastDecoderLayer, plain_layers, use_fast_layers
from eagle_lab.targets.target import Target
from eagle_lab.targets.tiny import ARCHITECTURES, tiny_random

TOKENS = torch.tensor([[11, 12, 13, 14, 15, 16]] * 2)
PARENTS = torch.tensor([[0, 0, 0, 1, 1, 4]] * 2)
PROMPTS = [list(range(40, 63)), list(range(100, 109))]
LLAMA_FAMILY = [
    ("llama", {}),
    ("qwen2", {"hidden_size": 64, "head_dim": 16}),  # with biases
    ("qwen3", {}),  # with norms of queries and keys
    ("mistral", {}),  # with a sliding window
]


@pytest.fixture(autouse=True)
def _fixed_draws():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


# --- single layers ------------------------------------------------------------------------------


class SelfAttention(nn.Module):
    """Three projections of one input, and one of another, named as Hugging Face names them."""

    def __init__(self, bias: bool = False):
        super().__init__()
        self.q_proj = nn.Linear(64, 40, bias=bias)
        self.k_proj = nn.Linear(64, 7, bias=bias)
        self.v_proj = nn.Linear(64, 9, bias=bias)
        self.o_proj = nn.Linear(48, 64, bias=bias)

    def forward(self, hidden, other):
        return self.q_proj(hidden), self.k_proj(hidden), self.v_proj(hidden), self.o_proj(other)


@pytest.mark.parametrize("bias", [False, True])
def test_layers_that_share_an_input_equal_the_plain_ones(bias):
    """In any order of calls, interrupted or not, with or without a bias."""
    module = SelfAttention(bias).requires_grad_(False)
    inputs = [torch.randn(3, 5, 64) for _ in range(2)]
    other = torch.randn(3, 5, 48)
    expected = [module(hidden, other) for hidden in inputs]
    use_fast_layers(module)
    for hidden, outputs in zip(inputs, expected, strict=True):
        torch.testing.assert_close(module(hidden, other), outputs, atol=1e-5, rtol=1e-5)
    module.q_proj(inputs[0])  # and none of its neighbours
    torch.testing.assert_close(module.v_proj(inputs[1]), expected[1][2], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(module.k_proj(inputs[0]), expected[0][1], atol=1e-5, rtol=1e-5)


def test_gradients_flow_through_layers_that_were_made_fast():
    module, plain = SelfAttention(), SelfAttention()
    plain.load_state_dict(module.state_dict())
    use_fast_layers(module)
    hidden, other = torch.randn(2, 64), torch.randn(2, 48)
    for network in (module, plain):
        sum(output.square().sum() for output in network(hidden, other)).backward()
    for parameter, expected in zip(module.parameters(), plain.parameters(), strict=True):
        assert torch.equal(parameter.grad, expected.grad)


def test_layers_that_do_not_fit_are_left_alone():
    """Widths the registers do not divide, other dtypes, and layers that something else wraps."""
    network = nn.ModuleDict(
        {
            "odd": nn.Linear(30, 8),
            "bfloat16_": nn.Linear(64, 8, dtype=torch.bfloat16),
            "few": nn.Linear(64, 2),
            "wrapped": nn.Linear(64, 8),
        }
    ).requires_grad_(False)
    network["wrapped"].forward = lambda hidden: hidden
    use_fast_layers(network)
    for name in ("odd", "bfloat16_", "few"):
        layer = network[name]
        hidden = torch.randn(3, layer.in_features, dtype=layer.weight.dtype)
        assert torch.equal(layer(hidden), nn.functional.linear(hidden, layer.weight, layer.bias))
    with plain_layers(network):
        assert network["wrapped"](hidden) is hidden
    assert network["wrapped"](hidden) is hidden


# --- whole models -------------------------------------------------------------------------------


def num_fast_decoder_layers(target):
    layers = target.model.get_decoder().layers
    return sum(isinstance(each.__dict__.get("forward"), FastDecoderLayer) for each in layers)


def score(target):
    """Logits and features of a tree after ragged prompts."""
    cache = target.new_cache(2)
    target.prefill(PROMPTS, cache)
    return target.score(DraftTree.build(TOKENS, PARENTS, max_depth=3), cache)


def assert_close(scores, expected):
    """To 1e-4 of the largest number: the noise of eight layers summed in another order."""
    ours_and_theirs = [(each.logits, *each.features.values()) for each in (scores, expected)]
    for ours, theirs in zip(*ours_and_theirs, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4 * float(theirs.abs().max()), rtol=0)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_linear_layer_and_norm_of_a_model_is_fast_and_equal(architecture):
    target = Target(*tiny_random(architecture))
    plain = Target(*tiny_random(architecture), fast_layers=False)
    layers = [
        module
        for module in target.model.modules()
        if isinstance(module, nn.Linear) or type(module).__name__.endswith("RMSNorm")
    ]
    assert len(layers) >= 8 * 9 + 2
    assert all("forward" in layer.__dict__ for layer in layers)
    assert target.fingerprint == plain.fingerprint
    assert [*target.model.state_dict()] == [*plain.model.state_dict()]
    fast, expected = score(target), score(plain)
    assert_close(fast, expected)
    assert not torch.equal(fast.logits, expected.logits)  # two ways of computing, not one
    with target.plain_layers():
        assert num_fast_decoder_layers(target) == 0
        assert torch.equal(score(target).logits, expected.logits)
    assert torch.equal(score(target).logits, fast.logits)


@pytest.mark.parametrize(("architecture", "changes"), LLAMA_FAMILY)
@pytest.mark.parametrize("feature", ["top", "fused"])
def test_the_llama_family_runs_layer_by_layer(architecture, changes, feature):
    fast, plain = (
        Target(
            *tiny_random(architecture, **changes),
            fast_layers=fast_layers,
        )
        for fast_layers in (True, False)
    )
    fast.hand_out([feature])
    plain.hand_out([feature])
    assert num_fast_decoder_layers(fast) == 8
    assert_close(score(fast), score(plain))


def test_other_forms_keep_their_own_code():
    for architecture in ("gemma2", "gemma3_text"):
        assert num_fast_decoder_layers(Target(*tiny_random(architecture))) == 0


def test_a_layer_that_computes_something_else_keeps_its_own_code():
    models = [tiny_random("llama") for _ in range(2)]
    for model, _ in models:
        model.model.layers[3].mlp.act_fn = nn.GELU()
    fast, plain = Target(*models[0]), Target(*models[1], fast_layers=False)
    assert num_fast_decoder_layers(fast) == 7
    assert_close(score(fast), score(plain))


def test_a_copy_of_a_fast_model_has_weights_of_its_own():
    target = Target(*tiny_random("llama"))
    before = score(target).logits
    twin = Target(copy.deepcopy(target.model), target.tokenizer)
    for parameter in twin.model.model.layers.parameters():
        parameter.zero_()
    assert num_fast_decoder_layers(twin) == 8
    assert torch.equal(score(target).logits, before)
    embedded = twin.model.model.norm(twin.embedding(TOKENS))
    torch.testing.assert_close(score(twin).features["top"], embedded)


def test_fast_layers_where_there_are_none():
    model, tokenizer = tiny_random("llama")
    model = model.to(torch.bfloat16)
    assert not Target(model, tokenizer).fast_layers
    with pytest.raises(UserError, match=r"fast_layers=true.*bfloat16"):
        Target(model, tokenizer, fast_layers=True)


def test_a_verified_chain_has_the_bits_of_plain_decoding():
    """Linear layers, norms and attention alike: a chain's tokens score as they would one by one."""
    target = Target(*tiny_random("llama"))
    caches = [target.new_cache(1) for _ in range(2)]
    for cache in caches:
        target.prefill(PROMPTS[:1], cache)
    tokens = TOKENS[:1]
    together = target.score(DraftTree.chain(tokens[:, 0], tokens[:, 1:]), caches[0]).logits
    for column in range(tokens.shape[1]):
        alone = target.score(DraftTree.root_only(tokens[:, column]), caches[1]).logits
        caches[1].keep(torch.zeros(1, 1, dtype=torch.long), torch.ones(1, dtype=torch.long))
        assert torch.equal(alone[0, 0], together[0, column])
