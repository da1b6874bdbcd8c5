"""Chats and prompts from Hugging Face `datasets`: by hub name, or a local folder.

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
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from eagle_lab.data.prompts import Question, RowError, parse_row
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
