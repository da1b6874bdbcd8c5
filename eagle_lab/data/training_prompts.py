"""Thousands of varied training prompts, made from templates and word lists.

The lists are text files in assets/prompts/training. One seed gives one endless sequence: the
first hundred of a thousand are the hundred one gets by asking for a hundred. No turn equals a
turn of the builtin bench questions, or of any other questions the caller excludes.
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

TWO_TURN_SHARE = 0.3
MAX_TRIES = 300  # draws in a row that gave nothing new: the templates of a category are used up
SLOT = re.compile(r"\{\{|\}\}|\{(\w+)(?:=(\d+)\.\.(\d+))?\}")
ARTICLE = re.compile(r"\b([Aa])\(n\) (?=[\"']?(\w+))")
SOUNDS_LIKE_A_CONSONANT = ("uni", "use", "eu", "one", "ut")


@dataclass(frozen=True)
class Group:
    """Templates of one kind of task: any of `first` may be followed by any of `then`."""

    category: str
    first: tuple[str, ...]
    then: tuple[str, ...]


def training_prompts(num: int, seed: int = 0, exclude: Iterable[Question] = ()) -> list[Question]:
    """The first `num` training prompts of a seed: all different, about 30 % with two turns.

    Categories take turns; one whose templates are used up drops out. `exclude` adds questions no turn of which may occur.

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


def _generate(seed: int, exclude: Iterable[Question]) -> Iterator[Question]:
    draw = random.Random(seed)
    groups = _groups()
    weights = {name: [len(group.first) for group in groups[name]] for name in groups}
    seen = {_plain(turn) for question in exclude for turn in question.turns}
    for name in builtin_prompts():
        seen |= {_plain(turn) for question in load_questions(name) for turn in question.turns}
    waiting = deque(groups)
    number = num_tries = 0
    while waiting:
        (group,) = draw.choices(groups[waiting[0]], weights[waiting[0]])
        turns = _conversation(group, draw)
        if _plain(turns[0]) in seen:
            num_tries += 1
            if num_tries == MAX_TRIES:  # this category is used up
                waiting.popleft()
                num_tries = 0
            continue
        seen.add(_plain(turns[0]))
        yield Question(f"train-{seed}-{number}", group.category, turns)
        waiting.rotate(-1)
        number, num_tries = number + 1, 0


def _conversation(group: Group, draw: random.Random) -> tuple[str, ...]:
    values: dict[str, str] = {}
    turns = [fill(draw.choice(group.first), draw, values)]
    if draw.random() < TWO_TURN_SHARE:
        turns.append(fill(draw.choice(group.then), draw, values))
    return tuple(turns)


def fill(template: str, draw: random.Random, values: dict[str, str]) -> str:
    """Replace the slots of a template; `values` remembers what each slot was given."""

    def replace(match: re.Match[str]) -> str:
        name, low, high = match.groups()
        if name is None:
            return match.group()[0]
        key = name[0].lower() + name[1:]
        if key not in values:
            values[key] = (
                str(draw.randint(int(low), int(high))) if low else _pick(key, draw, values)
            )
        value = values[key]
        return value[0].upper() + value[1:] if name[0].isupper() else value

    return ARTICLE.sub(_article, SLOT.sub(replace, template))


def _pick(key: str, draw: random.Random, values: dict[str, str]) -> str:
    """An entry of the list that `key` names, unlike those of its numbered siblings."""
    base = key.rstrip("0123456789")
    taken = {value for name, value in values.items() if name.rstrip("0123456789") == base}
    entries = _words()[base]
    while True:
        value = draw.choice(entries)
        if "{" in value:
            value = fill(value, draw, {} if key != base else values)
        if value not in taken:
            return value


def _article(match: re.Match[str]) -> str:
    article, word = match.groups()
    vowel = word[0] in "aeiouAEIOU" and not word.lower().startswith(SOUNDS_LIKE_A_CONSONANT)
    vowel = vowel or word[0] == "8" or word in ("11", "18")
    return f"{article}{'n' if vowel else ''} "


def _plain(turn: str) -> str:
    """A turn without case, punctuation and spacing: what makes two turns the same."""
    return " ".join(re.findall(r"\w+", turn.lower()))


@cache
def _words() -> dict[str, list[str]]:
    lists: dict[str, list[str]] = {}
    for name in ("words", "passages"):
        content = tomllib.loads(_asset(name))
        for key, entries in content.items():
            lines = entries.strip().splitlines() if isinstance(entries, str) else entries
            lists[key] = [line.strip() for line in lines]
    return lists


@cache
def _groups() -> dict[str, list[Group]]:
    content = tomllib.loads(_asset("templates"))
    return {
        category: [Group(category, tuple(row["first"]), tuple(row["then"])) for row in rows]
        for category, rows in content.items()
    }


def _asset(name: str) -> str:
    return (PROMPTS_FOLDER / "training" / f"{name}.toml").read_text(encoding="utf-8")
