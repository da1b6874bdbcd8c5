"""Answers kept as token ids come back whole, take two bytes a token, and name what is wrong."""

import pytest
import torch

from eagle_lab.data.answers import ANSWERS, Answer, load_answers, save_answers
from eagle_lab.errors import UserError

FACTS = {"target": "0123", "chat_template": "aa"}


def answers(vocab_size, lengths=(5, 2, 9)):
    made = []
    for number, length in enumerate(lengths):
        generator = torch.Generator().manual_seed(number)
        tokens = torch.randint(0, vocab_size, (length,), generator=generator)
        tokens[0] = vocab_size - 1
        supervised = torch.rand(length, generator=generator) < 0.5
        made.append(Answer(tokens, supervised, f"c{number}"))
    return made


@pytest.mark.parametrize("vocab_size", [300, 2**16, 2**16 + 1, 250_000])
def test_answers_come_back(tmp_path, vocab_size):
    saved = answers(vocab_size)
    save_answers(tmp_path / ANSWERS, saved, FACTS)
    for source in (tmp_path, tmp_path / ANSWERS):
        loaded, facts = load_answers(source)
        assert facts == FACTS
        assert [one.conversation_id for one in loaded] == ["c0", "c1", "c2"]
        for one, other in zip(loaded, saved, strict=True):
            assert torch.equal(one.tokens, other.tokens)
            assert torch.equal(one.supervised, other.supervised)


def test_two_bytes_a_token(tmp_path):
    tokens = torch.randint(0, 2**16, (100_000,))
    supervised = torch.arange(100_000) > 40
    save_answers(tmp_path / ANSWERS, [Answer(tokens, supervised, "c")], FACTS)
    assert (tmp_path / ANSWERS).stat().st_size < 2.01 * 100_000


def test_damage_is_named(tmp_path):
    with pytest.raises(UserError, match=tmp_path.name):
        load_answers(tmp_path)
    path = tmp_path / ANSWERS
    save_answers(path, answers(300), FACTS)
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(UserError, match=r"answers\.safetensors"):
        load_answers(path)


def test_a_file_of_another_kind_is_refused(tmp_path):
    from safetensors.torch import save_file

    save_file({"weight": torch.zeros(1)}, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match=r"model\.safetensors"):
        load_answers(tmp_path / "model.safetensors")
