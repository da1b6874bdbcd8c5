"""The closed forms agree with literals of the papers and with counting every outcome."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from eagle_lab.bench import statistics


def enumerated_tokens(alpha: float, num_draft_tokens: int) -> float:
    """Expected tokens of a cycle by going through every pattern of uniforms."""
    total = 0.0
    for uniforms in itertools.product([True, False], repeat=num_draft_tokens):
        chance = np.prod([alpha if uniform else 1 - alpha for uniform in uniforms])
        accepted = uniforms.index(False) if False in uniforms else num_draft_tokens
        total += chance * (accepted + 1)
    return total


@pytest.mark.parametrize(("alpha", "tokens"), [(0.7, 2.7731), (0.9, 4.0951)])
def test_expected_tokens_of_the_paper(alpha, tokens):
    assert statistics.expected_tokens_per_cycle(alpha, 4) == pytest.approx(tokens, abs=1e-4)


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.85, 1.0])
@pytest.mark.parametrize("num_draft_tokens", [0, 1, 2, 6])
def test_expected_tokens_equals_enumeration(alpha, num_draft_tokens):
    expected = enumerated_tokens(alpha, num_draft_tokens)
    assert statistics.expected_tokens_per_cycle(alpha, num_draft_tokens) == pytest.approx(expected)


def test_speedup_textbook_and_with_the_price_of_the_pass():
    tokens = 2.7731
    assert statistics.expected_speedup(0.7, 4, 0.1) == pytest.approx(tokens / 1.4, abs=1e-4)
    priced = statistics.expected_speedup(0.7, 4, 0.1, lambda n: 1 + 0.1 * (n - 1))
    assert priced == pytest.approx(tokens / (0.4 + 1.4), abs=1e-4)
    assert statistics.expected_speedup(0.7, 0, 0.1, lambda n: 1.0) == 1.0


def test_rates_and_tau_of_a_correctness_matrix():
    """[[1,1,0],[1,0,1],[0,1,1]]: chains of 2, 1 and 0 right tokens, each rejected at the next."""
    accepted, judged = [2, 1, 0], [3, 2, 1]
    conditional = statistics.conditional_from_lengths(accepted, judged, depth=3)
    np.testing.assert_allclose(conditional, [2 / 3, 1 / 2, 0])
    joint = statistics.cumulative_from_lengths(accepted, [False] * 3, depth=3)
    np.testing.assert_allclose(joint, [2 / 3, 1 / 3, 0])
    assert statistics.tau_of_conditional(conditional) == pytest.approx(2.0)


def test_product_of_unconditional_accuracies_is_another_number():
    unconditional = np.mean([[1, 1, 0], [1, 0, 1], [0, 1, 1]], axis=0)
    assert statistics.tau_of_conditional(unconditional) == pytest.approx(2.407, abs=1e-3)


def test_conditional_is_unknown_where_nobody_came():
    conditional = statistics.conditional_from_lengths([0, 0], [1, 1], depth=3)
    np.testing.assert_array_equal(conditional, [0.0, np.nan, np.nan])
    assert statistics.tau_of_conditional(conditional) == 1.0


def test_rates_from_lengths_equal_those_counted_token_by_token():
    correct = np.random.default_rng(2).random((200, 5)) < 0.7
    accepted_so_far = np.cumprod(correct, axis=1)
    joint = accepted_so_far.mean(axis=0)
    lengths = accepted_so_far.sum(axis=1)
    np.testing.assert_allclose(
        statistics.conditional_from_lengths(lengths, np.minimum(lengths + 1, 5), depth=5),
        joint / [1.0, *joint[:-1]],
    )
    np.testing.assert_allclose(
        statistics.cumulative_from_lengths(lengths, [False] * 200, depth=5), joint
    )


def test_a_cut_cycle_rejects_nothing():
    """Lengths 2, 1, 1 with the last cut: two cycles judged the second token, one took it."""
    rates = statistics.conditional_from_lengths([2, 1, 1], [3, 2, 1], depth=3)
    np.testing.assert_allclose(rates, [1.0, 1 / 2, 0.0])
    cumulative = statistics.cumulative_from_lengths([2, 1, 1], [False, False, True], depth=3)
    np.testing.assert_allclose(cumulative, [1.0, 1 / 2, 0.0])


def test_a_draft_that_ended_rejected_nothing_but_emits_no_more():
    """Of three cycles one drafted nothing, one a single token, and one has both of two accepted."""
    accepted, judged = [0, 1, 2], [0, 1, 2]
    rates = statistics.conditional_from_lengths(accepted, judged, depth=2)
    np.testing.assert_array_equal(rates, [1.0, 1.0])
    cumulative = statistics.cumulative_from_lengths(accepted, [False] * 3, depth=3)
    np.testing.assert_allclose(cumulative, [2 / 3, 1 / 3, 0.0])


def test_nothing_is_known_after_a_cut_and_nothing_follows_a_certain_end():
    unknown = statistics.cumulative_from_lengths([1, 1], [True, True], depth=2)
    np.testing.assert_array_equal(unknown, [1.0, np.nan])
    ended = statistics.cumulative_from_lengths([0, 0], [False, False], depth=2)
    np.testing.assert_array_equal(ended, [0.0, 0.0])


def test_no_cycles_give_no_rates():
    np.testing.assert_array_equal(statistics.cumulative_from_lengths([], [], depth=2), [np.nan] * 2)
    np.testing.assert_array_equal(
        statistics.conditional_from_lengths([], [], depth=2), [np.nan] * 2
    )


@pytest.mark.parametrize(("alpha", "length"), [(-0.1, 4), (1.1, 4), (0.5, -1)])
def test_impossible_chains_are_refused(alpha, length):
    with pytest.raises(ValueError, match="impossible"):
        statistics.expected_tokens_per_cycle(alpha, length)
