"""From the configuration to what a capture needs: source, plan, store writer, room on the disk."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any, Protocol

import torch
from omegaconf import DictConfig

from eagle_lab.capture import AnswerQuestions, CaptureSettings, ReadAnswers
from eagle_lab.capture_prompts import self_written_prompts
from eagle_lab.data.batches import WINDOW, BatchPlan
from eagle_lab.data.chat import ChatTemplate
from eagle_lab.data.fingerprint import Fingerprint
from eagle_lab.data.prompts import Question
from eagle_lab.data.sources import SELF_WRITTEN, AnswerSource, PromptSource
from eagle_lab.data.store import RESIDUAL, TOP_NORM
from eagle_lab.data.store_writer import StoreWriter
from eagle_lab.errors import UserError, choose
from eagle_lab.models.load import DTYPES
from eagle_lab.models.target import Target
from eagle_lab.tasks import provenance
from eagle_lab.tasks.job import sampling_from
from eagle_lab.tasks.run_folder import RunFolder

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
    layers = list(target.feature_layers) if target.feature_layers else None
    norm_state = RESIDUAL if layers else TOP_NORM
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
        feature_width=target.feature_width,
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
    width = int(writer.index["feature_width"])
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
