"""Training prompts: many, varied, whole sentences, and nothing of what is measured on."""

from __future__ import annotations

import random
import re
from collections import Counter
from functools import cache

import pytest

from eagle_lab.data.prompts import Question, load_questions
from eagle_lab.data.training_prompts import (
    Slots,
    comparable,
    template_groups,
    training_prompts,
    word_lists,
)
from eagle_lab.errors import UserError

NUM = 20_000


@cache
def many() -> list[Question]:
    return training_prompts(NUM, seed=0)


def word_runs(questions: list[Question], length: int) -> set[tuple[str, ...]]:
    """All runs of `length` words within a turn."""
    runs = set()
    for question in questions:
        for turn in question.turns:
            words = comparable(turn).split()
            runs.update(zip(*(words[start:] for start in range(length)), strict=False))
    return runs


def test_twenty_thousand_prompts_are_all_different() -> None:
    assert len({comparable(question.turns[0]) for question in many()}) == NUM
    assert len({question.question_id for question in many()}) == NUM


def test_kinds_of_task_are_even_and_three_in_ten_have_a_second_turn() -> None:
    counts = Counter(question.category for question in many())
    assert counts.keys() == template_groups().keys()
    assert len(counts) == 18
    assert max(counts.values()) - min(counts.values()) <= 1
    share = sum(len(question.turns) == 2 for question in many()) / NUM
    assert share == pytest.approx(0.3, abs=0.015)  # 4.6 standard deviations: 1 in 250,000


def test_a_seed_gives_one_sequence() -> None:
    assert training_prompts(300, seed=0) == many()[:300]
    other = training_prompts(300, seed=1)
    assert sum(a.turns == b.turns for a, b in zip(many(), other, strict=False)) < 10


def test_nothing_is_shared_with_the_bench_questions() -> None:
    """No equal turn, and no seven words in a row."""
    bench = load_questions("bench80")
    turns = {comparable(turn) for question in bench for turn in question.turns}
    assert turns.isdisjoint(comparable(turn) for question in many() for turn in question.turns)
    assert word_runs(bench, 7).isdisjoint(word_runs(many(), 7))


def test_excluded_turns_do_not_come() -> None:
    first, follow_up = many()[0].turns[0], next(q.turns[1] for q in many() if len(q.turns) == 2)
    shouted = Question("x", "x", (first.upper() + " !", follow_up))
    left = training_prompts(500, seed=0, exclude=[shouted])
    turns = {comparable(turn) for question in left for turn in question.turns}
    assert not {comparable(first), comparable(follow_up)} & turns


def test_texts_are_whole() -> None:
    text = "\n".join(turn for question in many() for turn in question.turns)
    without_code = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    assert not re.search(r"[{}]|\(n\)|\bthe the\b", without_code)
    assert all(turn == turn.strip() for question in many() for turn in question.turns)


def test_every_template_and_every_entry_can_be_filled() -> None:
    for groups in template_groups().values():
        for group in groups:
            for template in (*group.first, *group.then):
                for seed in range(3):
                    assert Slots(random.Random(seed)).fill(template)
    for entries in word_lists().values():
        assert len(set(entries)) == len(entries)
        for entry in entries:
            assert Slots(random.Random(0)).fill(entry)


def test_slots_agree_with_each_other() -> None:
    slots = Slots(random.Random(0))
    colors = [slots.fill(f"{{color{number}}}") for number in ("", *range(2, 7))]
    assert sorted(colors) == sorted(word_lists()["color"])
    assert slots.fill("{color} {Color} {color2}") == " ".join(
        [colors[0], colors[0].capitalize(), colors[1]]
    )
    assert slots.fill("{n=3..3} and {n} of {{x}}") == "3 and 3 of {x}"


@pytest.mark.parametrize(
    ("text", "filled"),
    [
        ("a(n) owl, A(n) fox", "an owl, A fox"),
        ("a(n) unit, a(n) one-way street", "a unit, a one-way street"),
        ("a(n) 8-year-old, a(n) 11-hour day, a(n) 7-day trip, a(n) 110 meter race",
         "an 8-year-old, an 11-hour day, a 7-day trip, a 110 meter race"),
    ],
)  # fmt: skip
def test_the_article_agrees(text: str, filled: str) -> None:
    assert Slots(random.Random(0)).fill(text) == filled


def test_a_number_of_prompts_that_cannot_be() -> None:
    with pytest.raises(UserError, match="0 "):
        training_prompts(0)
