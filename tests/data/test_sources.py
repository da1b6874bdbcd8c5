"""Sources of a capture can be read again and again, and say what they are."""

import json
from itertools import islice

import pytest
import torch

from eagle_lab.data.answers import ANSWERS, Answer, save_answers
from eagle_lab.data.chat import ChatTemplate
from eagle_lab.data.sources import AnswerSource, PromptSource
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
    source = PromptSource("training", seed=3)
    assert source.count is None
    first = list(islice(source, 1500))
    assert len({question.question_id for question in first}) == 1500
    assert list(islice(source, 1500)) == first
    assert list(PromptSource("training", 40, seed=3)) == first[:40]


def test_a_file_gives_its_questions_and_its_hash(tmp_path):
    path = tmp_path / "questions.jsonl"
    rows = [{"question_id": i, "category": "a", "turns": [f"Question {i}"]} for i in range(5)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = PromptSource(str(path), 3)
    assert [question.question_id for question in source] == [0, 1, 2]
    assert source.count == 3
    before = source.describe()
    assert before == PromptSource(str(path), 3).describe()
    path.write_text(path.read_text().replace("Question 4", "Question four"))
    assert PromptSource(str(path), 3).describe() != before


def test_sources_of_different_seeds_differ():
    assert (
        PromptSource("training", seed=0).describe() != PromptSource("training", seed=1).describe()
    )


def test_num_prompts_is_checked():
    with pytest.raises(UserError, match=r"data\.num_prompts=0"):
        PromptSource("training", 0)


def test_written_chats_supervise_the_assistant_and_count_the_rest(tmp_path, template):
    source = AnswerSource(chat_file(tmp_path / "chats.jsonl", CHATS), template)
    tokenizer = template.tokenizer
    spoken = [tokenizer.decode(one.tokens[one.supervised]) for one in source]
    assert spoken == ["Hello<|im_end|>See you<|im_end|>", "4<|im_end|>"]
    assert source.count == 2
    assert source.num_skipped == 1


def test_chats_without_a_word_of_the_assistant_stop_the_run(tmp_path, template):
    with pytest.raises(UserError, match="no conversation with words of the assistant"):
        AnswerSource(chat_file(tmp_path / "chats.jsonl", CHATS[1:2]), template)


def test_stored_answers_of_another_template_are_refused(tmp_path, template):
    answer = Answer(torch.tensor([1, 2]), torch.tensor([False, True]), "c")
    save_answers(tmp_path / ANSWERS, [answer], {"chat_template": template.fingerprint})
    assert [one.conversation_id for one in AnswerSource(tmp_path, template)] == ["c"]
    save_answers(tmp_path / ANSWERS, [answer], {"chat_template": "another"})
    with pytest.raises(UserError, match="another tokenizer or chat template"):
        AnswerSource(tmp_path, template)


def test_a_misspelt_prompt_set_is_told_all_names():
    with pytest.raises(UserError, match=r"self_written, .*training.*Did you mean 'training'"):
        PromptSource("trainin")
