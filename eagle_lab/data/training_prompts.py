"""Thousands of varied training prompts, made from templates and word lists.

The lists are text files in assets/prompts/training. One seed gives one long sequence: the first
hundred of a thousand are the hundred one gets by asking for a hundred. No turn equals one of the
builtin bench questions, or of any other questions that the caller excludes.

{slot} draws an entry of the word list of that name, {slot2} another entry of the same list,
{Slot} begins with a capital letter, {n=2..9} draws a whole number and names it `n`, a(n) agrees
with the word after it, {{ and }} are plain braces. Entries may hold slots themselves. A slot
keeps its value for a whole conversation.
"""

from __future__ import annotations

import random
import re
import tomllib
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import islice

from eagle_lab.data.prompts import PROMPTS_FOLDER, Question, builtin_prompts, load_questions
from eagle_lab.errors import UserError

SLOT = re.compile(r"\{\{|\}\}|\{(\w+)(?:=(\d+)\.\.(\d+))?\}")
ARTICLE = re.compile(r"\b([Aa])\(n\) (?=[\"']?(\w+))")
LIKE_A_CONSONANT = ("uni", "use", "eu", "one")  # a unit, a user, a European, a one-way street
NUMBERS_LIKE_A_VOWEL = re.compile(r"(8\d*|11|18)$")  # an 8-year-old, an 80-minute lesson


@dataclass(frozen=True)
class Group:
    """Templates of one kind of task: any of `first` may be followed by any of `then`."""

    category: str
    first: tuple[str, ...]
    then: tuple[str, ...]


class Slots:
    """The values that the slots of one conversation have taken so far."""

    def __init__(self, draw: random.Random) -> None:
        self._draw = draw
        self._values: dict[str, str] = {}
        self._taken: dict[str, set[str]] = {}  # list name -> entries already drawn

    def fill(self, template: str) -> str:
        """The template as text; KeyError names a slot that has no list."""
        return ARTICLE.sub(_agree, SLOT.sub(self._replace, template))

    def _replace(self, match: re.Match[str]) -> str:
        name, low, high = match.groups()
        if name is None:  # {{ or }}
            return match.group()[0]
        key = name[0].lower() + name[1:]
        if key not in self._values:
            if low is None:
                self._values[key] = self._pick(key)
            else:
                self._values[key] = str(self._draw.randint(int(low), int(high)))
        value = self._values[key]
        return value[0].upper() + value[1:] if name[0].isupper() else value

    def _pick(self, key: str) -> str:
        """An entry that no sibling slot has. A numbered slot fills its entry with values of its
        own: two notices name different people."""
        name = key.rstrip("0123456789")
        taken = self._taken.setdefault(name, set())
        entry = self._draw.choice([entry for entry in word_lists()[name] if entry not in taken])
        taken.add(entry)
        slots = self if key == name else Slots(self._draw)
        return slots.fill(entry)


@cache
def word_lists() -> dict[str, tuple[str, ...]]:
    """All lists by name: lines of a text, or the entries of a TOML array."""
    lists: dict[str, tuple[str, ...]] = {}
    for file in ("words", "passages"):
        for name, entries in _read(file).items():
            lines = entries.strip().splitlines() if isinstance(entries, str) else entries
            lists[name] = tuple(line.strip() for line in lines)
    return lists


@cache
def template_groups() -> dict[str, list[Group]]:
    """All groups, by category."""
    return {
        category: [Group(category, tuple(row["first"]), tuple(row["then"])) for row in rows]
        for category, rows in _read("templates").items()
    }


def _agree(match: re.Match[str]) -> str:
    article, word = match.groups()
    vowel = word[0] in "aeiouAEIOU" and not word.lower().startswith(LIKE_A_CONSONANT)
    return f"{article}{'n' if vowel or NUMBERS_LIKE_A_VOWEL.match(word) else ''} "


def _read(name: str) -> dict:
    return tomllib.loads((PROMPTS_FOLDER / "training" / f"{name}.toml").read_text("utf-8"))


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
