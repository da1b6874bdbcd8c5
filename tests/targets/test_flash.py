"""Flash kernels answer like plain attention over the prefix.

Without a GPU stand-ins that follow the documentation of the kernels take their place: what is
tested then is what the kernels are given and what is made of their answers.
"""

import sys
import types

import pytest
import torch
from torch.nn.attention import varlen

from eagle_lab.engine.draft_tree import DraftTree
from eagle_lab.engine.loop import decode
from eagle_lab.methods.prompt_lookup import PromptLookup
from eagle_lab.methods.vanilla import Vanilla
from eagle_lab.targets.attention import prefix_part, split_attention
from eagle_lab.targets.cuda import flash
from eagle_lab.targets.target import Target
from eagle_lab.targets.tiny import ARCHITECTURES, tiny_random

CPU = torch.device("cpu")
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
needs_torch_flash = pytest.mark.skipif(
    not flash.torch_has_flash(), reason="needs the kernel of torch 2.12"
)


def softmax_over(query, key, value, scaling, softcap):
    """Output [N, heads, d] and log-sum-exp [heads, N] of [N, heads, d] over [T, kv, d].

    Without a key the log-sum-exp is +inf, as flash-attn has it.
    """
    groups = query.shape[1] // key.shape[1]
    key, value = (part.repeat_interleave(groups, 1).double() for part in (key, value))
    scores = torch.einsum("nhd,thd->hnt", query.double(), key) * scaling
    scores = softcap * torch.tanh(scores / softcap) if softcap else scores
    if not len(key):
        return torch.zeros_like(query), torch.full(scores.shape[:2], torch.inf)
    output = torch.einsum("hnt,thd->nhd", scores.softmax(-1), value)
    return output.to(query.dtype), scores.logsumexp(-1).float()


def kvcache_stand_in(
    q, k_cache, v_cache, *, cache_seqlens, softmax_scale, softcap, return_softmax_lse
):
    """`flash_attn.flash_attn_with_kvcache`, as its documentation has it."""
    assert return_softmax_lse and cache_seqlens.dtype == torch.int32
    parts = [
        softmax_over(q[row], k_cache[row, :n], v_cache[row, :n], softmax_scale, softcap)
        for row, n in enumerate(cache_seqlens.tolist())
    ]
    return tuple(torch.stack(part) for part in zip(*parts, strict=True))


def varlen_stand_in(
    query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, return_aux, scale, enable_gqa, seqused_k
):
    """`torch.nn.attention.varlen.varlen_attn`, as its documentation has it."""
    assert return_aux.lse and {x.dtype for x in (cu_seq_q, cu_seq_k, seqused_k)} == {torch.int32}
    assert enable_gqa == (query.shape[1] != key.shape[1])
    starts, ends = cu_seq_q[:-1].tolist(), cu_seq_q[1:].tolist()
    assert ends[-1] == len(query) and max(seqused_k.tolist()) <= max_k
    parts = [
        softmax_over(query[start:end], key[at : at + n], value[at : at + n], scale, None)
        for start, end, at, n in zip(
            starts, ends, cu_seq_k.tolist(), seqused_k.tolist(), strict=False
        )
    ]
    assert all(end - start == max_q for start, end in zip(starts, ends, strict=True))
    return torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts], dim=1)


@pytest.fixture
def stand_ins(monkeypatch):
    module = types.ModuleType("flash_attn")
    module.flash_attn_with_kvcache = kvcache_stand_in
    monkeypatch.setitem(sys.modules, "flash_attn", module)
    monkeypatch.setattr(varlen, "varlen_attn", varlen_stand_in)


@pytest.mark.parametrize(("heads", "kv"), [(4, 2), (3, 1), (2, 2)])
def test_kernels_read_the_cache_where_it_lies(stand_ins, heads, kv):
    for kernel in (flash._flash_attn, flash._torch_flash):
        assert flash.agrees(kernel, CPU, torch.float32, heads, kv, 16)
    assert flash.agrees(flash._flash_attn, CPU, torch.float32, heads, kv, 16, softcap=2.0)


@pytest.mark.parametrize(
    "change",
    [
        lambda output, lse: (output, lse / 0.6931),  # a logarithm to base 2
        lambda output, lse: (output, lse.nan_to_num(neginf=torch.inf)),  # an empty row weighs all
        lambda output, lse: (output * 1.1, lse),
        lambda output, lse: (output.roll(1, 0), lse.roll(1, 0)),  # another row's prefix
        lambda output, lse: (output.roll(1, 1), lse.roll(1, 1)),  # another head's
        lambda output, lse: (output, lse.transpose(1, 2)),
    ],
)
def test_a_kernel_that_answers_otherwise_is_not_used(change):
    assert flash.agrees(prefix_part, CPU, torch.float32, 4, 2, 16)

    def wrong(*case):
        return change(*prefix_part(*case))

    assert not flash.agrees(wrong, CPU, torch.float32, 4, 2, 16)


