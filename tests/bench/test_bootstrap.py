"""Intervals resample questions, are paired, and repeat with their seed."""

from __future__ import annotations

import numpy as np
import pytest

from eagle_lab.bench.statistics import (
    MIN_QUESTIONS,
    column_intervals,
    percentile_interval,
    question_weights,
    ratio_interval,
    relative_interval,
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
    vanilla = np.array([1.0, 10.0, 100.0, 3.0, 30.0])
    low, high = ratio_interval(question_weights(5, seed=0), vanilla, vanilla / 2)
    assert (low, high) == (2.0, 2.0)


def test_turns_of_one_question_are_not_independent():
    """Ten questions of two equal turns: resampling turns would shrink the interval by sqrt(2)."""
    tau = np.random.default_rng(2).normal(3.0, 0.4, size=10)
    by_question = ratio_interval(question_weights(10, seed=0), 2 * tau, np.full(10, 2.0))
    as_turns = ratio_interval(question_weights(20, seed=0), np.repeat(tau, 2), np.ones(20))
    width, wrong = by_question[1] - by_question[0], as_turns[1] - as_turns[0]
    assert width / wrong == pytest.approx(2**0.5, rel=0.1)


@pytest.mark.parametrize("num_questions", [1, 4, 5])
def test_few_questions_have_no_interval(num_questions: int):
    weights, ones = question_weights(num_questions, seed=0), np.ones(num_questions)
    expected = (None, None) if num_questions < MIN_QUESTIONS else (3.0, 3.0)
    assert ratio_interval(weights, 3 * ones, ones) == expected
    assert relative_interval(weights, (3 * ones, ones), (ones, ones)) == expected


def test_questions_without_a_part_in_the_ratio_do_not_count():
    """Of eight questions four have a trial."""
    weights, trials = question_weights(8, seed=0), np.repeat([0.0, 1.0], 4)
    assert ratio_interval(weights, trials, trials) == (None, None)
    assert relative_interval(weights, (np.ones(8), np.ones(8)), (trials, trials)) == (None, None)


@pytest.mark.parametrize(
    ("num_questions", "coverage"), [(2, 0.5), (3, 0.74), (5, 0.83), (16, 0.92)]
)
def test_coverage_of_few_questions_is_what_the_texts_say(num_questions: int, coverage: float):
    """1000 means of normal values around 0: its standard error is below 0.016, the rounding of
    the texts 0.005, so 0.06 is over 3.4 of them: a false alarm in less than 1 of 300 runs."""
    values = np.random.default_rng(7).normal(size=(num_questions, 1000))
    weights = question_weights(num_questions, num_resamples=1000, seed=0)
    low, high = column_intervals(resampled_ratio(weights, values, np.ones_like(values)))
    assert np.mean((low <= 0) & (high >= 0)) == pytest.approx(coverage, abs=0.06)


def test_no_known_value_has_no_interval():
    assert percentile_interval(np.array([np.nan, np.nan])) == (None, None)


def test_no_question_is_an_error():
    with pytest.raises(ValueError, match="question"):
        question_weights(0, seed=0)
