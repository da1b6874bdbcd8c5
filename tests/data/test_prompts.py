"""Prompt files: both forms, every way to get them wrong, and the spread over categories."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from eagle_lab.data.prompts import (
    Question,
    load_questions,
    prompt_file_hash,
    spread,
)
from eagle_lab.errors import UserError

ROW = {"question_id": 7, "category": "math", "turns": ["1 + 1?", "Why?"]}


def write(path: Path, *rows: Any) -> Path:
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def test_the_mt_bench_form_keeps_further_keys(tmp_path: Path) -> None:
    path = write(tmp_path / "p.jsonl", {**ROW, "reference": ["2"]}, "", {**ROW, "question_id": "b"})
    assert load_questions(path) == [
        Question(7, "math", ("1 + 1?", "Why?"), {"reference": ["2"]}),
        Question("b", "math", ("1 + 1?", "Why?"), {}),
    ]


def test_the_chat_form_gives_the_users_turns(tmp_path: Path) -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello"},
        {"role": "user", "content": "Bye"},
    ]
    (question,) = load_questions(write(tmp_path / "p.jsonl", {"messages": messages, "id": "x"}))
    assert (question.question_id, question.category) == ("x", "p")
    assert question.turns == ("Hi", "Bye")
    assert question.extra["messages"] == messages
    assert question.conversation() == messages[:2]
    assert question.conversation(["Ho"]) == [
        *messages[:2],
        {"role": "assistant", "content": "Ho"},
        messages[3],
    ]
    with pytest.raises(ValueError, match="2"):
        question.conversation(["Ho", "So"])


@pytest.mark.parametrize("category", [{}, {"category": ""}, {"category": None}])
def test_a_row_without_category_takes_the_files_name(tmp_path: Path, category: dict) -> None:
    row = {"question_id": 1, "turns": ["a"], **category}
    (question,) = load_questions(write(tmp_path / "alpaca.jsonl", row))
    assert question.category == "alpaca"


def test_a_byte_order_mark_and_windows_line_ends_are_no_content(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(ROW).encode() + b"\r\n\r\n")
    assert [question.question_id for question in load_questions(path)] == [7]


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ('{"question_id": 1,', "column"),
        ("[1, 2]", "list"),
        ({"prompt": "a"}, "question_id.*prompt"),
        ({**ROW, "turns": []}, "turns"),
        ({**ROW, "turns": "a"}, "turns"),
        ({**ROW, "turns": ["a", " "]}, "turn 2"),
        ({**ROW, "turns": [3]}, "turn 1"),
        ({**ROW, "question_id": None}, "question_id.* None"),
        ({**ROW, "category": 3}, "category.* 3"),
        (ROW, "question_id 7 .* line 1"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user"}]}, "message 1 .*role.*content"),
        (
            {"messages": [{"role": "me", "content": "a"}]},
            "message 1.*me.*system, user, assistant",
        ),
        ({"messages": [{"role": "user", "content": ""}]}, "message 1"),
        ({"messages": [{"role": "system", "content": "a"}]}, "user"),
        ({"messages": [{"role": "assistant", "content": "a"}]}, "user"),
    ],
)
def test_a_bad_row_is_named_with_its_line(tmp_path: Path, row: Any, complaint: str) -> None:
    path = write(tmp_path / "p.jsonl", ROW, "", row)
    with pytest.raises(UserError, match=rf"p\.jsonl, line 3: .*{complaint}"):
        load_questions(path)


@pytest.mark.parametrize("content", [b"", b"\n \n"])
def test_an_empty_file_is_an_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "empty.jsonl"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"empty\.jsonl"):
        load_questions(path)


def test_other_bytes_than_utf8_are_an_error(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match=r"p\.jsonl"):
        load_questions(path)


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("bench8", "'bench80'"),
        ("no/such/file.jsonl", "no/such/file.jsonl.*bench80"),
        ("/", "'/'"),
    ],
)
def test_a_source_that_is_not_there(source: str, complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        load_questions(source)


def test_the_hash_is_of_the_files_bytes(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_bytes(b"abc")
    assert prompt_file_hash(path) == (
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    )


def questions(categories: str) -> list[Question]:
    return [Question(number, letter, ("?",)) for number, letter in enumerate(categories)]


@pytest.mark.parametrize(
    ("categories", "num", "chosen"),
    [
        ("aabbcc", 3, [0, 2, 4]),
        ("aabbcc", 4, [0, 1, 2, 4]),
        ("abcabc", 4, [0, 1, 2, 3]),
        ("aaaab", 4, [0, 1, 2, 4]),  # b has only one
        ("bba", 1, [0]),
        ("abc", None, [0, 1, 2]),
    ],
)
def test_a_spread_is_even_and_in_file_order(
    categories: str, num: int | None, chosen: list[int]
) -> None:
    assert [question.question_id for question in spread(questions(categories), num)] == chosen


def test_a_smaller_spread_is_part_of_a_larger_one() -> None:
    everything = load_questions("bench80")
    spreads = [
        {question.question_id for question in spread(everything, num)} for num in range(1, 81)
    ]
    assert all(small < large for small, large in itertools.pairwise(spreads))


@pytest.mark.parametrize("num", [0, -1, 4])
def test_more_questions_than_there_are(num: int) -> None:
    with pytest.raises(UserError, match=f"eval.num_questions={num}.* 3"):
        spread(questions("abc"), num)
