"""Where a capture's conversations come from: prompts to answer, or text that is already written.

Each source can be iterated again and again with the same result, and describes itself by name and
hash, so that a store can say what it was made from.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from eagle_lab.data.answers import Answer, load_answers
from eagle_lab.data.chat import ChatTemplate
from eagle_lab.data.prompts import Question, load_questions, prompt_file_hash
from eagle_lab.data.training_prompts import training_prompts
from eagle_lab.errors import UserError

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
