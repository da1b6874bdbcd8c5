"""Where a capture's conversations come from: prompts to answer, or text that is already written.

A source can be iterated again and again with the same result, and carries its name and hash, so
that a store can say what it was made from. Hugging Face `datasets` are read by hub name or folder
(one that `save_to_disk` wrote, or one of JSON lines, CSV or Parquet files):

    dataset:NAME              the split "train"
    dataset:NAME:SPLIT        another split, such as train_sft
    dataset:NAME:SPLIT:SUBSET a subset (configuration) of the data set

Their rows are understood by their columns (see `row_to_chat`); those that hold no chat which a user
opens and whose turns alternate are skipped and counted.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from eagle_lab.data.answers import Answer, load_answers
from eagle_lab.data.chat import ChatTemplate
from eagle_lab.data.prompts import Question, RowError, load_questions, parse_row, prompt_file_hash
from eagle_lab.data.training_prompts import training_prompts
from eagle_lab.errors import UserError

PREFIX = "dataset:"
CHAT_COLUMNS = ("messages", "conversations", "conversation")
PROMPT_COLUMNS = ("prompt", "instruction", "question")
ANSWER_COLUMNS = ("response", "completion", "output", "answer")
ROLE_NAMES = {"human": "user"} | dict.fromkeys(("gpt", "bot", "model", "chatgpt"), "assistant")

log = logging.getLogger(__name__)


def load_dataset_questions(source: str) -> list[Question]:
    """The usable rows of a data set; the number of rows left out is logged as a warning.

    Raises:
        UserError: `datasets` is not installed, there is no such data set, or no row is usable.
    """
    rows = _open(source)
    questions, num_skipped = rows_to_questions(rows, name=source.removeprefix(PREFIX))
    if not questions:
        columns = sorted(next(iter(rows), {}))
        raise UserError(
            f"'{source}': none of {num_skipped} rows is a chat or a prompt; its columns are "
            f"{', '.join(columns) or 'none'}; understood: {', '.join(CHAT_COLUMNS)}, turns, "
            f"or one of {', '.join(PROMPT_COLUMNS)}"
        )
    if num_skipped:
        total = num_skipped + len(questions)
        log.warning("%s: %d of %d conversations skipped: no chat", source, num_skipped, total)
    return questions


def dataset_hash(source: str) -> str:
    """SHA-256 over all turns of a data set, as 64 hexadecimal digits."""
    return _hash_of_turns(load_dataset_questions(source))


def _hash_of_turns(questions: Iterable[Question]) -> str:
    turns = [question.turns for question in questions]
    return hashlib.sha256(json.dumps(turns).encode()).hexdigest()


def rows_to_questions(rows: Iterable[Mapping[str, Any]], name: str) -> tuple[list[Question], int]:
    """Questions made of rows, and how many rows were skipped."""
    questions: list[Question] = []
    num_skipped = 0
    seen: set[str | int] = set()
    for index, row in enumerate(rows):
        try:
            question = parse_row(row_to_chat(row), default_id=f"{name}-{index}", category=name)
        except RowError:
            num_skipped += 1
            continue
        if question.question_id in seen:  # the data's own ids need not be unique
            question = replace(question, question_id=f"{name}-{index}")
        seen.add(question.question_id)
        questions.append(question)
    return questions, num_skipped


def row_to_chat(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row in one of the two forms of prompt files; RowError if it holds none of them.

    Chats are lists of {role, content} or {from, value}. A prompt is a text, with `input` below it
    where there is one (the Alpaca form), or such a list; its answer becomes an assistant message.
    """
    base = {"category": str(row["category"])} if row.get("category") else {}
    base |= {key: row[key] for key in ("question_id", "id") if isinstance(row.get(key), str | int)}
    if row.get("turns") and "question_id" in row:
        return {**base, "turns": list(row["turns"])}
    for column in CHAT_COLUMNS:
        if row.get(column):
            return {**base, "messages": _messages(row[column])}
    prompt = next((row[column] for column in PROMPT_COLUMNS if row.get(column)), None)
    answer = next((row[column] for column in ANSWER_COLUMNS if row.get(column)), None)
    if prompt is None:
        raise RowError("no column with a chat or a prompt")
    if isinstance(prompt, str):
        text = f"{prompt}\n\n{row['input']}" if row.get("input") else prompt
        messages = [{"role": "user", "content": text}]
    else:
        messages = _messages(prompt)
    if isinstance(answer, str):
        messages.append({"role": "assistant", "content": answer})
    elif answer is not None:
        messages += _messages(answer)
    return {**base, "messages": messages}


def _messages(value: Any) -> list[dict[str, Any]]:
    messages = []
    for message in value if isinstance(value, list | tuple) else [value]:
        if not isinstance(message, Mapping):
            raise RowError("a message is no mapping of role and text")
        role = str(message.get("role") or message.get("from"))
        content = message.get("content") or message.get("value")
        messages.append({"role": ROLE_NAMES.get(role, role), "content": content})
    return messages


