"""`+experiment=capture`: fill a feature store with the target's own answers.

`output_dir` becomes the store. Run again with the same settings, an interrupted capture goes on
where it stopped; other settings, another target or another template are refused by name.

From the configuration to what a capture needs: source, plan, store writer, room on the disk.

What a person sees of a capture under way, and the look at the disk before it starts.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import torch
from omegaconf import DictConfig
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from eagle_lab.data.answers import ANSWERS, Answer, save_answers
from eagle_lab.data.batches import WINDOW, BatchPlan
from eagle_lab.data.capture import (
    AnswerQuestions,
    CaptureSettings,
    ReadAnswers,
    capture,
    self_written_prompts,
)
from eagle_lab.data.chat import ChatTemplate
from eagle_lab.data.prompts import Question
from eagle_lab.data.sources import SELF_WRITTEN, AnswerSource, PromptSource
from eagle_lab.data.store import RESIDUAL, TOP_NORM, FeatureStore, StoreWriter, feature_widths
from eagle_lab.errors import UserError, choose
from eagle_lab.runs import provenance
from eagle_lab.runs.folder import RunFolder
from eagle_lab.runs.job import sampling_from, target_from
from eagle_lab.targets.features import FUSED, TOP, check_names
from eagle_lab.targets.fingerprint import Fingerprint
from eagle_lab.targets.load import DTYPES
from eagle_lab.targets.target import Target

PROMPTS = "prompts.jsonl"
_SAMPLE = 64  # prompts that an estimate of sizes looks at
_BYTES_PER_TOKEN = 5  # id and mask, beside the feature


class Source(Protocol):
    """Conversations to capture; iterated more than once, each time alike."""

    @property
    def count(self) -> int | None:
        """How many there are; None if there is no end."""

    def __iter__(self) -> Iterator[Any]: ...

    def describe(self) -> dict[str, Any]:
        """Name and hash, for the fingerprint."""
        ...


@dataclass
class SelfWritten:
    """Prompts that the target writes itself, kept in the run's folder as they come."""

    folder: RunFolder
    target: Target
    seed: int
    count: int | None

    def __iter__(self) -> Iterator[Question]:
        """Those written so far, then new ones."""
        written = [
            Question(row["question_id"], SELF_WRITTEN, tuple(row["turns"]))
            for row in self.folder.read_jsonl(PROMPTS)
        ]
        return islice(self._all(written), self.count)

    def _all(self, written: list[Question]) -> Iterator[Question]:
        yield from written
        for question in self_written_prompts(self.target, self.seed, after=written):
            self.folder.append_jsonl(PROMPTS, asdict(question))
            yield question

    def describe(self) -> dict[str, Any]:
        """Name, number and seed; the target is named elsewhere."""
        return {"prompts": SELF_WRITTEN, "num": self.count, "seed": self.seed}


@dataclass
class Work:
    """What a capture does.

    Attributes:
        source: the conversations.
        plan: batches made of them.
        answer: fills a batch.
        settings: that decide the result, for the fingerprint.
        max_tokens: the assistant's tokens at which it ends; None sets no limit.
        template: of the chats.
    """

    source: Source
    plan: BatchPlan[Any]
    answer: Callable[..., Any]
    settings: dict[str, Any]
    max_tokens: int | None
    template: ChatTemplate


def settings_from(config: DictConfig) -> CaptureSettings:
    """How `data.*` wants prompts answered; UserError for a value that cannot be."""
    asked = config.data
    return CaptureSettings(
        batch_size=asked.batch_size,
        max_new_tokens=asked.max_new_tokens,
        sampled_share=asked.sampled_share,
        sampling=sampling_from(config, "data"),
        seed=config.seed,
        max_prompt_tokens=asked.max_prompt_tokens,
    )


def work_from(config: DictConfig, folder: RunFolder, target: Target) -> Work:
    """Source and plan as `data.*` asks for them.

    Raises:
        UserError: a value that cannot be, or nothing that would end the capture.
    """
    asked = config.data
    template = ChatTemplate(target.tokenizer)
    if asked.num_tokens is not None and asked.num_tokens < 1:
        raise UserError(f"data.num_tokens={asked.num_tokens} must be at least 1, or null")
    if asked.answers is not None:
        answers = AnswerSource(asked.answers, template, asked.num_prompts)
        reader = ReadAnswers(target, asked.batch_size)
        recorded = {"batch_size": asked.batch_size}
        batches = reader.plan(lambda: answers)
        return Work(answers, batches, reader, recorded, asked.num_tokens, template)
    prompts: Source
    if asked.prompts == SELF_WRITTEN:
        prompts = SelfWritten(folder, target, config.seed, asked.num_prompts)
    else:
        prompts = PromptSource(asked.prompts, asked.num_prompts, config.seed)
    if asked.num_tokens is None and prompts.count is None:
        raise UserError("a capture needs an end: set data.num_tokens or data.num_prompts")
    answerer = AnswerQuestions(target, template, settings_from(config))
    keys = ("batch_size", "max_new_tokens", "sampled_share", "temperature", "top_p", "top_k")
    recorded = {key: asked[key] for key in keys} | {"seed": config.seed}
    if asked.max_prompt_tokens is not None:
        recorded["max_prompt_tokens"] = asked.max_prompt_tokens
    if asked.prompts == SELF_WRITTEN:  # the first shard need not wait for eight batches of prompts
        recorded["first_window"] = 1
    plan = answerer.plan(lambda: prompts, recorded.get("first_window", WINDOW))
    return Work(prompts, plan, answerer, recorded, asked.num_tokens, template)