def test_there_is_no_kernel_on_a_cpu():
    assert flash.prefix_kernel(torch.zeros(1, 4, 1, 16, dtype=torch.bfloat16), 2, None) is None


@pytest.mark.parametrize(
    ("kernel", "has"),
    [
        (varlen_stand_in, True),
        (lambda query, *, seqused_k=None: query, False),
        (lambda query, *, window_size=(-1, -1): query, False),
    ],
)
def test_a_torch_whose_kernel_takes_no_lengths_has_none(monkeypatch, kernel, has):
    """As torch 2.11, whose signature has neither `enable_gqa` nor `seqused_k`."""
    monkeypatch.setattr(varlen, "varlen_attn", kernel)
    assert flash.torch_has_flash() == has


def cuda_target(architecture, dtype, attention):
    model, tokenizer = tiny_random(architecture)
    for parameter in model.parameters():  # rotary frequencies stay float32
        parameter.data = parameter.data.to(dtype)
    return Target(model.cuda(), tokenizer, attention=attention)


@needs_cuda
@needs_torch_flash
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("heads", "kv", "width"), [(9, 3, 64), (32, 8, 128), (8, 4, 256)])
def test_torch_brings_a_kernel_for_common_heads(heads, kv, width, dtype):
    device = torch.device("cuda", 0)
    assert flash.agrees(flash._torch_flash, device, dtype, heads, kv, width)
    query = torch.zeros(1, heads, 1, width, dtype=dtype, device=device)
    assert flash.prefix_kernel(query, kv, None) is not None


@needs_cuda
def test_the_package_agrees_where_it_is_installed():
    pytest.importorskip("flash_attn")
    device = torch.device("cuda", 0)
    for softcap in (None, 30.0):
        assert flash.agrees(flash._flash_attn, device, torch.bfloat16, 32, 8, 128, softcap)


@needs_cuda
@needs_torch_flash
@torch.no_grad()
def test_a_tree_after_a_long_prefix_equals_the_reference_in_bfloat16():
    """60 columns after 2,000 and 3 slots, held against float64; 0.01 is four roundings."""
    generator = torch.Generator("cuda").manual_seed(0)

    def drawn(*shape):
        return torch.randn(*shape, generator=generator, device="cuda").bfloat16()

    lengths = torch.tensor([2000, 3], device="cuda")
    query, cache, tree = drawn(2, 32, 60, 128), drawn(2, 2, 8, 2000, 128), drawn(2, 2, 8, 60, 128)
    visible = torch.ones(60, 60, device="cuda").tril().bool().expand(2, -1, -1)
    kernel = flash.prefix_kernel(query, 8, None)
    assert kernel is not None
    case = lengths, visible, 128**-0.5, None
    ours = split_attention(query, tuple(cache), tuple(tree), *case, kernel)
    query, cache, tree = (part.double() for part in (query, cache, tree))
    exact = split_attention(query, tuple(cache), tuple(tree), *case, prefix_part)
    torch.testing.assert_close(ours.double(), exact, atol=0.01, rtol=0.01)


@needs_cuda
@pytest.mark.parametrize("architecture", ["llama", "qwen3", "mistral", "gemma2"])
def test_scores_in_bfloat16_are_as_near_to_float32_split_as_under_a_mask(architecture):
    prompts = [list(range(100, 140)), [7]]
    logits = {}
    half, full = torch.bfloat16, torch.float32
    for dtype, way in [(full, "sdpa"), (half, "sdpa"), (half, "auto")]:
        target = cuda_target(architecture, dtype, way)
        cache = target.new_cache(2)
        target.prefill(prompts, cache)
        parents = torch.tensor([0, 0, 0, 1, 1], device="cuda").expand(2, -1)
        tokens = torch.arange(50, 55, device="cuda").expand(2, -1)
        tree = DraftTree.build(tokens, parents, max_depth=2)
        logits[dtype, way] = target.score(tree, cache).logits.float()
    exact = logits[full, "sdpa"]
    errors = [(logits[half, way] - exact).norm() for way in ("sdpa", "auto")]
    assert errors[1] <= 1.5 * errors[0] + 1e-3


@needs_cuda
@pytest.mark.parametrize("attention", ["sdpa", "split"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_greedy_text_equals_vanillas_in_float32_on_cuda(architecture, attention):
    target = cuda_target(architecture, torch.float32, attention)
    prompts = [[60, 61, 62, 63] * 5, [7], list(range(100, 140)), [20, 21, 20, 21, 20]]
    plain = [decode(target, Vanilla(), [prompt], max_new_tokens=24)[0] for prompt in prompts]
    rows = decode(target, PromptLookup(), prompts, max_new_tokens=24)
    assert [row.tokens for row in rows] == [row.tokens for row in plain]
