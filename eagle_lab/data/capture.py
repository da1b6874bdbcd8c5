"""Capture: the target answers prompts in large batches, and its features land in a store.

Every batch of the plan becomes one shard, in a fixed order, and a batch's content depends on
nothing that ran before it: a capture that was killed continues after its last whole shard and ends
with the same bytes. Features come out of the decoding pass itself and cost nothing extra.

    answer = AnswerQuestions(target, template, settings)
    capture(answer, answer.plan(lambda: questions), writer, max_tokens=150_000)

Knows nothing of configuration and of how progress is shown.

Shapes: B conversations of a batch, T tokens of one of them, F feature width.

Prompts that the target writes itself: given the header of a user message, it writes the rest.

Such prompts lie where the target's own training put them, with no list of topics after them
(Xu et al. 2024, "Magpie", section 2.1). Texts that are cut off, too short, said before or not
printable are left out, and so is every turn of the builtin bench questions.

    questions = list(islice(self_written_prompts(target, seed=0), 1000))
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor

from eagle_lab.data.answers import Answer
from eagle_lab.data.batches import WINDOW, Batch, BatchPlan, split
from eagle_lab.data.chat import ChatTemplate
from eagle_lab.data.prompts import Question, builtin_prompts, load_questions
from eagle_lab.data.sources import SELF_WRITTEN
from eagle_lab.data.store import Conversation, StoreWriter
from eagle_lab.data.training_prompts import comparable
from eagle_lab.engine.loop import decode
from eagle_lab.engine.sampling import Sampling, row_key
from eagle_lab.errors import UserError
from eagle_lab.methods.vanilla import Vanilla
from eagle_lab.targets.target import Target

CATEGORY = SELF_WRITTEN
MIN_LETTERS = 12
MAX_FRUITLESS = 20  # batches in a row without a usable prompt
DIVERSE = Sampling(temperature=1.0, top_p=0.95)


def self_written_prompts(
    target: Target,
    seed: int = 0,
    *,
    after: Sequence[Question] = (),
    batch_size: int = 64,
    max_new_tokens: int = 256,
    sampling: Sampling = DIVERSE,
) -> Iterator[Question]:
    """An endless sequence of one-turn prompts, the same for one seed whatever the batch size.

    Args:
        target: an instruct model.
        seed: of the uniforms.
        after: the sequence so far, to continue after it.
        batch_size: texts written at the same time.
        max_new_tokens: a longer text counts as cut off.
        sampling: the distribution of the texts; greedy would write the same one for ever.

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
            sampling=sampling,
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
                yield Question(name, CATEGORY, (text,))
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


READ_TOKENS = 8192  # most tokens of one pass that reads finished text
OnTokens = Callable[[int], None]


@dataclass(frozen=True)
class CaptureSettings:
    """How prompts are answered.

    Attributes:
        batch_size: most conversations of a batch, and so of a shard.
        max_new_tokens: most tokens of one answer.
        sampled_share: share of the conversations answered with `sampling`, the others greedily.
        sampling: the distribution of those.
        seed: of the choice of those conversations, of their uniforms and of the order of batches.
        max_prompt_tokens: conversations whose first prompt is longer are left out; None leaves out
            those alone that do not fit the context.
    """

    batch_size: int
    max_new_tokens: int
    sampled_share: float
    sampling: Sampling
    seed: int
    max_prompt_tokens: int | None = None

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise UserError(f"data.max_new_tokens={self.max_new_tokens} must be at least 1")
        if not 0 <= self.sampled_share <= 1:
            raise UserError(f"data.sampled_share={self.sampled_share} must be within 0 ... 1")
        if self.sampled_share > 0 and self.sampling.greedy:
            raise UserError("data.sampled_share is above 0, so data.temperature must be, too")