def writer_for(config: DictConfig, folder: RunFolder, target: Target, work: Work) -> StoreWriter:
    """The store's writer, at the place where an interrupted capture stopped."""
    layers = list(target.feature_layers) or None
    norm_state = {TOP: TOP_NORM, FUSED: RESIDUAL} if layers else TOP_NORM
    dtype = feature_dtype(config.data.feature_dtype, target.dtype)
    fingerprint = Fingerprint(
        {
            "target": target.fingerprint,
            "layers": layers,
            "norm_state": norm_state,
            "chat_template": work.template.fingerprint,
            "dtype": {
                "features": _plain(dtype),
                "computed": _plain(target.dtype),
                "device": target.device.type,
            },
            "data": {**work.source.describe(), **work.settings},
        }
    )
    details = {
        "layers": layers,
        "norm_state": norm_state,
        "target_name": target.name,
        "vocab_size": target.vocab_size,
        "provenance": {"start": provenance.now(), **provenance.collect(str(config.device))},
    }
    return StoreWriter(
        folder.path,
        fingerprint,
        feature_dtype=dtype,
        feature_widths={name: target.feature_width(name) for name in target.feature_names},
        details=details,
    )


def feature_dtype(name: str, target_dtype: torch.dtype) -> torch.dtype:
    """The dtype of stored features that `data.feature_dtype` names."""
    if name == "auto":
        return torch.bfloat16 if target_dtype == torch.bfloat16 else torch.float16
    return DTYPES[choose(name, ("auto", *DTYPES), "data.feature_dtype")]


def needed_bytes(writer: StoreWriter, work: Work) -> int:
    """Bytes of the whole store, estimated from above.

    A conversation takes its prompts and at most `max_new_tokens` for each turn. Where a number of
    tokens ends the capture, answers of half that length tell how many conversations there are.
    """
    width = sum(feature_widths(writer.index).values())
    per_token = width * writer.feature_dtype.itemsize + _BYTES_PER_TOKEN
    if isinstance(work.source, AnswerSource):
        return per_token * sum(len(answer.tokens) for answer in work.source)
    sample = list(islice(work.source, _SAMPLE))
    turns = _mean(len(question.turns) for question in sample)
    lengths = [len(work.template.encode(question.conversation())) for question in sample]
    prompt = min(_mean(lengths), work.settings.get("max_prompt_tokens", math.inf))
    longest = work.settings["max_new_tokens"] * turns
    counts = [work.source.count] if work.source.count else []
    if work.max_tokens:
        counts.append(int(work.max_tokens / (longest / 2)) + work.settings["batch_size"])
    return int(per_token * min(counts) * (prompt * turns + longest))


def _mean(values: Iterable[int]) -> float:
    listed = list(values)
    return sum(listed) / len(listed)


def _plain(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def check_disk(folder: Path, needed: int) -> None:
    """UserError unless the disk of `folder` has `needed` bytes free."""
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise UserError(
            f"this capture needs about {size(needed)} on the disk of '{folder}', which has "
            f"{size(free)} free; lower data.num_tokens, or take another output_dir"
        )


def size(num_bytes: float) -> str:
    """Bytes for people: 1.2 GB."""
    for unit in ("B", "kB", "MB", "GB"):
        if num_bytes < 1000:
            return f"{num_bytes:.0f} {unit}" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.1f} TB"


