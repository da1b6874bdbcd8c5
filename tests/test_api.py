"""Generation from Python: whole answers, chats, and streams that add up to them."""

import pytest

import eagle_lab
from eagle_lab.api import stream
from eagle_lab.drafters import folder as drafter_folders
from eagle_lab.drafters.checkpoint import save_drafter
from eagle_lab.drafters.eagle1.network import Eagle1
from eagle_lab.errors import UserError
from eagle_lab.methods.vanilla import Vanilla
from eagle_lab.targets.target import Target
from eagle_lab.targets.tiny import tiny_random
from tests.drafters.fakes import eagle1


@pytest.fixture(scope="module")
def target() -> Target:
    return Target(*tiny_random("llama"))


@pytest.fixture(scope="module")
def drafter(target) -> Eagle1:
    return eagle1(target)


def test_with_and_without_a_drafter_the_answer_is_the_same(target, drafter):
    prompts = ["Hello", [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "a"}]]
    drafted = eagle_lab.generate(target, drafter, prompts, max_new_tokens=20)
    plain = eagle_lab.generate(target, None, prompts, max_new_tokens=20, proposer=Vanilla())
    assert [answer.text for answer in drafted] == [answer.text for answer in plain]
    assert [answer.tau for answer in plain] == [1.0, 1.0]


def test_without_a_drafter_the_packages_own_drafts(target, drafter, tmp_path, monkeypatch):
    monkeypatch.setattr(drafter_folders, "SHIPPED_DRAFTERS", tmp_path)
    with pytest.raises(UserError, match="drafter"):
        eagle_lab.generate(target, None, "Hello", max_new_tokens=8)
    save_drafter(drafter, tmp_path / "own", target=target, training_summary={})
    expected = eagle_lab.generate(target, drafter, "Hello", max_new_tokens=20)[0].generation
    for asked in (None, "own", tmp_path / "own"):
        found = eagle_lab.generate(target, asked, "Hello", max_new_tokens=20)[0].generation
        assert found.tokens == expected.tokens
        assert found.accepted_lengths == expected.accepted_lengths


def test_one_string_or_one_chat_is_one_prompt(target, drafter):
    chat = [{"role": "user", "content": "Hello"}]
    texts = {
        eagle_lab.generate(target, drafter, prompt, max_new_tokens=8)[0].text
        for prompt in ("Hello", ["Hello"], chat, [chat])
    }
    assert len(texts) == 1


def test_a_stream_adds_up_to_the_answer(target, drafter):
    options = {"max_new_tokens": 40, "temperature": 1.0, "seed": 3}
    pieces = list(stream(target, drafter, "Hello", **options))
    assert "".join(pieces) == eagle_lab.generate(target, drafter, "Hello", **options)[0].text
    assert len(pieces) > 1


def test_leaving_a_stream_early_ends_the_work(target, drafter):
    pieces = stream(target, drafter, "Hello", max_new_tokens=1000)
    next(pieces)
    pieces.close()


def test_errors_reach_the_consumer_of_a_stream(target, drafter):
    with pytest.raises(UserError, match="max_new_tokens=0"):
        list(stream(target, drafter, "Hello", max_new_tokens=0))


def test_a_prompt_that_is_no_text_is_a_mistake(target):
    with pytest.raises(eagle_lab.UserError, match="prompt 5"):
        eagle_lab.generate(target, None, [5])


def test_seeds_decide_sampled_text(target, drafter):
    def text(seed):
        answers = eagle_lab.generate(
            target, drafter, "Hello", max_new_tokens=20, temperature=1.0, seed=seed
        )
        return answers[0].text

    assert text(1) == text(1) != text(2)
