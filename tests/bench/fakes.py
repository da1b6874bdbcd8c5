"""Proposers that know what vanilla will say, and rows made by hand."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch

from eagle_lab.bench.runner import Bench
from eagle_lab.bench.settings import BenchSettings
from eagle_lab.data.prompts import Question
from eagle_lab.engine.draft_tree import DraftTree
from eagle_lab.engine.proposer import Context, Proposer
from eagle_lab.methods.build import Method
from eagle_lab.methods.vanilla import Vanilla
from eagle_lab.targets.load import load_target
from eagle_lab.targets.target import Target

QUESTIONS = (
    Question(1, "math", ("one", "and two?")),
    Question(2, "math", ("a longer question about numbers", "why?")),
    Question("c", "writing", ("hm, well", "say it again, at some length")),
)


@cache
def tiny_target() -> Target:
    """The random model of the tests, loaded once."""
    return load_target("tiny_random", device="cpu")


class Oracle(Proposer):
    """Drafts chains of `length` tokens of which the first so many are vanilla's.

    Args:
        texts: prompts with vanilla's answers after them.
        num_right: right tokens in the cycles of a text, from the start again where it ends.
        length: tokens drafted.
    """

    def __init__(self, texts: Sequence[list[int]], num_right: Sequence[int], length: int = 4):
        self.texts, self.num_right, self.max_nodes = texts, num_right, length

    def begin(self, context: Context, features: Any) -> None:
        self.num_cycles = 0

    def propose(self, context: Context) -> DraftTree:
        right = self.num_right[self.num_cycles % len(self.num_right)]
        self.num_cycles += 1
        drafts = torch.tensor([self._draft(tokens, right) for tokens in context.tokens])
        return DraftTree.chain(context.roots, drafts)

    def _draft(self, tokens: list[int], right: int) -> list[int]:
        text = next(text for text in self.texts if text[: len(tokens)] == tokens)
        coming = (text[len(tokens) :] + [0] * self.max_nodes)[: self.max_nodes]
        return [t if place < right else (t + 1) % 300 for place, t in enumerate(coming)]


def vanilla() -> Method:
    return Method("vanilla", Vanilla())


def texts_of(rows: Sequence[dict[str, Any]]) -> list[list[int]]:
    return [row["prompt_tokens"] + row["tokens"] for row in rows]


@cache
def vanilla_rows(max_new_tokens: int) -> list[dict[str, Any]]:
    """Vanilla's greedy rows on `QUESTIONS`, two turns."""
    settings = BenchSettings(max_new_tokens=max_new_tokens, timing=False)
    return Bench(tiny_target(), [vanilla()], QUESTIONS, settings).run()


def oracle(name: str, num_right: Sequence[int], max_new_tokens: int, length: int = 4) -> Method:
    """A method that drafts `num_right` right tokens in the cycles of a text."""
    texts = texts_of(vanilla_rows(max_new_tokens))
    proposer = Oracle(texts, num_right, length)
    settings = {"num_draft_tokens": length}
    return Method(name, proposer, settings=settings, depth=length, num_nodes=length)


def row(
    question_id: str | int,
    accepted: Sequence[int],
    emitted: Sequence[int] | None = None,
    *,
    method: str = "some",
    turn: int = 1,
    repeat: int = 1,
    batch: int | None = None,
    category: str = "math",
    seconds: tuple[float, float] | None = (0.5, 1.0),
) -> dict[str, Any]:
    """A row whose cycles accepted so much, decoded alone unless it has a `batch`.

    `seconds` are those of prefill and decoding.
    """
    emitted = [length + 1 for length in accepted] if emitted is None else list(emitted)
    num_cycles = len(emitted)
    return {
        "method": method,
        "depth": None,
        "width": None,
        "num_nodes": None,
        "settings": {},
        "question_id": question_id,
        "category": category,
        "turn": turn,
        "repeat": repeat,
        "batch": question_id if batch is None else batch,
        "prompt_tokens": [1, 2],
        "tokens": list(range(1 + sum(emitted))),
        "accepted_lengths": list(accepted),
        "emitted_lengths": emitted,
        "num_drafted": 4 * num_cycles,
        "prefill_s": seconds and seconds[0],
        "decode_s": seconds and seconds[1],
        "draft_s": seconds and 0.25 * seconds[1],
        "verify_s": seconds and 0.5 * seconds[1],
        "cycle_s": seconds and [seconds[1] / num_cycles for _ in emitted],
        "peak_memory_mb": 10.0,
    }