def _open(source: str) -> Iterable[Mapping[str, Any]]:
    try:
        import datasets
    except ImportError:
        raise UserError(
            f"'{source}' needs the package datasets: pip install 'eagle-lab[datasets]'"
        ) from None
    name, split, subset = (*source.removeprefix(PREFIX).split(":"), "", "")[:3]
    if not name:
        raise UserError(f"'{source}' names no data set; write dataset:NAME[:SPLIT[:SUBSET]]")
    folder = Path(name).expanduser()
    try:
        if (folder / "state.json").is_file():
            return datasets.load_from_disk(folder)
        if (folder / "dataset_dict.json").is_file():
            return datasets.load_from_disk(folder)[split or "train"]
        path = str(folder) if folder.exists() else name
        return datasets.load_dataset(path, subset or None, split=split or "train")
    except (OSError, ValueError, KeyError) as error:  # no such data set, split, subset or network
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise UserError(f"cannot load data set '{name}': {reason[0]}") from error


TRAINING = "training"  # the package's own prompts, without end
SELF_WRITTEN = "self_written"  # prompts that the target writes itself, without end
_HASHED = 1000  # prompts of the endless source that enter its hash


@dataclass
class Source:
    """Conversations to capture; iterated more than once, each time alike.

    Attributes:
        items: makes them, in order.
        count: how many there are; None if there is no end.
        facts: name, number and hash, for the store's fingerprint.
        num_skipped: those that were left out before.
    """

    items: Callable[[], Iterable[Any]]
    count: int | None
    facts: dict[str, Any]
    num_skipped: int = 0

    def __iter__(self) -> Iterator[Any]:
        return islice(self.items(), self.count)


def prompt_source(name: str, num: int | None = None, seed: int = 0) -> Source:
    """Questions: `training`, a builtin prompt set, a file or a data set.

    Args:
        name: which.
        num: how many; None takes all (of `training`: as many as are asked for).
        seed: of `training`.
    """
    facts: dict[str, Any] = {"prompts": name, "num": num}
    if name == TRAINING:
        source = Source(lambda: _training(num or _HASHED, seed), num, facts)
        facts |= {"sha256": _hash_of_turns(islice(source, _HASHED)), "seed": seed}
        return source
    questions = load_questions(name, also=(TRAINING, SELF_WRITTEN))
    facts["sha256"] = prompt_file_hash(name)
    return Source(lambda: questions, min(len(questions), num or len(questions)), facts)


def _training(size: int, seed: int) -> Iterator[Question]:
    """The endless sequence, fetched in blocks: a longer one begins with the shorter one."""
    num_seen = 0
    while True:
        questions = training_prompts(size, seed)
        yield from questions[num_seen:]
        num_seen, size = size, 2 * size


def answer_source(path: str | Path, template: ChatTemplate, num: int | None = None) -> Source:
    """Conversations that are already written: a store's answers, or a file of chats.

    Args:
        path: a feature store, its answers.safetensors, or JSON lines with `messages`.
        template: of the target that will read them.
        num: how many; None takes all.

    Raises:
        UserError: no such file, a bad row, answers of another vocabulary or template, or no
            conversation in which the assistant speaks.
    """
    path, num_skipped = Path(path).expanduser(), 0
    if path.is_dir() or path.suffix == ".safetensors":
        answers, facts = load_answers(path)
        if facts.get("chat_template") != template.fingerprint:
            raise UserError(
                f"the answers in '{path}' were made with another tokenizer or chat template; "
                f"they cannot be read by {template.name}"
            )
    else:
        read = [_written(question, template) for question in load_questions(path)]
        answers = [answer for answer in read if answer is not None]
        num_skipped = len(read) - len(answers)
    answers = answers[:num]
    if not answers:
        raise UserError(f"'{path}' holds no conversation with words of the assistant to learn")
    digest = hashlib.sha256()
    for answer in answers:
        digest.update(answer.tokens.numpy().tobytes() + answer.supervised.numpy().tobytes())
    facts = {"answers": str(path), "sha256": digest.hexdigest(), "num": len(answers)}
    return Source(lambda: answers, len(answers), facts, num_skipped)


def _written(question: Question, template: ChatTemplate) -> Answer | None:
    """A chat as it is; None where there is nothing of the assistant's to learn."""
    messages = question.extra.get("messages")
    try:
        ids, mask = template.encode_with_mask(messages) if messages else ([], [])
    except UserError:  # a template that rewrites this chat
        return None
    name = str(question.question_id)
    return Answer(torch.tensor(ids), torch.tensor(mask), name) if any(mask) else None
