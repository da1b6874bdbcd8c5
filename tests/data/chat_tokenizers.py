"""Tokenizers one can read: words as tokens, so that a mask can be written down by hand."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CHATML_WITH_GENERATION = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' %}{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}"
    "{% else %}{{ m.content }}<|im_end|>{% endif %}{{ '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# Answers stand between plain text and `</s>`, their outer white space is cut away.
INSTRUCT = (
    "{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content | trim }} [/INST]"
    "{% elif m.role == 'assistant' %} {{ m.content | trim }} </s>"
    "{% else %}{{ raise_exception('System role not supported') }}{% endif %}{% endfor %}"
)
# The last answer is preceded by an empty thought, earlier ones are not: no chat is a prefix of
# the longer chat.
THINKING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and loop.last %}<think>\n</think>\n{% endif %}"
    "{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# Only the first letters of earlier answers are kept.
FORGETFUL = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{{ m.content if loop.last else m.content[:3] }}<|im_end|>\n{% endfor %}"
)
PLAIN = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


def word_tokenizer(
    template: str | None, words: Sequence[str], thoughts: bool = False
) -> PreTrainedTokenizerFast:
    """One token per word (with the blank before it), line end, and control token."""
    vocabulary = {"[UNK]": 0}
    for word in words:
        vocabulary.setdefault(word, len(vocabulary))
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"\n| ?\w+| ?[^\w\s]+| "), "isolated")
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>", "</s>"])
    if thoughts:
        plain = [AddedToken(text, special=False) for text in ("<think>", "</think>")]
        tokenizer.add_tokens(plain)
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>")
    wrapped.chat_template = template
    return wrapped


def metaspace_tokenizer() -> PreTrainedTokenizerFast:
    """Like SentencePiece: letters as tokens, and a blank put before any text that is encoded."""
    letters = ["▁", *map(chr, range(33, 127)), "\n"]
    tokenizer = Tokenizer(
        models.BPE(vocab={letter: index for index, letter in enumerate(letters)}, merges=[])
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.add_special_tokens(["<s>", "</s>"])
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>")
    wrapped.chat_template = INSTRUCT
    return wrapped
