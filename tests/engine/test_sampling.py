"""Distributions equal Hugging Face's processors; uniforms depend on their arguments alone."""

import pytest
import torch
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from eagle_lab.engine.sampling import (
    Purpose,
    Sampling,
    Uniforms,
    draw,
    draw_without_replacement,
    row_key,
)
from eagle_lab.errors import UserError


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"), [(1.0, 0, 1.0), (0.6, 5, 1.0), (1.3, 0, 0.7), (0.8, 8, 0.5)]
)
def test_distributions_equal_the_processors_of_transformers(temperature, top_k, top_p):
    logits = torch.randn(50, 20, generator=torch.Generator().manual_seed(0)) * 3
    expected = TemperatureLogitsWarper(temperature)(None, logits)
    if top_k:
        expected = TopKLogitsWarper(top_k)(None, expected)
    if top_p < 1:
        expected = TopPLogitsWarper(top_p)(None, expected)
    distribution = Sampling(temperature, top_p, top_k).probs(logits)
    torch.testing.assert_close(distribution, expected.softmax(-1))


def test_temperature_zero_is_one_hot_and_the_first_index_wins():
    assert Sampling().probs(torch.tensor([1.0, 4.0, 4.0])).tolist() == [0, 1, 0]


@pytest.mark.parametrize(
    "bad", [{"temperature": -1.0}, {"top_p": 0.0}, {"top_p": 1.5}, {"top_k": -2}]
)
def test_values_out_of_range_are_named(bad):
    with pytest.raises(UserError, match=next(iter(bad))):
        Sampling(**bad)


def test_draw_maps_equal_shares_of_uniforms_to_equal_shares_of_mass():
    probs = torch.tensor([0.25, 0.0, 0.5, 0.25]).expand(8, -1)
    uniforms = (torch.arange(8, dtype=torch.float64) + 0.5) / 8
    assert draw(probs, uniforms).tolist() == [0, 0, 2, 2, 2, 2, 3, 3]


@pytest.mark.parametrize("uniform", [0.0, 1 - 2**-53])
def test_extreme_uniforms_never_draw_a_token_of_probability_zero(uniform):
    probs = torch.tensor([[0.0, 0.3, 0.7 + 1e-7, 0.0]])
    assert int(draw(probs, torch.tensor([uniform], dtype=torch.float64))) in (1, 2)


def test_draws_without_replacement_are_distinct_and_say_when_nothing_is_left():
    probs = torch.tensor([[0.5, 0.0, 0.5]])
    uniforms = torch.tensor([[0.9, 0.9, 0.9]], dtype=torch.float64)
    tokens, possible = draw_without_replacement(probs, uniforms)
    assert tokens[0, :2].tolist() == [2, 0]
    assert possible.tolist() == [[True, True, False]]


def test_uniforms_depend_on_row_position_purpose_and_slot_but_not_on_neighbours():
    uniforms = Uniforms([11, 12, 13])
    places = torch.tensor([[3, 4], [3, 4], [3, 4]])
    drawn = uniforms.draw(places, Purpose.TARGET, 2)
    assert len(set(drawn.flatten().tolist())) == 12
    alone = uniforms.select([1]).draw(places[1:2], Purpose.TARGET, 2)
    assert torch.equal(alone[0], drawn[1])
    assert not torch.equal(drawn, uniforms.draw(places, Purpose.DRAFT, 2))
    neighbours = [
        Uniforms(range(50)).draw(torch.arange(5).expand(50, -1), purpose, 3) for purpose in Purpose
    ]
    assert len(torch.stack(neighbours).unique()) == 50 * 5 * 3 * len(Purpose)


def test_uniforms_are_uniform():
    """Mean and variance of 200,000 uniforms; each bound is missed with probability below 1e-8."""
    drawn = Uniforms(range(2000)).draw(torch.arange(100).expand(2000, -1), Purpose.ACCEPT)
    assert float(drawn.min()) >= 0 and float(drawn.max()) < 1
    assert abs(float(drawn.mean()) - 0.5) < 6 * (1 / 12 / 200_000) ** 0.5
    assert abs(float(drawn.var()) - 1 / 12) < 6 * (1 / 180 / 200_000) ** 0.5


def test_row_keys_differ_in_every_argument():
    keys = {row_key(s, q, t, r) for s in (0, 1) for q in ("1", "a") for t in (0, 1) for r in (0, 1)}
    assert len(keys) == 16
    assert row_key(0, 81, 0, 0) == row_key(0, "81", 0, 0)


def test_a_nucleus_larger_than_what_is_sorted_first_is_found_all_the_same():
    """Against a plain sort of the whole vocabulary, over flat, steep and tied distributions."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(4, 9000, generator=generator) * torch.tensor([[0.1], [1.0], [3.0], [9.0]])
    logits[1] = logits[1].round(decimals=1)  # many equal tokens
    for top_p in (0.05, 0.5, 0.9, 0.999):
        probs = logits.softmax(-1)
        ordered, order = probs.sort(dim=-1, descending=True, stable=True)
        ordered = ordered.masked_fill(ordered.cumsum(-1) - ordered >= top_p, 0.0)
        expected = torch.zeros_like(probs).scatter(-1, order, ordered)
        expected = expected / expected.sum(-1, keepdim=True)
        found = Sampling(temperature=1.0, top_p=top_p).probs(logits)
        assert torch.equal(found > 0, expected > 0)
        torch.testing.assert_close(found, expected)
