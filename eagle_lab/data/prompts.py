"""Prompt files: the questions a bench asks and a capture answers.

A file holds JSON lines in one of two forms:

    {"question_id": 1, "category": "math", "turns": ["first turn", "second turn"]}
    {"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]}

A row whose category is missing or empty belongs to the category of its file's name; further keys
are kept in `Question.extra`. Knows nothing of tokenizers or models (see chat.py); Hugging Face data
sets are read by sources.py.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eagle_lab.errors import UserError, choose

PROMPTS_FOLDER = Path(__file__).resolve().parent.parent / "assets" / "prompts"
ROLES = ("system", "user", "assistant")
Message = dict[str, str]


class RowError(Exception):
    """A row that is no question; the reader of the file adds where it stands."""


@dataclass(frozen=True)
class Question:
    """One conversation to be had: the user's turns, in order.

    `extra` keeps the other keys of the row, among them `messages` where the file had that form.
    """

    question_id: str | int
    category: str
    turns: tuple[str, ...]
    extra: dict[str, Any] = field(default_factory=dict, hash=False)

    @property
    def system(self) -> str | None:
        """The system message of a row in chat form, if it has one."""
        messages = self.extra.get("messages") or [{}]
        return messages[0].get("content") if messages[0].get("role") == "system" else None

    def conversation(self, answers: Sequence[str] = ()) -> list[Message]:
        """The messages up to the user turn that follows `answers` (all turns must exist)."""
        if len(answers) >= len(self.turns):
            raise ValueError(f"{len(answers)} answers leave no turn of {len(self.turns)} to ask")
        messages = [] if self.system is None else [{"role": "system", "content": self.system}]
        for turn, answer in zip(self.turns, answers, strict=False):
            messages += [
                {"role": "user", "content": turn},
                {"role": "assistant", "content": answer},
            ]
        return [*messages, {"role": "user", "content": self.turns[len(answers)]}]


def builtin_prompts() -> dict[str, Path]:
    """Names of the prompt files that come with the package, and where they lie."""
    return {path.stem: path for path in sorted(PROMPTS_FOLDER.glob("*.jsonl"))}


def prompt_path(source: str | Path, also: Iterable[str] = ()) -> Path:
    """The file after a builtin name or a path; UserError if there is none.

    `also` are names that the caller knows beside the files; the error lists them.
    """
    builtin = builtin_prompts()
    path = builtin.get(str(source), Path(source).expanduser())
    if path.is_dir():
        raise UserError(f"prompts '{source}' is a folder; give a file of JSON lines")
    if not path.is_file():
        names = [*builtin, *also]
        if path.suffix or len(path.parts) > 1:
            raise UserError(f"no prompt file at '{source}'; builtin: {', '.join(names)}")
        choose(str(source), names, "prompt set (or path of a JSON-lines file)")
    return path


def prompt_file_hash(source: str | Path) -> str:
    """SHA-256 of the file's bytes (of a data set: of its turns), as 64 hexadecimal digits."""
    if str(source).startswith("dataset:"):
        from eagle_lab.data.sources import dataset_hash

        return dataset_hash(str(source))
    return hashlib.sha256(prompt_path(source).read_bytes()).hexdigest()


def load_questions(source: str | Path, also: Iterable[str] = ()) -> list[Question]:
    """Read a builtin set, a file of JSON lines, or `dataset:NAME` (see sources.py).

    Args:
        source: which.
        also: see `prompt_path`.

    Raises:
        UserError: no such file, nothing in it, or a bad row; names the file and the line.
    """
    if str(source).startswith("dataset:"):
        from eagle_lab.data.sources import load_dataset_questions

        return load_dataset_questions(str(source))
    path = prompt_path(source, also)
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text ({error.reason} at byte {error.start})") from None
    questions: list[Question] = []
    line_of: dict[str | int, int] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            question = parse_row(json.loads(line), default_id=number, category=path.stem)
        except json.JSONDecodeError as error:
            raise UserError(
                f"{path}, line {number}: not valid JSON ({error.msg}, column {error.colno})"
            ) from None
        except RowError as error:
            raise UserError(f"{path}, line {number}: {error}") from None
        first = line_of.setdefault(question.question_id, number)
        if first != number:
            raise UserError(
                f"{path}, line {number}: question_id {question.question_id!r} is already used "
                f"on line {first}"
            )
        questions.append(question)
    if not questions:
        raise UserError(f"{path}: no questions in the file; it needs at least one JSON line")
    return questions