def capture(
    answer: Callable[[Batch, OnTokens], list[Conversation]],
    batches: Iterable[Batch],
    writer: StoreWriter,
    *,
    max_tokens: int | None = None,
    on_tokens: OnTokens = lambda num: None,
    on_shard: Callable[[], None] = lambda: None,
) -> None:
    """Fill a store, one shard per batch, after what it already holds.

    Args:
        answer: gives a batch's conversations, all of them.
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
        writer.add_shard(answer(batch, on_tokens), sampled=batch.sampled)
        on_shard()


class AnswerQuestions:
    """The target answers questions, turn by turn."""

    def __init__(self, target: Target, template: ChatTemplate, settings: CaptureSettings):
        self.target = target
        self.template = template
        self.settings = settings

    def plan(
        self, questions: Callable[[], Iterable[Question]], first_window: int = WINDOW
    ) -> BatchPlan[Question]:
        """Batches of the questions that fit the context; `first_window` as in `BatchPlan`."""
        settings = self.settings

        def measure(question: Question) -> tuple[int, int] | None:
            length = len(self.template.encode(question.conversation()))
            short = settings.max_prompt_tokens is None or length <= settings.max_prompt_tokens
            return (length, len(question.turns)) if short and self._fits(length) else None

        def is_sampled(question: Question) -> bool:
            uniform = row_key(settings.seed, question.question_id, -1, 0) / 2.0**64
            return uniform < settings.sampled_share

        order = (settings.batch_size, settings.seed, first_window)
        return BatchPlan(questions, measure, is_sampled, *order)

    def __call__(self, batch: Batch[Question], on_tokens: OnTokens) -> list[Conversation]:
        """The batch's conversations with the features of all their turns.

        A conversation whose next prompt no longer fits the context ends before it.
        """
        rows = range(len(batch.items))
        num_turns = [len(question.turns) for question in batch.items]
        answers: list[list[str]] = [[] for _ in rows]
        latest: dict[int, tuple[Answer, dict[str, Tensor] | None]] = {}
        for turn in range(max(num_turns)):
            chats = {
                row: self._chat_so_far(batch.items[row], answers[row])
                for row in rows
                if len(answers[row]) == turn < num_turns[row]
            }
            chats = {row: chat for row, chat in chats.items() if self._fits(len(chat[0]))}
            generations = decode(
                self.target,
                Vanilla(),
                [prompt for prompt, _ in chats.values()],
                sampling=self.settings.sampling if batch.sampled else Sampling(),
                max_new_tokens=self.settings.max_new_tokens,
                row_keys=[
                    row_key(self.settings.seed, batch.items[row].question_id, turn, 0)
                    for row in chats
                ],
                on_tokens=lambda _, tokens: on_tokens(len(tokens)),
                keep_features=any(turn + 1 == num_turns[row] for row in chats),
            )
            for (row, (prompt, mask)), generation in zip(chats.items(), generations, strict=True):
                answers[row].append(self._text(generation.tokens))
                answer = Answer(
                    torch.tensor(prompt + generation.tokens),
                    torch.tensor(mask + [True] * len(generation.tokens)),
                    str(batch.items[row].question_id),
                )
                latest[row] = (answer, generation.features)
        return self._with_features([latest[row] for row in rows])

    def _fits(self, prompt_length: int) -> bool:
        return prompt_length + self.settings.max_new_tokens + 1 <= self.target.context_length

    def _chat_so_far(
        self, question: Question, answers: Sequence[str]
    ) -> tuple[list[int], list[bool]]:
        """Prompt of the next turn, and which of its tokens the assistant said in earlier ones."""
        messages = question.conversation(answers)
        prompt = self.template.encode(messages)
        if not answers:
            return prompt, [False] * len(prompt)
        try:
            _, mask = self.template.encode_with_mask(messages)
        except UserError:  # a template that rewrites earlier answers: learn from the last one alone
            mask = []
        padding = [False] * (len(prompt) - len(mask))
        return prompt, (mask + padding)[: len(prompt)]

    def _text(self, tokens: list[int]) -> str:
        ended = bool(tokens) and tokens[-1] in self.target.eos_ids
        words = tokens[:-1] if ended else tokens
        return str(self.target.tokenizer.decode(words, skip_special_tokens=True))

    def _with_features(
        self, pairs: Sequence[tuple[Answer, dict[str, Tensor] | None]]
    ) -> list[Conversation]:
        missing = [answer for answer, features in pairs if features is None]
        read = iter(read_features(self.target, [answer.tokens for answer in missing]))
        return [
            _joined(answer, next(read) if features is None else features)
            for answer, features in pairs
        ]


class ReadAnswers:
    """Captures features of conversations that are already written."""

    def __init__(self, target: Target, batch_size: int):
        self.target = target
        self.batch_size = batch_size

    def plan(self, answers: Callable[[], Iterable[Answer]]) -> BatchPlan[Answer]:
        """Batches of the conversations that fit the context and in which the assistant speaks."""

        def measure(answer: Answer) -> tuple[int, int] | None:
            fits = 2 <= len(answer.tokens) <= self.target.context_length
            return (len(answer.tokens), 1) if fits and bool(answer.supervised.any()) else None

        return BatchPlan(answers, measure, lambda _: False, self.batch_size, seed=0)

    def __call__(self, batch: Batch[Answer], on_tokens: OnTokens) -> list[Conversation]:
        """The batch's conversations with features."""
        features = read_features(self.target, [answer.tokens for answer in batch.items])
        on_tokens(sum(int(answer.supervised.sum()) for answer in batch.items))
        return [_joined(*one) for one in zip(batch.items, features, strict=True)]


def read_features(target: Target, texts: Sequence[Tensor]) -> list[dict[str, Tensor]]:
    """Features [T - 1, F] of each token sequence [T], read in passes of limited size."""
    longest = max((len(text) for text in texts), default=1)
    features: list[dict[str, Tensor]] = []
    for part in split(texts, max(1, READ_TOKENS // longest)):
        prompts = [text[:-1].tolist() for text in part]
        scores = target.prefill(prompts, target.new_cache(len(prompts)))
        features += [
            {name: one[row, : len(prompt)].clone() for name, one in scores.features.items()}
            for row, prompt in enumerate(prompts)
        ]
    return features


def _joined(answer: Answer, features: dict[str, Tensor]) -> Conversation:
    kept = {name: one.cpu() for name, one in features.items()}
    return Conversation(answer.tokens, answer.supervised, kept, answer.conversation_id)
