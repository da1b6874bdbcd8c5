"""Tokens of a draft model as tokens that continue a target's row, against texts in literals."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from eagle_lab.methods.universal import Translation
from eagle_lab.targets.tiny import byte_tokenizer
from tests.methods.draft_models import other_tokenizer

OURS, THEIRS = byte_tokenizer(), other_tokenizer()
TRANSLATION = Translation(OURS, THEIRS)


def pieces(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    """Ids of entries written apart by `|`, with a space for the byte-level `Ġ`."""
    vocabulary = tokenizer.get_vocab()
    return [vocabulary[entry.replace(" ", "Ġ")] for entry in text.split("|")]


def translated(row: str, drafted: str) -> str:
    tokens = pieces(OURS, row)
    ahead = TRANSLATION.to_target(
        tokens, TRANSLATION.to_draft(tokens), pieces(THEIRS, drafted) if drafted else []
    )
    return "|".join(OURS.convert_ids_to_tokens(ahead)).replace("Ġ", " ")


@pytest.mark.parametrize(
    ("row", "drafted", "expected"),
    [
        ("W|e| s", " t|h|e", " the"),  # several tokens become one
        ("W|e", " the|in|g", " the|ing"),
        (" w|e| t|h", "e| s|e|a", "e| s|e|a"),  # ` the` would lie across the end of the row
        (" |t|h|e", " s|ea", " s|e|a"),  # a row spelt as the tokenizer never would
        ("x|" * 20 + "y", " the", " the"),  # longer than the window
        ("W|e", "", ""),
    ],
)
def test_a_draft_becomes_tokens_after_the_row(row: str, drafted: str, expected: str) -> None:
    assert translated(row, drafted) == expected


def test_the_row_reaches_the_draft_model_as_its_bonus_tokens() -> None:
    tokens = pieces(OURS, " w|e| t|h|e| s|e|a")
    assert TRANSLATION.to_draft(tokens) == pieces(THEIRS, " we| the| s|ea")
    assert TRANSLATION.to_draft([]) == [0]  # nothing to read is read as something


def test_a_character_that_the_row_has_begun_is_finished() -> None:
    """`é` is two bytes; the row ends between them, and the draft model writes it whole."""
    first, second = OURS("é")["input_ids"]
    row = [*pieces(OURS, "c|a|f"), first]
    read = TRANSLATION.to_draft(row)
    assert THEIRS.decode(read) == "caf"
    whole = THEIRS("é")["input_ids"]
    assert TRANSLATION.to_target(row, read, [*whole, *pieces(THEIRS, " s")]) == [
        second,
        *pieces(OURS, " s"),
    ]
    assert TRANSLATION.to_target(row, read, pieces(THEIRS, "e")) == []  # another character
    assert TRANSLATION.to_target(row, read, whole[:1]) == []  # not whole there either


def test_what_no_tokens_spell_after_the_row_is_left_out() -> None:
    """A word-piece tokenizer that always opens a text with a space cannot spell a word's rest."""
    entries = ["<unk>", "▁", "▁the", "▁th", "e"]
    tokenizer = Tokenizer(
        models.BPE(
            vocab={entry: number for number, entry in enumerate(entries[:5])}
            | {"h": 5, "t": 6, "▁t": 7},
            merges=[("▁", "t"), ("▁t", "h"), ("▁th", "e")],
            unk_token="<unk>",
        )
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    ours = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")
    translation = Translation(ours, THEIRS)
    row = [ours.get_vocab()["▁th"]]
    read = translation.to_draft(row)
    assert THEIRS.decode(read) == "th"
    assert translation.to_target(row, read, pieces(THEIRS, "e")) == []
    assert translation.to_target(row, read, pieces(THEIRS, " t|h|e")) == [ours.get_vocab()["▁the"]]
