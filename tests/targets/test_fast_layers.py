"""The fast layers equal the plain ones, and a token's result does not depend on its neighbours."""

import copy

import numba
import pytest
import torch
from torch import nn

from eagle_lab.engine.draft_tree import DraftTree
from eagle_lab.errors import UserError
from eagle_lab.targets.attention import attention
from eagle_lab.targets.cache import TreeCache
from eagle_lab.targets.cpu.ops import MAX_ROWS, attend, can_attend, linear
from eagle_lab.targets.cpu.patch import plain_layers, use_fast_layers
from eagle_lab.targets.target import Target
from eagle_lab.targets.tiny import ARCHITECTURES, tiny_random

TOKENS = torch.tensor([[11, 12, 13, 14, 15, 16]])


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


@pytest.fixture(autouse=True)
def _fixed_draws():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


@pytest.mark.parametrize("num_tokens", [1, 2, 3, 4, 5, 7, 8, 61, MAX_ROWS, MAX_ROWS + 1])
@pytest.mark.parametrize("num_outputs", [4, 6, 33])
def test_linear_equals_the_product_in_double_precision(num_tokens, num_outputs):
    """To 2e-6 of the largest output: rounding of 576 products in float32."""
    inputs, weight = torch.randn(num_tokens, 576), torch.randn(num_outputs, 576)
    bias = torch.randn(num_outputs)
    expected = inputs.double() @ weight.double().T + bias.double()
    difference = (linear(inputs, weight, bias) - expected).abs().max()
    assert float(difference) < 2e-6 * float(expected.abs().max())


