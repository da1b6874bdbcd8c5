"""A conversation through the command line: answers with their τ, and clear refusals."""

import io

import pytest

from eagle_lab.config import compose
from eagle_lab.errors import UserError
from eagle_lab.tasks import chat

OVERRIDES = ["+experiment=chat", "target=tiny_random", "eval.max_new_tokens=6"]


def test_two_questions_get_two_answers(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.StringIO("Hello\n/new\nAgain\n"))
    chat.run(compose([*OVERRIDES, "method=[prompt_lookup]"]))
    printed = capsys.readouterr().out
    assert printed.count("model: ") == 2
    assert printed.count("τ ") == 2
    assert "tiny_random, prompt_lookup" in printed


def test_without_a_drafter_it_is_vanilla(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.StringIO("Hello\n"))
    chat.run(compose(OVERRIDES))
    assert "tiny_random, vanilla" in capsys.readouterr().out


def test_several_methods_are_refused():
    with pytest.raises(UserError, match="vanilla, prompt_lookup"):
        chat.run(compose([*OVERRIDES, "method=[vanilla,prompt_lookup]"]))


def test_another_engine_is_refused():
    with pytest.raises(UserError, match="hf_generate"):
        chat.run(compose([*OVERRIDES, "method=[hf_generate]"]))
