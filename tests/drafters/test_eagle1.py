"""EAGLE-1: the forward pass against the paper's equations written out by hand, and its switches."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from eagle_lab.drafters.blocks import RMSNorm, Rotary, full_attention_rope
from eagle_lab.drafters.eagle1.network import Eagle1
from eagle_lab.drafters.vocabulary import most_frequent, to_draft, to_ids, to_offsets
from eagle_lab.errors import UserError
from eagle_lab.targets.cpu import patch
from tests.drafters.fakes import FakeTarget, causal_attend, eagle1


def build(target: FakeTarget, kept: Tensor | None = None, **switches: bool) -> Eagle1:
    drafter = eagle1(target, kept, **switches)
    torch.manual_seed(1)
    for parameter in drafter.parameters():  # norms included, so that a forgotten one shows
        torch.nn.init.normal_(parameter, std=0.4)
    return drafter


def by_hand(drafter: Eagle1, target: FakeTarget, tokens: Tensor, features: Tensor) -> Tensor:
    """The paper's layer in float64, one position and one head at a time; [N, H]."""
    w = {name: value.double() for name, value in drafter.state_dict().items()}
    own, eps, num = drafter.config, drafter.config.rms_norm_eps, len(tokens)

    def norm(x: Tensor, weight: Tensor) -> Tensor:
        return x / torch.sqrt((x * x).mean() + eps) * weight

    def rotate(x: Tensor, position: int) -> Tensor:
        half, out = own.head_dim // 2, x.clone()
        for i in range(half):
            angle = position * own.rope_parameters["rope_theta"] ** (-2 * i / own.head_dim)
            a, b = x[i], x[i + half]
            out[i] = a * math.cos(angle) - b * math.sin(angle)
            out[i + half] = b * math.cos(angle) + a * math.sin(angle)
        return out

    x = [
        w["fc.weight"] @ torch.cat((target.embedding.weight[tokens[i]], features[i])).double()
        + w.get("fc.bias", torch.zeros(())).double()
        for i in range(num)
    ]
    layer, groups = "layers.0.", own.num_attention_heads // own.num_key_value_heads
    inputs = x
    if own.inner_norm:
        inputs = [norm(row, w[layer + "input_layernorm.weight"]) for row in x]
    query, key, value = (
        [(w[layer + f"self_attn.{n}_proj.weight"] @ row).view(-1, own.head_dim) for row in inputs]
        for n in "qkv"
    )
    outputs = []
    for i in range(num):
        heads = []
        for h in range(own.num_attention_heads):
            q = rotate(query[i][h], i)
            scores = torch.stack([q @ rotate(key[j][h // groups], j) for j in range(i + 1)])
            weights = torch.softmax(scores / math.sqrt(own.head_dim), 0)
            heads.append(sum(weights[j] * value[j][h // groups] for j in range(i + 1)))
        hidden = x[i] + w[layer + "self_attn.o_proj.weight"] @ torch.cat(heads)
        inner = norm(hidden, w[layer + "post_attention_layernorm.weight"])
        gate, up, down = (w[layer + f"mlp.{n}_proj.weight"] for n in ("gate", "up", "down"))
        outputs.append(hidden + down @ (torch.nn.functional.silu(gate @ inner) * (up @ inner)))
    return torch.stack(outputs)


def test_fast_layers_compute_together_what_reads_one_input(monkeypatch: pytest.MonkeyPatch) -> None:
    """The products of a pass: fc; query with key and value; output; gate with up."""
    drafter, products, multiply = build(FakeTarget(hidden_size=48)), [], patch.multiply

    def counted(inputs: Tensor, weights: list[Tensor]) -> list[Tensor]:
        products.append(len(weights))
        return multiply(inputs, weights)

    monkeypatch.setattr(patch, "multiply", counted)
    patch.use_fast_layers(drafter)
    tokens, positions = torch.tensor([[3, 1]]), torch.arange(2)[None]
    with torch.no_grad():
        drafter(tokens, torch.randn(1, 2, 48), positions, causal_attend)
    assert products[:4] == [1, 3, 1, 2]


@pytest.mark.parametrize("inner_norm", [False, True])
@pytest.mark.parametrize("fc_bias", [False, True])
def test_forward_is_the_papers_layer(inner_norm: bool, fc_bias: bool) -> None:
    target = FakeTarget()
    drafter = build(target, inner_norm=inner_norm, fc_bias=fc_bias)
    tokens, features = torch.tensor([3, 1, 4, 1, 5]), torch.randn(5, 16)
    ours = drafter(tokens[None], features[None], torch.arange(5)[None], causal_attend)[0]
    reference = by_hand(drafter, target, tokens, features)
    torch.testing.assert_close(ours.double(), reference, rtol=1e-4, atol=1e-4)


def test_plain_form_has_exactly_the_published_tensors() -> None:
    names = set(build(FakeTarget()).state_dict())
    projections = {f"layers.0.self_attn.{n}_proj.weight" for n in "qkvo"}
    mlp = {f"layers.0.mlp.{n}_proj.weight" for n in ("gate", "up", "down")}
    assert names == ({"fc.weight", "layers.0.post_attention_layernorm.weight"} | projections | mlp)


def test_embedding_and_head_are_the_targets_and_never_trained() -> None:
    target = FakeTarget()
    drafter = build(target)
    shapes = {tuple(parameter.shape) for parameter in drafter.parameters()}
    assert (target.vocab_size, target.hidden_size) not in shapes
    hidden = torch.randn(2, 3, 16)
    torch.testing.assert_close(drafter.logits(hidden), target.head(hidden))
    assert drafter.attached is not None
    assert drafter.attached.head_weight.data_ptr() == target.head_weight.data_ptr()
    drafter.logits(drafter(*inputs(), causal_attend)).sum().backward()
    assert target.embedding.weight.grad is None


def inputs() -> tuple[Tensor, Tensor, Tensor]:
    return torch.tensor([[3, 1, 4]]), torch.randn(1, 3, 16), torch.arange(3)[None]


def test_reduced_head_is_the_targets_rows_scaled_as_the_target_scales() -> None:
    target = FakeTarget(softcap=3.0)
    kept = torch.tensor([0, 3, 7, 8])
    drafter, hidden = build(target, kept), torch.randn(2, 16)
    torch.testing.assert_close(drafter.logits(hidden), target.head(hidden)[:, kept])
    assert drafter.logits(hidden.bfloat16()).dtype == torch.float32


def test_d2t_holds_offsets() -> None:
    """Kept [0, 3, 7, 8] of 10 gives d2t [0, 2, 5, 5]."""
    kept = torch.tensor([0, 3, 7, 8])
    assert to_offsets(kept).tolist() == [0, 2, 5, 5]
    assert to_ids(to_offsets(kept)).tolist() == kept.tolist()
    assert to_draft(kept, 10).tolist() == [0, -1, -1, 1, -1, -1, -1, 2, 3, -1]
    drafter = build(FakeTarget(), kept)
    assert drafter.d2t is not None and drafter.d2t.tolist() == [0, 2, 5, 5]
    assert drafter.draft_to_target is not None
    assert drafter.draft_to_target.tolist() == kept.tolist()


def test_loaded_d2t_brings_its_head_along() -> None:
    target, kept = FakeTarget(), torch.tensor([0, 3, 7, 8])
    saved = build(target, kept)
    other = build(target, torch.tensor([1, 2, 3, 4]))
    other.load_state_dict(saved.state_dict())
    hidden = torch.randn(1, 16)
    torch.testing.assert_close(other.logits(hidden), saved.logits(hidden))
    assert other.draft_to_target is not None and other.draft_to_target.tolist() == kept.tolist()


def test_draft_vocabulary_keeps_the_most_frequent_sorted() -> None:
    counts = torch.tensor([5, 0, 9, 0, 9, 1])
    assert most_frequent(counts, 4).tolist() == [0, 2, 4, 5]
    assert most_frequent(counts, 5).tolist() == [0, 1, 2, 4, 5]  # a tie takes the lower id
    with pytest.raises(UserError, match="draft_vocab_size=7"):
        most_frequent(counts, 7)
    whole = eagle1(FakeTarget(), draft_vocab_size=12)
    assert whole.config.draft_vocab_size is None  # the full vocabulary needs no mapping


def test_rope_theta_reaches_the_drafter() -> None:
    """5e6 inside rope_parameters, by the value and by what it does to the output."""
    target = FakeTarget()
    drafter = build(target)
    assert drafter.config.rope_parameters["rope_theta"] == 5e6
    usual = FakeTarget()
    usual.config.rope_parameters = {"rope_type": "default", "rope_theta": 1e4}
    arguments = inputs()
    difference = drafter(*arguments, causal_attend) - build(usual)(*arguments, causal_attend)
    assert difference.abs().max() > 1e-4


@pytest.mark.parametrize(
    "kind",
    [
        {"rope_type": "default"},
        {"rope_type": "linear", "factor": 2.0},
        {"rope_type": "dynamic", "factor": 2.0},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16,
        },
    ],
)
def test_rotary_positions_are_the_bits_of_hugging_face(kind: dict) -> None:
    parameters = {"rope_theta": 1e4, **kind}
    sizes = {"head_dim": 8, "max_position_embeddings": 64, "rope_parameters": parameters}
    config = LlamaConfig(hidden_size=8, num_attention_heads=1, **sizes)
    positions, hidden = torch.tensor([[0, 1, 63, 63], [70, 5, 199, 2]]), torch.zeros(1)
    expected = LlamaRotaryEmbedding(config)(hidden, positions)
    ours = Rotary(**sizes)(hidden, positions)
    for one, other in zip(ours, expected, strict=True):
        assert torch.equal(one, other)


def test_layer_typed_rope_parameters_give_the_full_attention_set() -> None:
    config = FakeTarget().config
    config.rope_parameters = {
        "full_attention": {"rope_type": "default", "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
    assert full_attention_rope(config)["rope_theta"] == 1e6


def test_positions_past_the_trained_length_are_relative() -> None:
    """Shifting all positions past 2048 changes nothing, as rotary positions promise."""
    drafter = build(FakeTarget())
    tokens, features, positions = inputs()
    near = drafter(tokens, features, positions, causal_attend)
    far = drafter(tokens, features, positions + 5000, causal_attend)
    torch.testing.assert_close(near, far, rtol=1e-3, atol=1e-3)
    assert torch.isfinite(far).all()


def test_half_precision_keeps_rotary_frequencies() -> None:
    drafter = build(FakeTarget())
    hidden, positions = torch.zeros(1, 1, 16), torch.tensor([[6001]])
    before = drafter.rotary(hidden, positions)[0]
    drafter.to(torch.bfloat16)
    torch.testing.assert_close(drafter.rotary(hidden, positions)[0], before, rtol=0, atol=0)


def test_norm_computes_in_float32() -> None:
    norm = RMSNorm(16, eps=1e-5).to(torch.bfloat16)
    hidden = torch.randn(4, 16).bfloat16()
    exact = hidden.double() / (hidden.double().pow(2).mean(-1, keepdim=True) + 1e-5).sqrt()
    torch.testing.assert_close(norm(hidden), exact.bfloat16(), rtol=1e-2, atol=1e-2)


def test_a_target_of_other_shapes_is_refused_by_name() -> None:
    drafter = build(FakeTarget())
    with pytest.raises(UserError, match="16.*20"):
        drafter.attach(FakeTarget(hidden_size=20))