class CaptureProgress:
    """A bar with tokens per second, bytes and time left; off a terminal a line per shard.

    Args:
        writer: of the store, for what it holds.
        max_tokens: the assistant's tokens at which the capture ends, or None.
        num_conversations: at which it ends, or None.
    """

    def __init__(
        self,
        console: Console,
        writer: StoreWriter,
        max_tokens: int | None,
        num_conversations: int | None,
    ):
        self.console = console
        self.writer = writer
        self.max_tokens = max_tokens
        self.num_conversations = num_conversations
        self.num_new = 0
        self.start = time.monotonic()
        self.progress = Progress(
            TextColumn("capture"),
            BarColumn(),
            TextColumn("{task.description}"),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self.bar = self.progress.add_task("", total=self._total(), completed=writer.num_supervised)
        self.before = writer.num_supervised

    def __enter__(self) -> Self:
        self.progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.progress.stop()

    @property
    def speed(self) -> float:
        """Answer tokens per second of this process."""
        return self.num_new / max(time.monotonic() - self.start, 1e-9)

    def on_tokens(self, num: int) -> None:
        """Count new answer tokens."""
        self.num_new += num
        self.progress.update(self.bar, completed=self._done(), description=self._state())

    def on_shard(self) -> None:
        """Note a whole shard."""
        total = self._total()
        self.progress.update(self.bar, total=total, description=self._state())
        if not self.console.is_terminal:
            left = ""
            if total and self.num_new:
                minutes = max(0.0, total - self._done()) / self.speed / 60
                left = f", about {minutes:.1f} min left"
            self.console.print(f"shard {self.writer.num_shards}: {self._state()}{left}")

    def _done(self) -> int:
        return self.before + self.num_new

    def _total(self) -> float | None:
        """Answer tokens at the end, as far as can be told by now."""
        limits = [self.max_tokens] if self.max_tokens else []
        stored = int(self.writer.index["num_conversations"])
        if self.num_conversations and stored:
            limits.append(self.writer.num_supervised * self.num_conversations // stored)
        return min(limits) if limits else None

    def _state(self) -> str:
        stored = size(self.writer.index["num_bytes"])
        return f"{self._done():,} answer tokens, {self.speed:.0f} tokens/s, {stored}"


def run(config: DictConfig) -> None:
    """Capture into `config.output_dir`."""
    console = Console()
    if config.overwrite:  # a mistake must not cost the store that is there
        settings_from(config), target_from(config)
    with RunFolder.open(config, task="capture") as folder:
        if folder.finished:
            console.print(f"this capture is finished: {folder.path}")
            return
        capture_into(folder, config, target_from(config), console)
        console.print(f"store: {folder.path}")


def capture_into(
    folder: RunFolder, config: DictConfig, target: Target, console: Console
) -> FeatureStore:
    """Capture as `config` says into `folder`, from where an earlier try stopped; the store."""
    target.hand_out(check_names(config.data.features, "data.features"))
    work = work_from(config, folder, target)
    writer = writer_for(config, folder, target, work)
    if not writer.finished:
        fill(writer, work, target, console)
    finish(folder, writer, work, target)
    console.print(summary(writer.index))
    return FeatureStore.open(folder.path)


def fill(writer: StoreWriter, work: Work, target: Target, console: Console) -> None:
    """Look at the disk, then capture with progress shown.

    Raises:
        UserError: too little room, or no conversation that fits the context.
    """
    check_disk(writer.folder, needed_bytes(writer, work) - writer.index["num_bytes"])
    if writer.num_shards:
        console.print(f"continuing after shard {writer.num_shards} of {writer.folder}")
    with CaptureProgress(console, writer, work.max_tokens, work.source.count) as progress:
        capture(
            work.answer,
            work.plan,
            writer,
            max_tokens=work.max_tokens,
            on_tokens=progress.on_tokens,
            on_shard=progress.on_shard,
        )
    if not writer.num_shards:
        raise UserError(
            f"nothing captured: none of {work.plan.num_skipped} conversations fits the context of "
            f"{target.context_length} tokens"
        )


def finish(folder: RunFolder, writer: StoreWriter, work: Work, target: Target) -> None:
    """Keep the answers apart, declare the store whole, end the run."""
    facts = {
        "target": target.fingerprint,
        "target_name": target.name,
        "vocab_size": target.vocab_size,
        "chat_template": work.template.fingerprint,
    }
    stored = FeatureStore(writer.folder, writer.index)
    answers = (Answer(one.tokens, one.supervised, one.conversation_id) for one in stored)
    save_answers(folder.path / ANSWERS, answers, facts | {"provenance": writer.index["provenance"]})
    num_skipped = work.plan.num_skipped + getattr(work.source, "num_skipped", 0)
    writer.finish(num_skipped=num_skipped)
    if folder.partial(PROMPTS).exists():
        folder.commit(PROMPTS)
    counted = {key: value for key, value in writer.index.items() if key.startswith("num_")}
    folder.write_json("summary.json", counted | {"fingerprint": writer.index["fingerprint"]})
    folder.finish(**facts)


def summary(index: dict[str, Any]) -> str:
    """What the store holds, in a line."""
    skipped = f" ({index['num_skipped']} skipped)" if index["num_skipped"] else ""
    return (
        f"{index['num_conversations']:,} conversations{skipped}, {index['num_tokens']:,} tokens, "
        f"{index['num_supervised']:,} of them the assistant's, {size(index['num_bytes'])}"
    )