def parse_row(row: Any, *, default_id: str | int, category: str) -> Question:
    """Turn one decoded row into a Question; RowError says what is wrong with it.

    Args:
        row: in one of the two forms.
        default_id: of a chat that has none.
        category: of a row that names none.
    """
    if not isinstance(row, dict):
        raise RowError(f"a row must be a JSON object, not {type(row).__name__}")
    if "messages" in row and "turns" not in row:
        turns, kept = user_turns(row["messages"]), ["question_id", "category"]
        question_id = row.get("question_id", row.get("id", default_id))
    else:
        kept = ["question_id", "category", "turns"]
        if missing := [key for key in ("question_id", "turns") if key not in row]:
            found = ", ".join(row) or "none"
            raise RowError(f"missing key '{missing[0]}' (keys found: {found})")
        turns, question_id = row["turns"], row["question_id"]
    if row.get("category") not in (None, ""):
        category = row["category"]
    extra = {key: value for key, value in row.items() if key not in kept}
    if isinstance(question_id, bool) or not isinstance(question_id, str | int):
        raise RowError(f"question_id must be text or an integer, not {question_id!r}")
    if not isinstance(category, str):
        raise RowError(f"category must be text, not {category!r}")
    if not isinstance(turns, list) or not turns:
        raise RowError("'turns' must be a list with at least one text")
    for index, turn in enumerate(turns, start=1):
        if not isinstance(turn, str) or not turn.strip():
            raise RowError(f"turn {index} is empty or no text")
    return Question(question_id, category, tuple(turns), extra)


def user_turns(messages: Any) -> list[str]:
    """The user's texts of a chat: [system], user, assistant, user, ...; RowError otherwise."""
    if not isinstance(messages, list) or not messages:
        raise RowError("'messages' must be a list with at least one message")
    for index, message in enumerate(messages, start=1):
        if not isinstance(message, dict) or not {"role", "content"} <= message.keys():
            raise RowError(f"message {index} needs 'role' and 'content'")
        if message["role"] not in ROLES:
            allowed = ", ".join(ROLES)
            raise RowError(f"message {index}: unknown role {message['role']!r}; allowed: {allowed}")
        if not isinstance(message["content"], str) or not message["content"].strip():
            raise RowError(f"message {index} is empty or no text")
    spoken = messages[1:] if messages[0]["role"] == "system" else messages
    for index, message in enumerate(spoken):
        if message["role"] != ROLES[1 + index % 2]:
            raise RowError("user and assistant must take turns, the user first")
    if not spoken:
        raise RowError("no user message")
    return [message["content"] for message in spoken if message["role"] == "user"]


def spread(questions: Iterable[Question], num: int | None) -> list[Question]:
    """Take `num` questions, as evenly over the categories as can be, in file order.

    The first of each category are taken, so a smaller spread is part of a larger one.
    None takes all.
    """
    questions = list(questions)
    if num is None:
        return questions
    if not 1 <= num <= len(questions):
        raise UserError(
            f"eval.num_questions={num}; allowed: 1 to {len(questions)}, what there is, or null"
        )
    ranked: list[tuple[int, int]] = []  # (place within its category, place in the file)
    seen: dict[str, int] = {}
    order: dict[str, int] = {}
    for index, question in enumerate(questions):
        order.setdefault(question.category, len(order))
        place = seen.get(question.category, 0)
        seen[question.category] = place + 1
        ranked.append((place * (len(questions) + 1) + order[question.category], index))
    chosen = sorted(index for _, index in sorted(ranked)[:num])
    return [questions[index] for index in chosen]
