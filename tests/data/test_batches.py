"""Batches hold every item once, in an order that is the same each time and favours no length."""

import random
from collections import Counter

import pytest

from eagle_lab.data.batches import WINDOW, plan_batches, split

# (number, length in tokens, turns, sampled)
ITEMS = [
    (number, draw.randint(1, 300), draw.choice([1, 1, 2]), draw.random() < 0.3)
    for draw in [random.Random(1)]
    for number in range(1000)
]


def place(item):
    return (item[3], item[2], item[1]) if item[1] <= 280 else None


def plan(items=ITEMS, batch_size=16, seed=0, first_window=WINDOW):
    return plan_batches(items, place, batch_size, seed, first_window)


def test_every_item_that_fits_is_in_one_batch():
    counted = Counter(item[0] for batch in plan() for item in batch.items)
    assert counted == Counter(item[0] for item in ITEMS if item[1] <= 280)
    assert len(counted) < len(ITEMS)


def test_a_batch_has_one_distribution_and_one_number_of_turns():
    for batch in plan():
        assert 1 <= len(batch.items) <= 16
        assert {item[3] for item in batch.items} == {batch.sampled}
        assert len({item[2] for item in batch.items}) == 1


def test_batches_are_the_same_each_time_and_depend_on_the_seed():
    assert list(plan()) == list(plan())
    assert list(plan()) != list(plan(seed=1))


def test_little_is_padded_and_short_prompts_do_not_come_first():
    """Four groups of a window share its eight batches, so each is cut in about two by length."""
    batches = list(plan())
    longest = [max(item[1] for item in batch.items) for batch in batches]
    padded = sum(most * len(batch.items) for most, batch in zip(longest, batches, strict=True))
    unsorted = sum(
        max(item[1] for item in ITEMS[start : start + 16]) * 16 for start in range(0, 1000, 16)
    )
    assert padded < 0.8 * unsorted
    halves = longest[: len(longest) // 2], longest[len(longest) // 2 :]
    means = [sum(half) / len(half) for half in halves]
    assert abs(means[0] - means[1]) < 40


def test_an_endless_source_is_read_a_window_at_a_time():
    taken = []

    def endless():
        for number in range(10**9):
            taken.append(number)
            yield (number, 5, 1, False)

    made = plan(endless(), batch_size=4)
    for _ in range(WINDOW + 1):
        next(made)
    assert len(taken) == 2 * WINDOW * 4


def test_windows_can_grow_so_that_the_first_batch_comes_soon():
    """Windows of 1, 2, 4, 8 and 8 batches of four: 4, 12, 28, 60 and 92 items read by then."""
    taken = []

    def counted():
        for number in range(100):
            taken.append(number)
            yield (number, 5, 1, False)

    read_at = [len(taken) for _ in plan(counted(), batch_size=4, first_window=1)]
    assert read_at == [4] + 2 * [12] + 4 * [28] + 8 * [60] + 8 * [92] + 2 * [100]


@pytest.mark.parametrize(
    ("num", "most", "sizes"), [(7, 3, [2, 2, 3]), (6, 3, [3, 3]), (1, 3, [1]), (0, 3, [])]
)
def test_split(num, most, sizes):
    parts = split(range(num), most)
    assert [len(part) for part in parts] == sizes
    assert [item for part in parts for item in part] == list(range(num))
