"""Where a capture's conversations come from: prompts to answer, or text that is already written.

Each source can be iterated again and again with the same result, and describes itself by name and
hash, so that a store can say what it was made from.

Chats and prompts from Hugging Face `datasets`: by hub name, or a local folder.

    dataset:NAME              the split "train"
    dataset:NAME:SPLIT        another split, such as train_sft
    dataset:NAME:SPLIT:SUBSET a subset (configuration) of the data set

NAME may be a folder: one that `save_to_disk` wrote, or one of JSON lines, CSV or Parquet files.
Rows are understood by their columns (see `row_to_chat`); those that hold no chat which a user
opens and whose turns alternate are skipped and counted.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
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
ROLE_NAMES = {
    "human": "user",
    "gpt": "assistant",
    "bot": "assistant",
    "model": "assistant",
    "chatgpt": "assistant",
}

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
    turns = [question.turns for question in load_dataset_questions(source)]
    return hashlib.sha256(json.dumps(turns).encode()).hexdigest()


def rows_to_questions(rows: Iterable[Mapping[str, Any]], name: str) -> tuple[list[Question], int]:
    """Questions made of rows, and how many rows were skipped."""
    questions: list[Question] = []
    num_skipped = 0
    seen: set[str | int] = set()
    for index, row in enumerate(rows):
        try:
            question = parse_row(row_to_chat(row, name), default_id=f"{name}-{index}")
        except RowError:
            num_skipped += 1
            continue
        if question.question_id in seen:  # the data's own ids need not be unique
            question = Question(
                f"{name}-{index}", question.category, question.turns, question.extra
            )
        seen.add(question.question_id)
        questions.append(question)
    return questions, num_skipped


def row_to_chat(row: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A row in one of the two forms of prompt files; RowError if it holds none of them.

    Chats are lists of {role, content} or {from, value}. A prompt is a text, with `input` below it
    where there is one (the Alpaca form), or such a list; its answer becomes an assistant message.
    """
    base = {"category": str(row.get("category") or name)}
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


TRAINING = "training"
SELF_WRITTEN = "self_written"  # prompts that the target writes itself
_HASHED = 1000  # prompts of the endless source that enter its hash


@dataclass
class PromptSource:
    """Questions: the package's training prompts, or a prompt file.

    Args:
        name: `training`, a builtin prompt set, or a path.
        num: how many; None takes all (of `training`: as many as are asked for).
        seed: of `training`.
    """

    name: str
    num: int | None = None
    seed: int = 0
    _read: list[Question] = field(default_factory=list, repr=False)

    def __post_init__(self) -> None:
        if self.num is not None and self.num < 1:
            raise UserError(f"data.num_prompts={self.num} must be at least 1, or null")
        if self.name != TRAINING:
            self._read = load_questions(self.name, also=(TRAINING, SELF_WRITTEN))

    @property
    def count(self) -> int | None:
        """How many questions there are; None for the endless source."""
        if self.name == TRAINING:
            return self.num
        return min(len(self._read), self.num or len(self._read))

    def __iter__(self) -> Iterator[Question]:
        """The questions, in order."""
        source = self._training() if self.name == TRAINING else iter(self._read)
        return islice(source, self.num)

    def _training(self) -> Iterator[Question]:
        """The endless sequence, fetched in blocks: a longer one begins with the shorter one."""
        num_seen, size = 0, self.num or _HASHED
        while True:
            questions = training_prompts(size, self.seed)
            yield from questions[num_seen:]
            num_seen, size = size, 2 * size

    def describe(self) -> dict[str, Any]:
        """Name, number and hash."""
        if self.name != TRAINING:
            return {"prompts": self.name, "sha256": prompt_file_hash(self.name), "num": self.num}
        text = json.dumps([question.turns for question in islice(self, _HASHED)])
        digest = hashlib.sha256(text.encode()).hexdigest()
        return {"prompts": TRAINING, "sha256": digest, "num": self.num, "seed": self.seed}


class AnswerSource:
    """Conversations that are already written: a store's answers, or a file of chats.

    Args:
        path: a feature store, its answers.safetensors, or JSON lines with `messages`.
        template: of the target that will read them.
        num: how many; None takes all.

    Raises:
        UserError: no such file, a bad row, answers of another vocabulary or template, or no
            conversation in which the assistant speaks.
    """

    def __init__(self, path: str | Path, template: ChatTemplate, num: int | None = None):
        self.path = Path(path).expanduser()
        self.num_skipped = 0
        stored = self.path.is_dir() or self.path.suffix == ".safetensors"
        answers = self._stored(template) if stored else self._chats(template)
        self.answers = answers[:num]
        if not self.answers:
            raise UserError(f"'{path}' holds no conversation with words of the assistant to learn")

    @property
    def count(self) -> int:
        """How many conversations there are."""
        return len(self.answers)

    def __iter__(self) -> Iterator[Answer]:
        """The conversations, in order."""
        return iter(self.answers)

    def _stored(self, template: ChatTemplate) -> list[Answer]:
        answers, facts = load_answers(self.path)
        if facts.get("chat_template") != template.fingerprint:
            raise UserError(
                f"the answers in '{self.path}' were made with another tokenizer or chat template; "
                f"they cannot be read by {template.name}"
            )
        return answers

    def _chats(self, template: ChatTemplate) -> list[Answer]:
        answers = []
        for question in load_questions(self.path):
            messages = question.extra.get("messages") or []
            try:
                ids, mask = template.encode_with_mask(messages) if messages else ([], [])
            except UserError:  # a template that rewrites this chat
                ids, mask = [], []
            if any(mask):
                name = str(question.question_id)
                answers.append(Answer(torch.tensor(ids), torch.tensor(mask), name))
            else:
                self.num_skipped += 1
        return answers

    def describe(self) -> dict[str, Any]:
        """Path, number and a hash over all tokens and masks."""
        digest = hashlib.sha256()
        for answer in self.answers:
            digest.update(answer.tokens.numpy().tobytes() + answer.supervised.numpy().tobytes())
        facts = {"sha256": digest.hexdigest(), "num": len(self.answers)}
        return {"answers": str(self.path), **facts}
