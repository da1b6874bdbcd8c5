"""Rows of Hugging Face data sets as questions."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

import pytest

from eagle_lab.data.prompts import load_questions, prompt_file_hash
from eagle_lab.data.sources import rows_to_questions
from eagle_lab.errors import UserError

CHAT = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]


@pytest.mark.parametrize(
    "row",
    [
        {"messages": CHAT, "prompt": "Hi"},
        {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]},
        {"prompt": "Hi", "response": "Hello"},
        {"instruction": "Hi", "input": "", "output": "Hello"},
        {"question": "Hi", "answer": "Hello"},
        {"prompt": CHAT[:1], "completion": CHAT[1:]},
    ],
)
def test_the_usual_columns_give_the_same_chat(row: dict[str, Any]) -> None:
    (question,), num_skipped = rows_to_questions([row], name="data")
    assert (question.question_id, question.category, num_skipped) == ("data-0", "data", 0)
    assert question.turns == ("Hi",)
    assert question.extra["messages"] == CHAT


def test_input_stands_below_the_instruction() -> None:
    (question,), _ = rows_to_questions([{"instruction": "Sum up:", "input": "A text."}], "data")
    assert question.turns == ("Sum up:\n\nA text.",)


def test_rows_that_are_no_chat_are_counted() -> None:
    rows = [
        {"id": "a", "messages": CHAT},
        {"id": "a", "messages": CHAT},  # an id used twice
        {"messages": CHAT[1:]},  # the assistant begins
        {"messages": [{"role": "tool", "content": "x"}]},
        {"messages": [{"role": "user", "content": None}]},
        {"messages": ["Hi"]},
        {"text": "Hi"},
    ]
    questions, num_skipped = rows_to_questions(rows, "data")
    assert [question.question_id for question in questions] == ["a", "data-1"]
    assert num_skipped == 5


def test_the_bench_form_keeps_its_turns() -> None:
    row = {"question_id": 3, "category": "math", "turns": ["a", "b"]}
    ((question,), _) = rows_to_questions([row], "data")
    assert (question.question_id, question.turns) == (3, ("a", "b"))


def test_without_the_package_one_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UserError, match=r"pip install 'eagle-lab\[datasets\]'"):
        load_questions("dataset:any")


def test_a_saved_data_set_is_a_source_of_questions(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    datasets = pytest.importorskip("datasets")
    rows = [{"messages": CHAT}, {"messages": CHAT[1:]}]
    datasets.Dataset.from_list(rows).save_to_disk(tmp_path / "saved")
    with caplog.at_level(logging.WARNING):
        (question,) = load_questions(f"dataset:{tmp_path / 'saved'}")
    assert question.turns == ("Hi",)
    assert "1 of 2 conversations skipped" in caplog.text
    assert len(prompt_file_hash(f"dataset:{tmp_path / 'saved'}")) == 64


def test_columns_that_say_nothing_are_named(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    datasets.Dataset.from_list([{"text": "Hi"}]).save_to_disk(tmp_path / "saved")
    with pytest.raises(UserError, match="none of 1 rows is a chat .* its columns are text"):
        load_questions(f"dataset:{tmp_path / 'saved'}")


def test_no_name_is_an_error() -> None:
    pytest.importorskip("datasets")
    with pytest.raises(UserError, match="names no data set"):
        load_questions("dataset:")
