"""Thousands of varied training prompts, made from templates and word lists.

The lists are text files in assets/prompts/training; prompt_templates.py fills their slots. One
seed gives one long sequence: the first hundred of a thousand are the hundred one gets by asking
for a hundred. No turn equals a turn of the builtin bench questions, or of any other questions
that the caller excludes.
"""

from __future__ import annotations

import random
import re
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice

from eagle_lab.data.prompt_templates import Group, Slots, template_groups
from eagle_lab.data.prompts import Question, builtin_prompts, load_questions
from eagle_lab.errors import UserError

TWO_TURN_SHARE = 0.3
MAX_TRIES = 300  # draws in a row with nothing new: the templates of a category are used up


def training_prompts(num: int, seed: int = 0, exclude: Iterable[Question] = ()) -> list[Question]:
    """The first `num` training prompts of a seed: all different, about 30 % with two turns.

    Categories take turns; one whose templates are used up drops out. No turn equals one of the
    bench questions or of `exclude`, whatever its case and punctuation.

    Raises:
        UserError: more prompts asked for than the templates can make.
    """
    if num < 1:
        raise UserError(f"{num} training prompts asked for; allowed: 1 or more")
    questions = list(islice(_generate(seed, exclude), num))
    if len(questions) < num:
        raise UserError(
            f"{num} training prompts asked for; the templates gave {len(questions)} different "
            f"ones with seed {seed}"
        )
    return questions


def comparable(turn: str) -> str:
    """A turn without case, punctuation and spacing: what makes two turns the same."""
    return " ".join(re.findall(r"\w+", turn.lower()))


def _generate(seed: int, exclude: Iterable[Question]) -> Iterator[Question]:
    draw = random.Random(seed)
    groups = template_groups()
    weights = {name: [len(group.first) for group in groups[name]] for name in groups}
    foreign = _turns(exclude)
    for name in builtin_prompts():
        foreign |= _turns(load_questions(name))
    seen = set(foreign)  # first turns made so far, and foreign ones
    waiting = deque(groups)
    number = num_tries = 0
    while waiting:
        (group,) = draw.choices(groups[waiting[0]], weights[waiting[0]])
        turns = _conversation(group, draw)
        first, *others = map(comparable, turns)
        if first in seen or not foreign.isdisjoint(others):
            num_tries += 1
            if num_tries == MAX_TRIES:
                waiting.popleft()
                num_tries = 0
            continue
        seen.add(first)
        yield Question(f"train-{seed}-{number}", group.category, turns)
        waiting.rotate(-1)
        number, num_tries = number + 1, 0


def _conversation(group: Group, draw: random.Random) -> tuple[str, ...]:
    slots = Slots(draw)
    turns = [slots.fill(draw.choice(group.first))]
    if draw.random() < TWO_TURN_SHARE:
        turns.append(slots.fill(draw.choice(group.then)))
    return tuple(turns)


def _turns(questions: Iterable[Question]) -> set[str]:
    return {comparable(turn) for question in questions for turn in question.turns}
