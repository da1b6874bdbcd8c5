"""Equality is judged by length and token, ties by the target's own logits."""

from __future__ import annotations

import pytest
import torch

from eagle_lab.bench.matching import (
    DIVERGENCE_COLUMNS,
    first_divergence,
    judge,
    match_rows,
    measure_noise,
    teacher_of,
)
from tests.bench.fakes import row, tiny_target, vanilla_rows


def fixed(logits, dtype=torch.float32):
    """A teacher that says the same at every position."""
    return lambda prompt, tokens: torch.tensor([logits] * (len(tokens) + 1), dtype=dtype)


def with_tokens(tokens, method="some", question_id=1):
    made = row(question_id, [len(tokens) - 2], method=method)
    return made | {"tokens": list(tokens)}


@pytest.mark.parametrize(
    ("one", "other", "position"),
    [
        ([1, 2, 3], [1, 2, 3], None),
        ([1, 2, 3], [1, 5, 3], 1),
        ([1, 2, 3], [1, 2], 2),  # zip would call these equal
        ([1, 2], [1, 2, 3], 2),
    ],
)
def test_first_divergence(one, other, position):
    assert first_divergence(one, other) == position


def test_two_logits_that_rounding_can_swap_are_a_tie():
    found = judge([9], [1, 0], [1, 2], fixed([3.0, 1.0, 3.0005]))
    assert found is not None
    assert (found.verdict, found.position) == ("tie", 1)
    assert found.logit_gap == pytest.approx(5e-4, rel=1e-2)


def test_a_real_difference_is_a_mismatch():
    found = judge([9], [1, 2], [1, 0], fixed([3.0, 1.0, 3.01]))
    assert found is not None
    assert found.verdict == "mismatch"


def test_a_third_token_is_no_tie_even_if_the_best_two_are():
    found = judge([9], [1, 0], [1, 1], fixed([3.0, 1.0, 3.0005]))
    assert found is not None
    assert found.verdict == "mismatch"


@pytest.mark.parametrize("tokens", [[1], [1, 0, 0]])
def test_another_length_is_a_mismatch(tokens):
    found = judge([9], [1, 0], tokens, fixed([3.0, 3.0]))
    assert found is not None
    assert (found.verdict, found.logit_gap) == ("mismatch", None)


def test_half_precision_checks_the_rest_of_the_text():
    """In bfloat16 a unit in the last place of 8.0 is 0.0625; four of them are allowed."""
    near, far = [8.0, 7.8125, 0.0], [8.0, 0.0, 7.5]
    assert judge([9], [0, 0], [1, 1], fixed(near, torch.bfloat16)).verdict == "tie"
    assert judge([9], [0, 0], [2, 0], fixed(far, torch.bfloat16)).verdict == "mismatch"
    later = torch.tensor([near, far, near], dtype=torch.bfloat16)
    assert judge([9], [0, 0], [1, 2], lambda p, t: later).verdict == "mismatch"


def test_rate_counts_ties_as_equal_and_lists_them():
    base = [with_tokens([0, 0], "vanilla", name) for name in (1, 2, 3, 4)]
    ours = [
        with_tokens(tokens, question_id=name)
        for name, tokens in ((1, [0, 0]), (2, [0, 2]), (3, [0, 1]), (4, [0, 0]))
    ]
    report = match_rows(ours, base, fixed([3.0, 1.0, 3.0005]))
    rates = {"greedy_match_rate": 3 / 4, "exact_rate": 2 / 4, "tie_rate": 1 / 4}
    assert report.rates() == rates
    assert [found["verdict"] for found in report.divergences] == ["tie", "mismatch"]
    assert set(report.divergences[0]) == set(DIVERGENCE_COLUMNS)


def test_missing_turns_do_not_pass():
    base = [with_tokens([0], "vanilla", name) for name in (1, 2)]
    with pytest.raises(ValueError, match="other turns"):
        match_rows(base[:1], base, fixed([1.0]))


def test_other_prompts_do_not_pass():
    base, ours = with_tokens([0, 0], "vanilla"), with_tokens([0, 0])
    with pytest.raises(ValueError, match="other prompts"):
        match_rows([ours | {"prompt_tokens": [7]}], [base], fixed([1.0]))


def test_the_teacher_says_what_vanilla_said():
    for answer in vanilla_rows(24):
        logits = teacher_of(tiny_target())(answer["prompt_tokens"], answer["tokens"])
        assert logits[:-1].argmax(-1).tolist() == answer["tokens"]


def test_noise_is_small_and_measured_on_all_asked_tokens():
    """Fast layers may have none at all: a token's bits do not depend on its pass."""
    target = tiny_target()
    noise = measure_noise(target, vanilla_rows(24), num_turns=2, num_tokens=5)
    assert noise["num_tokens"] == 10
    assert 0 <= noise["max_difference"] < 1e-3
    with target.plain_layers():
        plain = measure_noise(target, vanilla_rows(24), num_turns=2, num_tokens=5)
    assert 0 < plain["max_difference"] < 1e-3
