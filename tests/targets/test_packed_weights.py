"""Packed weights: half the bytes, the very same results, and never another value."""

import pytest
import torch

from eagle_lab.targets.cpu.ops import (
    MAX_ROWS,
    is_packed,
    kernels,
    linear,
    multiply,
    pack,
    pack_all,
    round_weights,
)


@pytest.fixture(autouse=True)
def _fixed_draws():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def test_a_word_holds_the_weights_of_two_registers():
    one, two, three, four = (int(torch.tensor(x).view(torch.int32)) for x in (1.0, -2.0, 0.5, 3.0))
    words = pack(torch.tensor([[1.0, -2.0, 0.5, 3.0]]), lanes=2)
    low, high = 0xFFFF, -(1 << 16)
    assert words.tolist() == [[one >> 16 & low | three & high, two >> 16 & low | four & high]]
    assert is_packed(words)


def test_nothing_is_packed_that_packing_would_change():
    rounded = round_weights(torch.randn(8, 64))
    assert torch.equal(rounded, rounded.bfloat16().float())
    assert pack(rounded, 16) is not None
    assert pack(rounded, 64) is None  # rows end within a word
    other = rounded.clone()
    other[5, 7] += 2**-20
    assert pack(other, 16) is None
    assert all(map(is_packed, pack_all([rounded, rounded], 16)))
    assert pack_all([rounded, other], 16)[0] is rounded  # all or none


@pytest.mark.parametrize("num_tokens", [1, 2, 3, 4, 5, 9, 60])
@pytest.mark.parametrize("sizes", [[6144], [40, 7, 9], [5, 33]])
def test_packed_weights_give_the_bits_of_plain_ones(num_tokens, sizes):
    lanes = kernels().LANES
    inputs = torch.randn(num_tokens, 18 * 2 * lanes)
    plain = [round_weights(torch.randn(size, inputs.shape[1])) for size in sizes]
    packed = pack_all(plain, lanes)
    assert all(map(is_packed, packed))
    for ours, expected in zip(multiply(inputs, packed), multiply(inputs, plain), strict=True):
        assert torch.equal(ours, expected)


def test_linear_reads_the_packed_copy_where_the_kernel_runs_and_the_plain_weight_elsewhere():
    weight = round_weights(torch.randn(12, 2 * kernels().LANES))
    copy = pack(2 * weight, kernels().LANES)  # another weight, so that it shows
    few, many = torch.randn(3, weight.shape[1]), torch.randn(MAX_ROWS + 1, weight.shape[1])
    bias = torch.randn(12)
    doubled = torch.nn.functional.linear(few, 2 * weight, bias)
    torch.testing.assert_close(linear(few, weight, bias, copy), doubled, atol=1e-4, rtol=0)
    assert torch.equal(
        linear(many, weight, bias, copy), torch.nn.functional.linear(many, weight, bias)
    )