def test_a_tokens_bits_do_not_depend_on_the_others():
    weight = torch.randn(50, 192)
    for num_tokens in range(1, 12):
        inputs = torch.randn(2, num_tokens, 192)
        together = linear(inputs, weight)
        for row in range(2):
            for token in range(num_tokens):
                alone = linear(inputs[row, token], weight)
                assert torch.equal(together[row, token], alone)


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
    module.q_proj(inputs[0])  # nobody asks for its neighbours
    torch.testing.assert_close(module.v_proj(inputs[1]), expected[1][2], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(module.k_proj(inputs[0]), expected[0][1], atol=1e-5, rtol=1e-5)


def test_a_copy_has_weights_of_its_own():
    module = SelfAttention().requires_grad_(False)
    use_fast_layers(module)
    twin = copy.deepcopy(module)
    for layer in (twin.q_proj, twin.k_proj, twin.v_proj):
        layer.weight.zero_()
    hidden, other = torch.randn(2, 64), torch.randn(2, 48)
    assert all(not output.any() for output in twin(hidden, other)[:3])
    assert all(output.any() for output in module(hidden, other))


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


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_linear_layer_and_norm_of_a_model_is_fast_and_equal(architecture):
    """Logits to 1e-4 of their size: the noise of eight layers summed in another order."""
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
    tree = DraftTree.chain(TOKENS[:, 0], TOKENS[:, 1:])
    logits = []
    for model in (target, plain):
        cache = model.new_cache(1)
        model.prefill([list(range(40, 60))], cache)
        logits.append(model.score(tree, cache).logits)
    torch.testing.assert_close(*logits, atol=1e-4 * float(logits[1].abs().max()), rtol=0)
    assert not torch.equal(*logits)  # two ways of computing, not one


def test_plain_layers_are_the_models_own_bits():
    target = Target(*tiny_random("llama"))
    plain = Target(*tiny_random("llama"), fast_layers=False)
    tree = DraftTree.chain(TOKENS[:, 0], TOKENS[:, 1:])
    expected = plain.score(tree, plain.new_cache(1)).logits
    fast = target.score(tree, target.new_cache(1)).logits
    with target.plain_layers():
        assert torch.equal(target.score(tree, target.new_cache(1)).logits, expected)
    assert torch.equal(target.score(tree, target.new_cache(1)).logits, fast)


def test_numba_follows_torchs_threads():
    """One thread where torch has one; never more than Numba was started with."""
    before = torch.get_num_threads()
    inputs, weight = torch.randn(2, 64), torch.randn(8, 64)
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            linear(inputs, weight)
            assert numba.get_num_threads() == min(count, numba.config.NUMBA_NUM_THREADS)
    finally:
        torch.set_num_threads(before)
        linear(inputs, weight)


def test_fast_layers_where_there_are_none():
    model, tokenizer = tiny_random("llama")
    model = model.to(torch.bfloat16)
    assert not Target(model, tokenizer).fast_layers
    with pytest.raises(UserError, match="fast_layers=true with device=cpu and dtype=torch.bfloat"):
        Target(model, tokenizer, fast_layers=True)


@pytest.mark.parametrize(
    ("num_heads", "num_kv", "num_tokens", "num_slots", "width"),
    [(9, 3, 1, 300, 64), (4, 2, 7, 33, 16), (4, 4, 5, 6, 32), (6, 2, 61, 130, 48)],
)
def test_attention_equals_the_plain_one(num_heads, num_kv, num_tokens, num_slots, width):
    """To 1e-5 against double precision; masked slots hold numbers that would show."""
    query = 3 * torch.randn(2, num_tokens, num_heads, width).transpose(1, 2)
    stored = torch.randn(2, 2, num_kv, num_slots + 10, width)
    key, value = stored[..., :num_slots, :]
    mask = torch.rand(2, 1, num_tokens, num_slots) > 0.4
    mask[..., num_slots // 2] = True
    hidden_slots = ~mask.any(dim=2, keepdim=True).transpose(2, 3)
    value.masked_fill_(hidden_slots, 1e6)
    assert can_attend(query, key)
    expected = attention(query.double(), key.double(), value.double(), mask, width**-0.5)
    output = attend(query, key, value, mask, width**-0.5)
    torch.testing.assert_close(output.double(), expected, atol=1e-5, rtol=1e-5)


def test_attention_survives_scores_beyond_the_range_of_exp():
    query, key = torch.full((1, 1, 1, 16), 40.0), torch.ones(1, 1, 4, 16)
    key[0, 0, 1:] *= torch.tensor([-1.0, 0.999, 0.0])[:, None]
    value = torch.arange(4.0)[None, None, :, None].expand(1, 1, 4, 16).contiguous()
    mask = torch.ones(1, 1, 1, 4, dtype=torch.bool)
    expected = attention(query.double(), key.double(), value.double(), mask, 1.0)
    output = attend(query, key, value, mask, 1.0)
    torch.testing.assert_close(output.double(), expected, atol=1e-5, rtol=1e-4)


def test_both_ways_of_writing_fill_the_same_slots():
    caches = [TreeCache(2, 3, fast=fast) for fast in (False, True)]
    for cache in caches:
        cache.advance(torch.tensor([5, 0, 2]))
    for layer in (0, 1):
        key = torch.randn(3, 6, 2, 16).transpose(1, 2)
        value = torch.randn(3, 2, 6, 16)
        plain, fast = (cache.write(layer, key, value, offset=2) for cache in caches)
        assert torch.equal(plain[0], fast[0]) and torch.equal(plain[1], fast[1])
        assert torch.equal(fast[0][1, :, 2:8], key[1])


def test_a_verified_chain_has_the_bits_of_plain_decoding():
    """Linear layers, norms and attention alike: a chain's tokens score as they would one by one."""
    target = Target(*tiny_random("llama"))
    prompt = list(range(40, 61))
    chain = target.new_cache(1)
    target.prefill([prompt], chain)
    together = target.score(DraftTree.chain(TOKENS[:, 0], TOKENS[:, 1:]), chain).logits
    alone = target.new_cache(1)
    target.prefill([prompt], alone)
    for column in range(TOKENS.shape[1]):
        scores = target.score(DraftTree.root_only(TOKENS[:, column]), alone)
        alone.keep(torch.zeros(1, 1, dtype=torch.long), torch.ones(1, dtype=torch.long))
        assert torch.equal(scores.logits[0, 0], together[0, column])
