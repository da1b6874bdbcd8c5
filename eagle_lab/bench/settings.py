"""What a bench asks: questions in batches, their prompts turn by turn.

All methods get the same batches and, by construction, the same prompts: turn 2 holds vanilla's
answer to turn 1, whoever is asked. Knows no proposer and takes no time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from eagle_lab.data.chat import ChatTemplate, check_fits
from eagle_lab.data.prompts import Question
from eagle_lab.engine.sampling import Sampling
from eagle_lab.errors import UserError


@dataclass(frozen=True)
class BenchSettings:
    """How a bench asks its questions.

    Attributes:
        turns: turns asked of each question, of those it has.
        max_new_tokens: longest answer.
        sampling: the distribution answers are drawn from.
        batch_size: turns decoded side by side.
        repeats: times everything is asked; each repeat has its own uniforms.
        timing: measure time (warm-up, synchronized clock) or leave all times empty.
        warmup: passes per method before the first measurement, each with a longer prompt.
        seed: of the uniforms and of the bootstrap.
        record_confidence: note how confident the drafter was of what the target judged.
        replay: let the target answer once and replay its answers to the methods (`replay.py`).

    Raises:
        UserError: a count below 1, confidences beside timings, which noting them would change, or a
            replay with timings.
    """

    turns: int = 2
    max_new_tokens: int = 128
    sampling: Sampling = field(default_factory=Sampling)
    batch_size: int = 1
    repeats: int = 1
    timing: bool = True
    warmup: int = 3
    seed: int = 0
    record_confidence: bool = False
    replay: bool = False

    def __post_init__(self) -> None:
        for name in ("turns", "max_new_tokens", "batch_size", "repeats"):
            if getattr(self, name) < 1:
                raise UserError(f"eval.{name}={getattr(self, name)}; it must be at least 1")
        if self.warmup < 0:
            raise UserError(f"eval.warmup={self.warmup}; it must be 0 or more")
        if self.record_confidence and self.timing:
            raise UserError(
                "eval.record_confidence=true takes time of its own; give eval.timing=false with it"
            )
        if self.replay and self.timing:
            raise UserError(
                "eval.replay=true has no target to time; give eval.timing=false with it"
            )


@dataclass(frozen=True)
class Batch:
    """Questions decoded side by side: one turn of one repeat.

    Attributes:
        index: place among the batches of a repeat.
        turn, repeat: counted from 1.
    """

    index: int
    turn: int
    repeat: int
    questions: tuple[Question, ...]


def plan_batches(questions: Sequence[Question], settings: BenchSettings) -> list[Batch]:
    """All batches in the order they are decoded: repeat by repeat, group by group, turn by turn.

    A group keeps its questions over all turns; those without a further turn drop out.
    """
    size = settings.batch_size
    groups = [tuple(questions[start : start + size]) for start in range(0, len(questions), size)]
    batches = []
    for repeat in range(1, settings.repeats + 1):
        for index, group in enumerate(groups):
            for turn in range(1, settings.turns + 1):
                asked = tuple(question for question in group if len(question.turns) >= turn)
                if asked:
                    batches.append(Batch(index, turn, repeat, asked))
    return batches


Answers = dict[tuple[str | int, int, int], str]
"""Vanilla's answers so far by question, turn and repeat."""


def prompts_of(batch: Batch, answers: Answers, template: ChatTemplate) -> list[list[int]]:
    """Token ids of the batch's prompts; `answers` must hold those to the turns before."""
    earlier = range(1, batch.turn)
    return [
        template.encode(
            question.conversation(
                [answers[question.question_id, turn, batch.repeat] for turn in earlier]
            )
        )
        for question in batch.questions
    ]


def check_prompts(
    questions: Sequence[Question],
    settings: BenchSettings,
    template: ChatTemplate,
    *,
    context_length: int,
    num_columns: int,
) -> int:
    """Make sure, before anything runs, that every prompt and its answer fit the context.

    A later turn is taken at its longest, with full answers to the turns before it.

    Args:
        num_columns: columns of the largest draft tree, kept free after the answer.

    Returns:
        Most tokens that a prompt and its answer may come to.

    Raises:
        UserError: naming the question and the numbers.
    """
    longest = 0
    for question in questions:
        for turn in range(min(settings.turns, len(question.turns))):
            ids = template.encode(question.conversation([""] * turn))
            answers = (turn + 1) * settings.max_new_tokens
            check_fits(ids, context_length, answers + num_columns, question.question_id)
            longest = max(longest, len(ids) + answers)
    return longest
