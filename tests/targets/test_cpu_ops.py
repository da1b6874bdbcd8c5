"""The CPU kernels equal plain arithmetic, and a token's bits do not depend on its neighbours."""

import shutil
import subprocess
import sys
from pathlib import Path

import numba
import pytest
import torch
from torch.nn.functional import linear as plain_linear

from eagle_lab.targets.attention import attention
from eagle_lab.targets.cache import TreeCache
from eagle_lab.targets.cpu import build
from eagle_lab.targets.cpu.build import SOURCES, digest_of, use_kernel_folder
from eagle_lab.targets.cpu.ops import (
    MAX_ROWS,
    attend,
    best_tokens,
    can_attend,
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


# --- linear layers ------------------------------------------------------------------------------


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
                assert torch.equal(together[row, token], linear(inputs[row, token], weight))


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


def test_the_kernels_leave_torch_its_threads() -> None:
    """Numba's start gives OpenMP all cores, and torch counts by OpenMP."""
    code = (
        "import torch\n"
        "from eagle_lab.targets.cpu.ops import linear\n"
        "torch.set_num_threads(1)\n"
        "linear(torch.ones(2, 64), torch.ones(8, 64))\n"
        "print(torch.get_num_threads())\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300
    )
    assert run.stdout.strip() == "1"


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


def test_the_packed_copy_is_read_where_the_kernel_runs_and_the_plain_weight_elsewhere():
    weight = round_weights(torch.randn(12, 2 * kernels().LANES))
    copy = pack(2 * weight, kernels().LANES)  # another weight, so that it shows
    few, many = torch.randn(3, weight.shape[1]), torch.randn(MAX_ROWS + 1, weight.shape[1])
    bias = torch.randn(12)
    doubled = plain_linear(few, 2 * weight, bias)
    torch.testing.assert_close(linear(few, weight, bias, copy), doubled, atol=1e-4, rtol=0)
    assert torch.equal(linear(many, weight, bias, copy), plain_linear(many, weight, bias))


# --- attention and choice -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_heads", "num_kv", "num_tokens", "num_slots", "width"),
    [(9, 3, 1, 300, 64), (4, 2, 7, 33, 16), (4, 4, 5, 6, 32), (6, 2, 61, 130, 48)],
)
def test_attention_equals_the_plain_one(num_heads, num_kv, num_tokens, num_slots, width):
    """To 1e-5 against double precision; masked slots hold numbers that would show."""
    query = 3 * torch.randn(2, num_tokens, num_heads, width).transpose(1, 2)
    store = torch.randn(2, 2, num_kv, num_slots + 10, width)
    key, value = store[..., :num_slots, :]
    mask = torch.rand(2, 1, num_tokens, num_slots) > 0.4
    mask[..., num_slots // 2] = True
    value.masked_fill_(~mask.any(dim=2, keepdim=True).transpose(2, 3), 1e6)
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


@pytest.mark.parametrize(("num_logits", "count"), [(5, 5), (64, 1), (6144, 4), (49152, 10)])
@pytest.mark.parametrize("scale", [0.0, 3.0, 200.0])
def test_best_tokens_are_those_of_a_sorted_softmax(num_logits, count, scale):
    """To 2e-6 of double precision's; scale 0 makes nothing but ties."""
    logits = (torch.randn(2, 3, num_logits) * scale).round(decimals=1)
    log_probs, tokens = best_tokens(logits, count)
    expected = torch.log_softmax(logits.double(), dim=-1).sort(dim=-1, descending=True, stable=True)
    assert torch.equal(tokens, expected.indices[..., :count])
    torch.testing.assert_close(
        log_probs.double(), expected.values[..., :count], atol=2e-6, rtol=2e-6
    )


def test_impossible_tokens_come_last_and_weigh_nothing():
    log_probs, tokens = best_tokens(torch.tensor([[-torch.inf, 1.0, -torch.inf, 1.0]]), 3)
    assert tokens[0, :2].tolist() == [1, 3]
    torch.testing.assert_close(log_probs[0].exp(), torch.tensor([0.5, 0.5, 0.0]))


# --- the folder of the compiled kernels ---------------------------------------------------------


def test_a_change_in_any_source_is_another_folder(tmp_path: Path) -> None:
    here = Path(build.__file__).parent
    compiled = {path.name for path in here.glob("*.py") if "from numba import" in path.read_text()}
    assert compiled - {"build.py"} <= set(SOURCES)
    for name in SOURCES:
        shutil.copy(here / name, tmp_path)
    before = digest_of(tmp_path)
    assert before == digest_of(here)
    for name in SOURCES:
        (tmp_path / name).write_text((here / name).read_text() + "\n")
        assert digest_of(tmp_path) not in (before, digest_of(here))
        shutil.copy(here / name, tmp_path)


def test_numbas_own_setting_comes_back(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    with use_kernel_folder():
        assert Path(numba.config.CACHE_DIR).parent == tmp_path
    assert str(tmp_path) == numba.config.CACHE_DIR


@pytest.mark.slow
def test_compiled_kernels_lie_in_the_folder(tmp_path: Path) -> None:
    code = "from eagle_lab.targets.cpu.ops import kernels; kernels()"
    environment = {"NUMBA_CACHE_DIR": str(tmp_path), "PATH": ""}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=300)
    [folder] = tmp_path.iterdir()
    assert any(folder.rglob("*decoder_layer*.nbc"))
