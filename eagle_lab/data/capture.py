"""Capture: the target answers prompts in large batches, and its features land in a store.

Every batch of the plan becomes one shard, in a fixed order, and a batch's content depends on
nothing that ran before it: a capture that was killed continues after its last whole shard and ends
with the same bytes. Features come out of the decoding pass itself and cost nothing extra.

    job = AnswerQuestions(target, template, settings, sampling, seed)
    capture(job, job.batches(questions), writer, max_tokens=150_000)

The target can write prompts, too: given the header of a user message, it writes the rest. Such
prompts lie where its own training put them, with no list of topics after them (Xu et al. 2024,
"Magpie", section 2.1).

Knows nothing of configuration files and of how progress is shown. Shapes: B conversations of a
batch, T tokens of one of them, F feature width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from eagle_lab.data.answers import Answer
from eagle_lab.data.batches import WINDOW, Batch, plan_batches, split
from eagle_lab.data.chat import ChatTemplate
from eagle_lab.data.prompts import Question, builtin_prompts, load_questions
from eagle_lab.data.settings import CaptureSettings
from eagle_lab.data.sources import SELF_WRITTEN, Source
from eagle_lab.data.store import Conversation, StoreWriter
from eagle_lab.data.training_prompts import comparable
from eagle_lab.engine.loop import decode
from eagle_lab.engine.sampling import Sampling, row_key
from eagle_lab.errors import UserError
from eagle_lab.methods.vanilla import Vanilla
from eagle_lab.targets.target import Target

READ_TOKENS = 8192  # most tokens of one pass that reads finished text
OnTokens = Callable[[int], None]
Job = Callable[[Batch[Any], OnTokens], list[Conversation]]

MIN_LETTERS = 12
MAX_FRUITLESS = 20  # batches in a row without a usable prompt
DIVERSE = Sampling(temperature=1.0, top_p=0.95)

_SAMPLE = 64  # prompts that an estimate of sizes looks at
_BYTES_PER_TOKEN = 5  # id and mask, beside the features


def capture(
    job: Job,
    batches: Iterable[Batch[Any]],
    writer: StoreWriter,
    *,
    max_tokens: int | None = None,
    on_tokens: OnTokens = lambda num: None,
    on_shard: Callable[[], None] = lambda: None,
) -> None:
    """Fill a store, one shard per batch, after what it already holds.

    Args:
        job: gives a batch's conversations, all of them.
        batches: of the whole capture, from the first one on.
        writer: of the store.
        max_tokens: end after the batch that brings the assistant's tokens to this number.
        on_tokens: told how many new answer tokens there are, as they come.
        on_shard: called after each shard.
    """

    def enough() -> bool:
        return max_tokens is not None and writer.num_supervised >= max_tokens

    remaining = islice(batches, writer.num_shards, None)
    # Asked first: the next batch may need prompts that are yet to be written
    while not enough() and (batch := next(remaining, None)) is not None:
        writer.add_shard(job(batch, on_tokens), sampled=batch.sampled)
        on_shard()


class AnswerQuestions:
    """The target answers questions, turn by turn.

    Args:
        target: an instruct model.
        template: of its chats.
        settings: how many are answered together, how long, and which share is sampled.
        sampling: the distribution of that share; the others are answered greedily.
        seed: of the choice of that share, of its uniforms and of the order of batches.

    Attributes:
        num_skipped: questions so far that did not fit the context.
    """

    def __init__(
        self,
        target: Target,
        template: ChatTemplate,
        settings: CaptureSettings,
        sampling: Sampling,
        seed: int,
    ) -> None:
        self.target, self.template, self.settings = target, template, settings
        self.sampling, self.seed = sampling, seed
        self.num_skipped = 0

    def batches(
        self, questions: Iterable[Question], first_window: int = WINDOW
    ) -> Iterator[Batch[Question]]:
        """Batches of the questions that fit the context; `first_window` as in `plan_batches`."""
        size = self.settings.batch_size
        return plan_batches(questions, self._place, size, self.seed, first_window)

    def _place(self, question: Question) -> tuple[bool, int, int] | None:
        length = len(self.template.encode(question.conversation()))
        if not self._fits(length):
            self.num_skipped += 1
            return None
        uniform = row_key(self.seed, question.question_id, -1, 0) / 2.0**64
        return uniform < self.settings.sampled_share, len(question.turns), length

    def _fits(self, prompt_length: int) -> bool:
        return prompt_length + self.settings.max_new_tokens + 1 <= self.target.context_length

    def __call__(self, batch: Batch[Question], on_tokens: OnTokens) -> list[Conversation]:
        """The batch's conversations with the features of all their turns.

        A conversation whose next prompt no longer fits the context ends before it.
        """
        questions = batch.items
        num_turns = len(questions[0].turns)  # of every question of a batch
        answers: list[list[str]] = [[] for _ in questions]
        latest: dict[int, tuple[Answer, dict[str, Tensor] | None]] = {}
        for turn in range(num_turns):
            chats = {
                row: self._chat_so_far(question, answers[row])
                for row, question in enumerate(questions)
                if len(answers[row]) == turn
            }
            chats = {row: chat for row, chat in chats.items() if self._fits(len(chat[0]))}
            generations = decode(
                self.target,
                Vanilla(),
                [prompt for prompt, _ in chats.values()],
                sampling=self.sampling if batch.sampled else Sampling(),
                max_new_tokens=self.settings.max_new_tokens,
                row_keys=[row_key(self.seed, questions[row].question_id, turn, 0) for row in chats],
                on_tokens=lambda _, tokens: on_tokens(len(tokens)),
                keep_features=turn + 1 == num_turns,
            )
            for (row, (prompt, mask)), generation in zip(chats.items(), generations, strict=True):
                answers[row].append(self._text(generation.tokens))
                answer = Answer(
                    torch.tensor(prompt + generation.tokens),
                    torch.tensor(mask + [True] * len(generation.tokens)),
                    str(questions[row].question_id),
                )
                latest[row] = (answer, generation.features)
        return self._with_features([latest[row] for row in range(len(questions))])

    def _chat_so_far(
        self, question: Question, answers: Sequence[str]
    ) -> tuple[list[int], list[bool]]:
        """Prompt of the next turn, and which of its tokens the assistant said in earlier ones."""
        messages = question.conversation(answers)
        prompt = self.template.encode(messages)
        mask: list[bool] = []
        if answers:
            with suppress(UserError):  # a template that rewrites them: learn from the last one
                _, mask = self.template.encode_with_mask(messages)
        return prompt, (mask + [False] * len(prompt))[: len(prompt)]

    def _text(self, tokens: list[int]) -> str:
        ended = bool(tokens) and tokens[-1] in self.target.eos_ids
        words = tokens[:-1] if ended else tokens
        return str(self.target.tokenizer.decode(words, skip_special_tokens=True))

    def _with_features(
        self, pairs: Sequence[tuple[Answer, dict[str, Tensor] | None]]
    ) -> list[Conversation]:
        missing = [answer for answer, features in pairs if features is None]
        read = iter(read_features(self.target, missing))
        return [
            next(read) if features is None else _conversation(answer, features)
            for answer, features in pairs
        ]


class ReadAnswers:
    """Captures features of conversations that are already written.

    Attributes:
        num_skipped: conversations so far that do not fit the context or have no answer in it.
    """

    def __init__(self, target: Target, batch_size: int) -> None:
        self.target, self.batch_size = target, batch_size
        self.num_skipped = 0

    def batches(self, answers: Iterable[Answer]) -> Iterator[Batch[Answer]]:
        """Batches of the conversations that fit the context and in which the assistant speaks."""
        return plan_batches(answers, self._place, self.batch_size, seed=0)

    def _place(self, answer: Answer) -> tuple[bool, int, int] | None:
        fits = 2 <= len(answer.tokens) <= self.target.context_length
        if not (fits and answer.supervised.any()):
            self.num_skipped += 1
            return None
        return False, 1, len(answer.tokens)

    def __call__(self, batch: Batch[Answer], on_tokens: OnTokens) -> list[Conversation]:
        """The batch's conversations with features."""
        conversations = read_features(self.target, batch.items)
        on_tokens(sum(int(answer.supervised.sum()) for answer in batch.items))
        return conversations


