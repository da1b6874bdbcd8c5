"""Sources of a capture can be read again and again, and say what they are."""

import json
import logging
import sys
from itertools import islice

import pytest
import torch

from eagle_lab.data.answers import ANSWERS, Answer, save_answers
from eagle_lab.data.chat import ChatTemplate
from eagle_lab.data.prompts import load_questions, prompt_file_hash
from eagle_lab.data.sources import answer_source, prompt_source, rows_to_questions
from eagle_lab.errors import UserError
from eagle_lab.targets.tiny import byte_tokenizer

CHATS = [
    [("user", "Hi"), ("assistant", "Hello"), ("user", "Bye"), ("assistant", "See you")],
    [("user", "Nobody answers this")],
    [("user", "2 + 2?"), ("assistant", "4")],
]


@pytest.fixture(scope="module")
def template():
    return ChatTemplate(byte_tokenizer())


def chat_file(path, chats):
    rows = [{"messages": [{"role": role, "content": text} for role, text in c]} for c in chats]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_training_prompts_have_no_end_and_one_order():
    source = prompt_source("training", seed=3)
    assert source.count is None
    first = list(islice(source, 1500))
    assert len({question.question_id for question in first}) == 1500
    assert list(islice(source, 1500)) == first
    assert list(prompt_source("training", 40, seed=3)) == first[:40]


def test_a_file_gives_its_questions_and_its_hash(tmp_path):
    path = tmp_path / "questions.jsonl"
    rows = [{"question_id": i, "category": "a", "turns": [f"Question {i}"]} for i in range(5)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = prompt_source(str(path), 3)
    assert [question.question_id for question in source] == [0, 1, 2]
    assert source.count == 3
    before = source.facts
    assert before == prompt_source(str(path), 3).facts
    path.write_text(path.read_text().replace("Question 4", "Question four"))
    assert prompt_source(str(path), 3).facts != before


def test_sources_of_different_seeds_differ():
    assert prompt_source("training", seed=0).facts != prompt_source("training", seed=1).facts


def test_written_chats_supervise_the_assistant_and_count_the_rest(tmp_path, template):
    source = answer_source(chat_file(tmp_path / "chats.jsonl", CHATS), template)
    tokenizer = template.tokenizer
    spoken = [tokenizer.decode(one.tokens[one.supervised]) for one in source]
    assert spoken == ["Hello<|im_end|>See you<|im_end|>", "4<|im_end|>"]
    assert source.count == 2
    assert source.num_skipped == 1


def test_chats_without_a_word_of_the_assistant_stop_the_run(tmp_path, template):
    with pytest.raises(UserError, match="chats.jsonl"):
        answer_source(chat_file(tmp_path / "chats.jsonl", CHATS[1:2]), template)


def test_stored_answers_of_another_template_are_refused(tmp_path, template):
    answer = Answer(torch.tensor([1, 2]), torch.tensor([False, True]), "c")
    save_answers(tmp_path / ANSWERS, [answer], {"chat_template": template.fingerprint})
    assert [one.conversation_id for one in answer_source(tmp_path, template)] == ["c"]
    save_answers(tmp_path / ANSWERS, [answer], {"chat_template": "another"})
    with pytest.raises(UserError, match=tmp_path.name):
        answer_source(tmp_path, template)


def test_a_misspelt_prompt_set_is_told_all_names():
    with pytest.raises(UserError, match="self_written, .*'training'"):
        prompt_source("trainin")


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
def test_the_usual_columns_give_the_same_chat(row):
    (question,), num_skipped = rows_to_questions([row], name="data")
    assert (question.question_id, question.category, num_skipped) == ("data-0", "data", 0)
    assert question.turns == ("Hi",)
    assert question.extra["messages"] == CHAT


def test_input_stands_below_the_instruction():
    (question,), _ = rows_to_questions([{"instruction": "Sum up:", "input": "A text."}], "data")
    assert question.turns == ("Sum up:\n\nA text.",)


def test_rows_that_are_no_chat_are_counted():
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


def test_the_bench_form_keeps_its_turns():
    row = {"question_id": 3, "category": "math", "turns": ["a", "b"]}
    ((question,), _) = rows_to_questions([row], "data")
    assert (question.question_id, question.turns) == (3, ("a", "b"))


def test_without_the_package_one_is_told_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UserError, match=r"eagle-lab\[datasets\]"):
        load_questions("dataset:any")


def test_a_saved_data_set_is_a_source_of_questions(tmp_path, caplog):
    datasets = pytest.importorskip("datasets")
    rows = [{"messages": CHAT}, {"messages": CHAT[1:]}]
    datasets.Dataset.from_list(rows).save_to_disk(tmp_path / "saved")
    with caplog.at_level(logging.WARNING):
        (question,) = load_questions(f"dataset:{tmp_path / 'saved'}")
    assert question.turns == ("Hi",)
    assert "1 of 2" in caplog.text
    assert len(prompt_file_hash(f"dataset:{tmp_path / 'saved'}")) == 64


def test_columns_that_say_nothing_are_named(tmp_path):
    datasets = pytest.importorskip("datasets")
    datasets.Dataset.from_list([{"text": "Hi"}]).save_to_disk(tmp_path / "saved")
    with pytest.raises(UserError, match="columns are text"):
        load_questions(f"dataset:{tmp_path / 'saved'}")


def test_no_name_is_an_error():
    pytest.importorskip("datasets")
    with pytest.raises(UserError, match="NAME"):
        load_questions("dataset:")
