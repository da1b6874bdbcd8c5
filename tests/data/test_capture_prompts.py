"""The target writes its own prompts."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest

from eagle_lab.data.capture import self_written_prompts, usable
from eagle_lab.engine.record import Generation
from eagle_lab.engine.sampling import row_key
from eagle_lab.errors import UserError
from eagle_lab.targets.load import load_target
from eagle_lab.targets.target import Target


@pytest.fixture(scope="module")
def target() -> Target:
    return load_target("tiny_random", device="cpu")


@pytest.mark.parametrize(
    ("text", "good"),
    [
        ("How do I bake bread?", True),
        ("Sum up this:\n\n\tA text.", True),
        ("Why?", False),
        ("12345 + 67890 + 11111 = ?", False),
        ("How do I bake\x07 bread?", False),
        ("How do I bake \ufffd bread?", False),
        ("How do I bake bread?<|im_start|>", False),
    ],
)
def test_what_can_be_a_prompt(text: str, good: bool) -> None:
    assert usable(text, ["<|im_start|>", "<|im_end|>"]) is good


def written_by_key(target: Target, _: Any, prompts: list, *, row_keys: list, **__: Any) -> list:
    """Of four texts one is always the same, one is cut off, and two differ for every key."""
    generations = []
    for prompt, key in zip(prompts, row_keys, strict=True):
        text = "How do I bake bread?" if key % 4 == 0 else f"Tell me about number {key}."
        tokens = [*target.tokenizer(text)["input_ids"], target.tokenizer.eos_token_id]
        ended = "length" if key % 4 == 1 else "eos"
        generations.append(Generation(prompt, tokens, finished_by=ended))
    return generations


def test_the_sequence_is_one_for_all_batch_sizes_and_can_be_continued(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eagle_lab.data.capture.decode", written_by_key)
    questions = list(islice(self_written_prompts(target, seed=3, batch_size=64), 30))
    assert list(islice(self_written_prompts(target, seed=3, batch_size=7), 30)) == questions
    rest = self_written_prompts(target, seed=3, batch_size=7, after=questions[:10])
    assert list(islice(rest, 20)) == questions[10:]

    turns = [question.turns[0] for question in questions]
    assert turns.count("How do I bake bread?") == 1
    assert len(set(turns)) == 30
    keys = [row_key(3, question.question_id, 0, 0) for question in questions]
    assert all(key % 4 != 1 for key in keys)  # none of those that were cut off
    assert {question.category for question in questions} == {"self_written"}


def test_a_target_that_writes_nothing_usable_ends_the_run(target: Target) -> None:
    written = self_written_prompts(target, batch_size=2, max_new_tokens=1)
    with pytest.raises(UserError, match=" 40 "):
        next(written)
