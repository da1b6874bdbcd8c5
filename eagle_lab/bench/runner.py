"""The benchmark runner: methods x questions x repeats x turns, interleaved in one run.

Every batch of turns is decoded by all methods, one right after the other and each time in another
order, so that a machine that slows down slows all of them. Rows are handed on as they come;
given the rows of an interrupted run, only what is missing is decoded. Knows no configuration and
no files.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from rich.console import Console

from eagle_lab.bench.memory import PeakMemory
from eagle_lab.bench.progress import BenchProgress
from eagle_lab.bench.replay import Replay, SharedPrefill
from eagle_lab.bench.settings import (
    Answers,
    Batch,
    BenchSettings,
    check_prompts,
    plan_batches,
    prompts_of,
)
from eagle_lab.bench.statistics import Row, disturbed, turn_key
from eagle_lab.data.chat import ChatTemplate, check_fits
from eagle_lab.data.prompts import Question
from eagle_lab.engine.loop import Generation, Scorer, decode
from eagle_lab.engine.sampling import row_key
from eagle_lab.errors import UserError
from eagle_lab.methods.build import VANILLA, Key, Method, label_methods, place_of
from eagle_lab.methods.vanilla import Vanilla
from eagle_lab.targets.cuda.graphs import CacheGraphs
from eagle_lab.targets.target import Target

WARMUP_TOKENS = 16


class Bench:
    """One run of methods over questions.

    Args:
        target: the model.
        methods: vanilla among them; infeasible ones are kept for the summary and not run, among
            them peers that cannot decode batches of this size and whatever cannot read texts as
            long as these may become.
        questions: what is asked, in order.
        settings: how it is asked.
        console: where to draw progress; None draws nothing.

    Raises:
        UserError: a prompt does not fit the target's context, or two methods have the same name
            and settings.
    """

    def __init__(
        self,
        target: Target,
        methods: Sequence[Method],
        questions: Sequence[Question],
        settings: BenchSettings,
        *,
        console: Console | None = None,
    ):
        self.target, self.settings = target, settings
        at_size = [method.at_batch_size(settings.batch_size) for method in methods]
        self.labels = label_methods(methods)
        if len(self.labels) < len(methods):
            raise UserError(
                "two methods of this bench have the same name and settings: "
                f"{', '.join(method.name for method in methods)}"
            )
        self.template = ChatTemplate(target.tokenizer)
        self.batches = plan_batches(questions, settings)
        self.num_columns = 1 + max(method.max_nodes for method in at_size)
        longest = check_prompts(
            questions,
            settings,
            self.template,
            context_length=target.context_length,
            num_columns=self.num_columns,
        )
        self.methods = [method.at_length(longest) for method in at_size]
        self.runnable = [method for method in self.methods if method.infeasible is None]
        if VANILLA not in [method.name for method in self.runnable]:
            raise ValueError("a bench needs vanilla")
        self._console = console
        self._memory = PeakMemory(target.device)
        # On a GPU prompts are read fast, and kept ones would count as the methods' memory
        shares = target.device.type == "cpu" and not settings.timing
        self._scorer: Scorer = SharedPrefill(target) if shares else target
        self._recorded: tuple[Batch, Replay] | None = None
        self._cycles: defaultdict[Key, list[float]] = defaultdict(list)  # seconds so far

    def run(
        self, done: Iterable[Row] = (), write: Callable[[Row], None] | None = None
    ) -> list[Row]:
        """Decode what is not `done` yet and hand each new row to `write`.

        Returns all rows, in the order of decoding.
        """
        self._write = write or (lambda row: None)
        known = {place_of(row): row for row in done}
        answers: Answers = {}
        rows: list[Row] = []
        with BenchProgress(len(self.batches) * len(self.runnable), self._console) as progress:
            if self.settings.timing and len(known) < self._num_rows():
                self._warm_up()
            for number, batch in enumerate(self.batches):
                prompts = prompts_of(batch, answers, self.template)
                self._check_fits(batch, prompts)
                for method in _rotated(self.runnable, number):
                    progress.begin(self.labels[method.key])
                    new = self._rows_of(method, batch, prompts, known)
                    if method.name == VANILLA:
                        answers |= {turn_key(row): row["text"] for row in new}
                    rows += new
                    progress.finish(self.labels[method.key], new)
        return rows

    def _rows_of(
        self,
        method: Method,
        batch: Batch,
        prompts: list[list[int]],
        known: dict[tuple[Any, ...], Row],
    ) -> list[Row]:
        """The batch's rows of one method: known ones as they are, others decoded and written."""
        places = [
            (*method.key, question.question_id, batch.turn, batch.repeat)
            for question in batch.questions
        ]
        if any(place not in known for place in places):
            fresh = self._decode(method, batch, prompts)
            for place, row in zip(places, fresh, strict=True):
                if place not in known:
                    self._write(row)
                    known[place] = row
        rows = [known[place] for place in places]
        for row, prompt in zip(rows, prompts, strict=True):
            if row["prompt_tokens"] != prompt:
                raise RuntimeError(
                    f"{self.labels[method.key]} answered another prompt than the others at "
                    f"question {row['question_id']}, turn {batch.turn}"
                )
        return rows

    def _decode(self, method: Method, batch: Batch, prompts: list[list[int]]) -> list[Row]:
        keys = [
            row_key(self.settings.seed, question.question_id, batch.turn, batch.repeat)
            for question in batch.questions
        ]
        target = self._scorer_of(method, batch, prompts, keys)
        generate = partial(
            self._generate, target, method, prompts, keys, self.settings.max_new_tokens
        )
        num_captures = CacheGraphs.num_captures
        self._memory.start()
        generations, num_replaced = generate(), 0
        if self.settings.timing:
            if CacheGraphs.num_captures > num_captures:
                generations = generate()  # the same texts, without the time of capturing
            generations, num_replaced = self._without_stalls(method, generations, generate)
        # Graphs of the methods before keep memory that would count as this one's
        peak = self._memory.megabytes() if self.target.graphs is None else None
        return [
            self._row(method, batch, question, generation)
            | {"num_replaced": num_replaced, "peak_memory_mb": peak}
            for question, generation in zip(batch.questions, generations, strict=True)
        ]

    def _without_stalls(
        self,
        method: Method,
        generations: list[Generation],
        generate: Callable[[], list[Generation]],
    ) -> tuple[list[Generation], int]:
        """`generations`, measured once more if cycles were disturbed, and how many those were.

        A second measurement counts only if it has the same texts.
        """
        others, num_replaced = self._cycles[method.key], 0
        found = disturbed(_longest(generations), others)
        if found:
            again = generate()
            if [one.tokens for one in again] == [one.tokens for one in generations]:
                generations, num_replaced = again, found
        others += _longest(generations)
        return generations, num_replaced

    def _scorer_of(
        self, method: Method, batch: Batch, prompts: list[list[int]], keys: list[int]
    ) -> Scorer:
        """What judges the method's drafts: the target, or a replay of its answers to the batch."""
        if not (self.settings.replay and method.replayable(self.settings.sampling)):
            return self._scorer
        if self._recorded is None or self._recorded[0] != batch:
            answers = decode(
                self._scorer,
                Vanilla(),
                prompts,
                sampling=self.settings.sampling,
                max_new_tokens=self.settings.max_new_tokens,
                row_keys=keys,
                keep_features=True,
            )
            self._recorded = (batch, Replay(self.target, answers))
        return self._recorded[1]

    def _generate(
        self,
        target: Scorer,
        method: Method,
        prompts: list[list[int]],
        keys: list[int],
        max_new_tokens: int,
    ) -> list[Generation]:
        asked: dict[str, Any] = {
            "sampling": self.settings.sampling,
            "max_new_tokens": max_new_tokens,
            "row_keys": keys,
        }
        if method.decoder is not None:
            return method.decoder.generate(prompts, **asked)
        assert method.proposer is not None, "infeasible methods do not run"
        return decode(
            target,
            method.proposer,
            prompts,
            keep_confidences=self.settings.record_confidence,
            **asked,
        )

    def _row(self, method: Method, batch: Batch, question: Question, generation: Generation) -> Row:
        """A row of generations.jsonl; without timing all times are None."""
        times = ("prefill_s", "decode_s", "draft_s", "verify_s", "cycle_s")
        asked = ("draft_confidences", "draft_accepted") if self.settings.record_confidence else ()
        return {
            "method": method.name,
            **method.sizes,
            "settings": dict(method.settings),
            "question_id": question.question_id,
            "category": question.category,
            "turn": batch.turn,
            "repeat": batch.repeat,
            "batch": batch.index,
            "prompt_tokens": generation.prompt_tokens,
            "tokens": generation.tokens,
            "text": self.target.tokenizer.decode(generation.tokens, skip_special_tokens=True),
            "accepted_lengths": generation.accepted_lengths,
            "judged_lengths": generation.judged_lengths,
            "emitted_lengths": generation.emitted_lengths,
            "num_drafted": generation.num_drafted,
            "finished_by": generation.finished_by,
            **{name: getattr(generation, name) if self.settings.timing else None for name in times},
            **{name: getattr(generation, name) for name in asked},
        }

    def _warm_up(self) -> None:
        """Run every method on short, middling and long prompts; nothing of it is kept."""
        first = [batch for batch in self.batches if batch.turn == 1]
        asked = [prompt for batch in first for prompt in prompts_of(batch, {}, self.template)]
        prompts = sorted(asked, key=len)
        num_tokens = min(WARMUP_TOKENS, self.settings.max_new_tokens)
        size = len(first[0].questions)
        for step in range(self.settings.warmup):
            place = step * (len(prompts) - 1) // max(self.settings.warmup - 1, 1)
            for method in self.runnable:
                batch = [prompts[place]] * size
                self._generate(self.target, method, batch, list(range(size)), num_tokens)

    def _check_fits(self, batch: Batch, prompts: list[list[int]]) -> None:
        reserve = self.settings.max_new_tokens + self.num_columns
        for question, prompt in zip(batch.questions, prompts, strict=True):
            check_fits(prompt, self.target.context_length, reserve, question.question_id)

    def _num_rows(self) -> int:
        return len(self.runnable) * sum(len(batch.questions) for batch in self.batches)


def _longest(generations: Sequence[Generation]) -> list[float]:
    """Seconds of a batch's cycles: those of the row that had most."""
    return max((generation.cycle_s for generation in generations), key=len)


def _rotated(methods: Sequence[Method], number: int) -> list[Method]:
    """`methods` beginning with another one for each `number`."""
    start = number % len(methods)
    return [*methods[start:], *methods[:start]]
