"""Intervals resample questions, are paired, and repeat with their seed."""

from __future__ import annotations

import numpy as np
import pytest

from eagle_lab.evaluation.bootstrap import (
    percentile_interval,
    question_weights,
    ratio_interval,
    resampled_ratio,
)


def test_weights_are_draws_with_replacement():
    weights = question_weights(7, num_resamples=500, seed=0)
    assert (weights.sum(axis=1) == 7).all()
    assert weights.mean() == pytest.approx(1.0)


def test_one_seed_gives_one_interval():
    values, ones = np.sqrt(np.arange(9.0)), np.ones(9)
    first = ratio_interval(question_weights(9, seed=3), values, ones)
    assert first == ratio_interval(question_weights(9, seed=3), values, ones)
    assert first != ratio_interval(question_weights(9, seed=4), values, ones)


def test_vectorised_ratio_equals_drawing_questions_one_by_one():
    weights = question_weights(5, num_resamples=50, seed=1)
    above, below = np.array([1.0, 2, 3, 4, 5]), np.array([2.0, 1, 2, 1, 2])
    for row, ratio in zip(weights, resampled_ratio(weights, above, below), strict=True):
        drawn = np.repeat(np.arange(5), row.astype(int))
        assert ratio == pytest.approx(above[drawn].sum() / below[drawn].sum())


def test_interval_of_a_mean_is_the_textbook_one():
    """For a mean of n values the percentile interval is near mean ± 1.96 s / sqrt(n)."""
    values = np.random.default_rng(5).normal(2.0, 0.5, size=400)
    low, high = ratio_interval(question_weights(400, seed=0), values, np.ones(400))
    half = 1.96 * values.std() / 20
    assert low == pytest.approx(values.mean() - half, abs=0.1 * half)
    assert high == pytest.approx(values.mean() + half, abs=0.1 * half)


def test_pairing_keeps_differences_between_questions_out():
    """A method exactly twice as fast on very different questions has no spread at all."""
    vanilla = np.array([1.0, 10.0, 100.0, 3.0])
    low, high = ratio_interval(question_weights(4, seed=0), vanilla, vanilla / 2)
    assert (low, high) == (2.0, 2.0)


def test_turns_of_one_question_are_not_independent():
    """Ten questions of two equal turns: resampling turns would shrink the interval by sqrt(2)."""
    tau = np.random.default_rng(2).normal(3.0, 0.4, size=10)
    by_question = ratio_interval(question_weights(10, seed=0), 2 * tau, np.full(10, 2.0))
    as_turns = ratio_interval(question_weights(20, seed=0), np.repeat(tau, 2), np.ones(20))
    width, wrong = by_question[1] - by_question[0], as_turns[1] - as_turns[0]
    assert width / wrong == pytest.approx(2**0.5, rel=0.1)


def test_one_question_has_no_interval():
    assert ratio_interval(question_weights(1, seed=0), [3.0], [1.0]) == (None, None)


def test_no_known_value_has_no_interval():
    assert percentile_interval(np.array([np.nan, np.nan])) == (None, None)


def test_no_question_is_an_error():
    with pytest.raises(ValueError, match="at least one question"):
        question_weights(0, seed=0)