def read_features(target: Target, answers: Sequence[Answer]) -> list[Conversation]:
    """The answers with their features, read in passes of limited size."""
    longest = max((len(answer.tokens) for answer in answers), default=1)
    conversations: list[Conversation] = []
    for part in split(answers, max(1, READ_TOKENS // longest)):
        prompts = [answer.tokens[:-1].tolist() for answer in part]
        features = target.prefill(prompts, target.new_cache(len(prompts))).features
        for row, answer in enumerate(part):
            own = {name: one[row, : len(prompts[row])].clone() for name, one in features.items()}
            conversations.append(_conversation(answer, own))
    return conversations


def _conversation(answer: Answer, features: dict[str, Tensor]) -> Conversation:
    kept = {name: one.cpu() for name, one in features.items()}
    return Conversation(answer.tokens, answer.supervised, kept, answer.conversation_id)


def self_written_prompts(
    target: Target,
    seed: int = 0,
    *,
    after: Sequence[Question] = (),
    batch_size: int = 64,
    max_new_tokens: int = 256,
) -> Iterator[Question]:
    """An endless sequence of one-turn prompts, the same for one seed whatever the batch size.

    Texts that are cut off, too short, written before or not printable are left out, and so is every
    turn of the builtin bench questions.

    Args:
        target: an instruct model.
        seed: of the uniforms.
        after: the sequence so far, to continue after it.
        batch_size: texts written at the same time.
        max_new_tokens: a longer text counts as cut off.

    Raises:
        UserError: the target writes nothing usable for a long while.
    """
    header = ChatTemplate(target.tokenizer).encode_user_header()
    bench = [question for name in builtin_prompts() for question in load_questions(name)]
    seen = {comparable(turn) for question in [*bench, *after] for turn in question.turns}
    number = 1 + int(str(after[-1].question_id).rpartition("-")[2]) if after else 0
    num_fruitless = 0
    while num_fruitless < MAX_FRUITLESS:
        names = [f"self-{seed}-{number + row}" for row in range(batch_size)]
        number += batch_size
        num_fruitless += 1
        texts = decode(
            target,
            Vanilla(),
            [header] * batch_size,
            sampling=DIVERSE,
            max_new_tokens=max_new_tokens,
            row_keys=[row_key(seed, name, 0, 0) for name in names],
        )
        for name, written in zip(names, texts, strict=True):
            if written.finished_by != "eos":
                continue
            text = str(target.tokenizer.decode(written.tokens[:-1])).strip()
            if usable(text, target.tokenizer.all_special_tokens) and comparable(text) not in seen:
                seen.add(comparable(text))
                num_fruitless = 0
                yield Question(name, SELF_WRITTEN, (text,))
    raise UserError(
        f"'{target.name}' wrote {MAX_FRUITLESS * batch_size} texts in a row of which none can be "
        "a prompt; use data.prompts=training"
    )


def usable(text: str, special_tokens: list[str]) -> bool:
    """Whether a text can be a prompt: some letters, nothing unprintable, no control token."""
    return (
        sum(character.isalpha() for character in text) >= MIN_LETTERS
        and all(character.isprintable() or character in "\n\t" for character in text)
        and "\ufffd" not in text
        and not any(token in text for token in special_tokens)
    )


def needed_bytes(
    writer: StoreWriter, source: Source, template: ChatTemplate, settings: CaptureSettings
) -> int:
    """Bytes of the whole store, estimated from above.

    A conversation takes its prompts and at most `max_new_tokens` for each turn. Where a number of
    tokens ends the capture, answers of half that length tell how many conversations there are.
    """
    width = sum(writer.index["features"].values())
    per_token = width * writer.feature_dtype.itemsize + _BYTES_PER_TOKEN
    if settings.answers is not None:
        return per_token * sum(len(answer.tokens) for answer in source)
    sample = list(islice(source, _SAMPLE))
    turns = fmean(len(question.turns) for question in sample)
    prompt = fmean(len(template.encode(question.conversation())) for question in sample)
    longest = settings.max_new_tokens * turns
    counts = [source.count] if source.count else []
    if settings.num_tokens:
        counts.append(int(settings.num_tokens / (longest / 2)) + settings.batch_size)
    return int(per_token * min(counts) * (prompt * turns + longest))
