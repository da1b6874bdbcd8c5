"""Chats to token ids through the tokenizer's own chat template, with supervision masks.

Example (ChatML; s = `<|im_start|>`, e = `<|im_end|>`, # = supervised):

    s user \\n Hi e \\n s assistant \\n Hello e \\n
    .  .   .  .  . .  .     .     .   #   #  .

Three characters that Unicode sets aside as noncharacters carry marks through the template: CUT
inside special-token text that a person typed, BEGIN and END around what the assistant said.
The encoder splits at CUT, so the two halves can never meet as one control token.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from eagle_lab.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CUT, BEGIN, END = "\ufdd0", "\ufdd1", "\ufdd2"
NO_MARKS = str.maketrans(dict.fromkeys((CUT, BEGIN, END), "\ufffd"))
# Llama 3 templates write today's date into the prompt; this is the fallback they name themselves.
VARIABLES = {"date_string": "26 Jul 2024"}


class ChatTemplate:
    """The chat template of one tokenizer.

    Args:
        tokenizer: any Hugging Face tokenizer with a chat template.
        variables: values for the template, such as {"enable_thinking": False}.

    Raises:
        UserError: the tokenizer has no chat template.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, variables: Mapping[str, Any] | None = None
    ) -> None:
        self.tokenizer = tokenizer
        self.variables = {**VARIABLES, **(variables or {})}
        self.name = getattr(tokenizer, "name_or_path", "") or type(tokenizer).__name__
        if not tokenizer.chat_template:
            raise UserError(
                f"the tokenizer of '{self.name}' has no chat template; use an instruct model, or "
                "put a chat_template.jinja into its folder"
            )
        self.template: str = tokenizer.get_chat_template()
        added = tokenizer.added_tokens_decoder.values()
        special = {token.content for token in added if token.special}
        special |= set(tokenizer.all_special_tokens)
        written = {token.content for token in added if token.content in self.template}
        self._special = _longest_first(special)  # never wanted inside anybody's text
        self._control = _longest_first(special | written)  # `<think>` and its like, too

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of all that decides how a chat becomes ids, besides the vocabulary."""
        facts = [self.template, self._control, self.tokenizer.special_tokens_map, self.variables]
        text = json.dumps(facts, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()

    def encode(
        self, messages: Sequence[Mapping[str, str]], add_generation_prompt: bool = True
    ) -> list[int]:
        """Token ids of a chat, by default with the header of the answer to come."""
        return self._tokens(self._render(self._escape(messages), add_generation_prompt))

    def encode_user_header(self) -> list[int]:
        """Token ids up to a user's first word: from here a model can write the message itself."""
        text = self._render([{"role": "user", "content": f"{BEGIN}a"}], False)
        return self._tokens(text.partition(BEGIN)[0])

    def encode_with_mask(
        self, messages: Sequence[Mapping[str, str]]
    ) -> tuple[list[int], list[bool]]:
        """Token ids of a chat and, for each, whether the assistant would have to produce it.

        True on the assistant's texts and on the end-of-turn token that closes each; False on
        headers, other roles and line ends after the turn. Needs no generation markers in the
        template. A token that joins template text with the answer's first letters is True.

        Raises:
            UserError: the template rewrites what the assistant said, so that its own words
                cannot be told from the template's.
        """
        messages = self._escape(messages)
        text, spans = self._find_answers(messages)
        ids = self._tokens(text)
        mask = [False] * len(ids)
        for start, end in spans:
            if text.startswith(self.end_of_turn, end):
                end += len(self.end_of_turn)
            first = _num_equal(self._tokens(text[:start]), ids)
            stop = _num_equal(self._tokens(text[:end]), ids)
            mask[first:stop] = [True] * (stop - first)
        return ids, mask

    @cached_property
    def end_of_turn(self) -> str:
        """What the template writes right after an answer, up to its control token; may be ''."""
        chat = [{"role": "user", "content": "a"}, {"role": "assistant", "content": f"b{END}"}]
        tail = self._render(chat, add_generation_prompt=False).partition(END)[2]
        match = re.match(r"\s*(?:" + "|".join(map(re.escape, self._control)) + ")", tail)
        return match.group() if match and self._control else ""

    def _find_answers(self, messages: list[dict[str, str]]) -> tuple[str, list[tuple[int, int]]]:
        """The rendered chat and the character spans of the assistant's texts in it."""
        plain = self._render(messages, add_generation_prompt=False)
        num_answers = sum(message["role"] == "assistant" for message in messages)
        for whole in (True, False):  # a template that trims answers leaves marks inside them alone
            marked = self._render([_mark(message, whole) for message in messages], False)
            pieces = re.split(f"({BEGIN}|{END})", marked)
            if "".join(pieces[::2]) == plain and pieces[1::2] == [BEGIN, END] * num_answers:
                bounds = [sum(map(len, pieces[: 2 * i + 1 : 2])) for i in range(2 * num_answers)]
                return plain, list(zip(bounds[::2], bounds[1::2], strict=True))
        raise UserError(
            f"the chat template of '{self.name}' is not stable: it rewrites or drops what the "
            "assistant said earlier in this chat, so the words to learn cannot be told apart"
        )

    def _render(self, messages: Sequence[Mapping[str, str]], add_generation_prompt: bool) -> str:
        from jinja2 import TemplateError

        try:
            text = self.tokenizer.apply_chat_template(
                [dict(message) for message in messages],
                tokenize=False,
                add_generation_prompt=add_generation_prompt,
                **self.variables,
            )
        except (TemplateError, TypeError, ValueError) as error:
            raise UserError(
                f"the chat template of '{self.name}' refuses this chat: {error}"
            ) from error
        return str(text)

    def _escape(self, messages: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
        """Cut control-token text inside messages; `<think>` may be the assistant's own token."""
        escaped = []
        for message in messages:
            content = message["content"].translate(NO_MARKS)
            for token in self._special if message["role"] == "assistant" else self._control:
                content = content.replace(token, token[0] + CUT + token[1:])
            escaped.append({"role": message["role"], "content": content})
        return escaped

    def _tokens(self, text: str) -> list[int]:
        first, *others = text.split(CUT)
        return sum(map(self._continue, others), self._ids(first))

    def _continue(self, text: str) -> list[int]:
        """Ids of text that does not start the chat: without the blank some tokenizers prepend."""
        newline, ids = self._ids("\n"), self._ids("\n" + text)
        return ids[len(newline) :] if ids[: len(newline)] == newline else self._ids(text)

    def _ids(self, text: str) -> list[int]:
        encoded = self.tokenizer(text, add_special_tokens=False, verbose=False)
        return list(encoded["input_ids"])


def check_fits(
    ids: Sequence[int], context_length: int, reserve: int, question_id: str | int
) -> None:
    """UserError unless a prompt and `reserve` more tokens (answer, draft tree) fit the context."""
    if len(ids) + reserve > context_length:
        raise UserError(
            f"question {question_id}: a prompt of {len(ids)} tokens and {reserve} kept for the "
            f"answer and its drafts need {len(ids) + reserve}; the context holds {context_length}"
        )


def _longest_first(tokens: set[str]) -> list[str]:
    usable = [token for token in tokens if len(token) > 1 and not token.isspace()]
    return sorted(usable, key=lambda token: (-len(token), token))


def _mark(message: dict[str, str], whole: bool) -> dict[str, str]:
    """Put BEGIN and END around an answer, or inside its outer white space."""
    content = message["content"]
    if message["role"] != "assistant":
        return message
    core = content if whole else content.strip()
    lead = "" if whole else content[: len(content) - len(content.lstrip())]
    tail = content[len(lead) + len(core) :]
    return {**message, "content": lead + BEGIN + core + END + tail}


def _num_equal(left: Sequence[int], right: Sequence[int]) -> int:
    """How many leading tokens two lists share."""
    return sum(
        1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(left, right, strict=False))
    )
