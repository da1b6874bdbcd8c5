"""Answers as token ids alone: small enough to keep for ever, enough to capture features anew.

One safetensors file: all tokens in a row (16 bits each where the vocabulary allows it), the length
of each conversation, and the spans the assistant produced. Its header says which target, tokenizer
template and settings they came from.

Shapes: C conversations, T tokens of one of them, K assistant spans.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from eagle_lab import files
from eagle_lab.errors import UserError

ANSWERS = "answers.safetensors"
FORMAT = "eagle_lab answers 1"


@dataclass(frozen=True)
class Answer:
    """One conversation without features.

    Attributes:
        tokens: [T] int64, prompt and answers of all turns.
        supervised: [T] bool, True on the tokens the assistant produced.
        conversation_id: of the question it answers.
    """

    tokens: Tensor
    supervised: Tensor
    conversation_id: str


def save_answers(path: Path, answers: Iterable[Answer], facts: dict[str, Any]) -> None:
    """Write `answers` and the JSON values `facts` to `path` in one step."""
    tokens, lengths, spans, names = [], [], [], []
    for row, answer in enumerate(answers):
        tokens.append(answer.tokens)
        lengths.append(len(answer.tokens))
        names.append(answer.conversation_id)
        spans += [(row, start, end) for start, end in _spans(answer.supervised)]
    joined = torch.cat(tokens)
    small = int(joined.max()) < 2**16
    tensors = {
        "tokens": joined.to(torch.uint16 if small else torch.int32),
        "lengths": torch.tensor(lengths, dtype=torch.int32),
        "spans": torch.tensor(spans, dtype=torch.int32).reshape(-1, 3),
    }
    header = {"format": FORMAT, "facts": json.dumps(facts), "conversations": json.dumps(names)}
    with files.whole(path) as partial:
        save_file(tensors, partial, metadata=header)


def load_answers(source: str | Path) -> tuple[list[Answer], dict[str, Any]]:
    """Answers and facts of a file, or of the file in a feature store's folder.

    Raises:
        UserError: no such file, or one that is not whole or of another kind.
    """
    path = Path(source)
    path = path / ANSWERS if path.is_dir() else path
    if not path.is_file():
        raise UserError(f"no stored answers at '{path}'")
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            if header.get("format") != FORMAT:
                raise UserError(f"'{path}' holds no stored answers (format '{FORMAT}')")
            tensors = {name: file.get_tensor(name) for name in ("tokens", "lengths", "spans")}
    except SafetensorError as error:
        raise UserError(f"stored answers '{path}' are damaged: {error}") from error
    tokens = tensors["tokens"].long()
    supervised = torch.zeros(len(tokens), dtype=torch.bool)
    starts = [0, *itertools.accumulate(tensors["lengths"].tolist())]
    for row, start, end in tensors["spans"].tolist():
        supervised[starts[row] + start : starts[row] + end] = True
    answers = [
        Answer(tokens[a:b], supervised[a:b], name)
        for (a, b), name in zip(
            itertools.pairwise(starts), json.loads(header["conversations"]), strict=True
        )
    ]
    return answers, json.loads(header["facts"])


def _spans(mask: Tensor) -> list[tuple[int, int]]:
    """Runs of True as (start, end): [0, 1, 1, 0, 1] gives [(1, 3), (4, 5)]."""
    change = torch.nn.functional.pad(mask.int(), (1, 1)).diff()
    starts = (change == 1).nonzero().flatten().tolist()
    ends = (change == -1).nonzero().flatten().tolist()
    return list(zip(starts, ends, strict=True))
