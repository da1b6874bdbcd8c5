"""`+experiment=capture`: fill a feature store with the target's own answers.

Reads as: settings, target, source, writer, capture, finish. `output_dir` becomes the store. Run
again with the same settings, an interrupted capture goes on where it stopped; other settings,
another target or another template are refused by name.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig
from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from eagle_lab.config import settings_of
from eagle_lab.data.answers import ANSWERS, Answer, save_answers
from eagle_lab.data.batches import WINDOW, Batch
from eagle_lab.data.capture import (
    AnswerQuestions,
    ReadAnswers,
    capture,
    needed_bytes,
    self_written_prompts,
)
from eagle_lab.data.chat import ChatTemplate
from eagle_lab.data.prompts import Question
from eagle_lab.data.settings import CaptureSettings
from eagle_lab.data.sources import SELF_WRITTEN, Source, answer_source, prompt_source
from eagle_lab.data.store import FeatureStore, StoreWriter
from eagle_lab.errors import UserError, choose
from eagle_lab.runs import provenance
from eagle_lab.runs.folder import RunFolder
from eagle_lab.runs.job import sampling_from, target_from
from eagle_lab.targets.features import FUSED, TOP, check_names
from eagle_lab.targets.fingerprint import Fingerprint
from eagle_lab.targets.load import DTYPES
from eagle_lab.targets.target import Target

PROMPTS = "prompts.jsonl"
NORM_STATES = {TOP: "post_final_norm", FUSED: "un_normed_layer_inputs"}
# Settings that decide the answers, and so belong to the fingerprint
_ANSWERING = ("batch_size", "max_new_tokens", "sampled_share", "temperature", "top_p", "top_k")


def run(config: DictConfig) -> None:
    """Capture into `config.output_dir`."""
    console = Console()
    settings = settings_of(config.data)
    sampling_from(config, "data")
    if config.overwrite:  # a mistake must not cost the store that is there
        target_from(config)
    with RunFolder.open(config, task="capture") as folder:
        if folder.finished:
            console.print(f"this capture is finished: {folder.path}")
            return
        store = capture_into(folder, config, settings, target_from(config), console)
        console.print(f"{summary(store.index)}\nstore: {folder.path}")


def capture_into(
    folder: RunFolder,
    config: DictConfig,
    settings: CaptureSettings,
    target: Target,
    console: Console,
) -> FeatureStore:
    """Capture into `folder`, from where an earlier try stopped; the store.

    Raises:
        UserError: nothing that would end the capture, too little room on the disk, or no
            conversation that fits the context.
    """
    target.hand_out(check_names(settings.features, "data.features"))
    template = ChatTemplate(target.tokenizer)
    source = source_from(settings, config.seed, folder, target, template)
    recorded: dict[str, Any] = {"batch_size": settings.batch_size}
    job: ReadAnswers | AnswerQuestions
    batches: Iterator[Batch[Any]]
    if settings.answers is not None:
        job = ReadAnswers(target, settings.batch_size)
        batches = job.batches(source)
    else:
        recorded = {key: getattr(settings, key) for key in _ANSWERING} | {"seed": config.seed}
        if settings.prompts == SELF_WRITTEN:  # the first shard need not wait for eight batches
            recorded["first_window"] = 1
        sampling = sampling_from(config, "data")
        job = AnswerQuestions(target, template, settings, sampling, config.seed)
        batches = job.batches(source, recorded.get("first_window", WINDOW))
    parts = {"chat_template": template.fingerprint, "data": {**source.facts, **recorded}}
    writer = writer_for(folder.path, target, settings.feature_dtype, parts)
    if not writer.finished:
        needed = needed_bytes(writer, source, template, settings)
        check_disk(folder.path, needed - writer.index["num_bytes"])
        if writer.num_shards:
            console.print(f"continuing after shard {writer.num_shards} of {folder.path}")
        with CaptureProgress(console, writer, settings.num_tokens, source.count) as progress:
            capture(
                job,
                batches,
                writer,
                max_tokens=settings.num_tokens,
                on_tokens=progress.on_tokens,
                on_shard=progress.on_shard,
            )
        if not writer.num_shards:
            raise UserError(
                f"nothing captured: none of {job.num_skipped} conversations fits the context of "
                f"{target.context_length} tokens"
            )
    return finish(folder, writer, target, template, job.num_skipped + source.num_skipped)


def source_from(
    settings: CaptureSettings, seed: int, folder: RunFolder, target: Target, template: ChatTemplate
) -> Source:
    """The conversations that `data.*` asks for; UserError where nothing would end the capture."""
    num = settings.num_prompts
    if settings.answers is not None:
        return answer_source(settings.answers, template, num)
    if settings.prompts == SELF_WRITTEN:
        facts = {"prompts": SELF_WRITTEN, "num": num, "seed": seed}
        source = Source(lambda: kept_prompts(folder, target, seed), num, facts)
    else:
        source = prompt_source(settings.prompts, num, seed)
    if settings.num_tokens is None and source.count is None:
        raise UserError("a capture needs an end: set data.num_tokens or data.num_prompts")
    return source


def kept_prompts(folder: RunFolder, target: Target, seed: int) -> Iterator[Question]:
    """Prompts that the target wrote before, then new ones, which the folder keeps as they come."""
    rows = folder.read_jsonl(PROMPTS)
    written = [Question(row["question_id"], SELF_WRITTEN, tuple(row["turns"])) for row in rows]
    yield from written
    for question in self_written_prompts(target, seed, after=written):
        folder.append_jsonl(PROMPTS, asdict(question))
        yield question


def writer_for(
    folder: Path, target: Target, feature_dtype: str, parts: dict[str, Any]
) -> StoreWriter:
    """The store's writer, at the place where an interrupted capture stopped.

    Args:
        folder: of the store.
        target: which hands out the features to store.
        feature_dtype: `data.feature_dtype`.
        parts: of the fingerprint, beside what the target says.
    """
    layers = list(target.feature_layers) or None
    dtype = torch.bfloat16 if target.dtype == torch.bfloat16 else torch.float16
    if feature_dtype != "auto":
        dtype = DTYPES[choose(feature_dtype, ("auto", *DTYPES), "data.feature_dtype")]
    facts = {"layers": layers, "norm_state": NORM_STATES if layers else NORM_STATES[TOP]}
    precision = {
        "features": _plain(dtype),
        "computed": _plain(target.dtype),
        "device": target.device.type,
    }
    fingerprint = Fingerprint(
        {"target": target.fingerprint, **facts, "dtype": precision, **parts},
    )
    start = {"start": provenance.now(), **provenance.collect(target.device.type)}
    return StoreWriter(
        folder,
        fingerprint,
        feature_dtype=dtype,
        feature_widths={name: target.feature_width(name) for name in target.feature_names},
        details={
            **facts,
            "target_name": target.name,
            "vocab_size": target.vocab_size,
            "provenance": start,
        },
    )


def _plain(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def check_disk(folder: Path, needed: int) -> None:
    """UserError unless the disk of `folder` has `needed` bytes free."""
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise UserError(
            f"this capture needs about {decimal(needed)} on the disk of '{folder}', which has "
            f"{decimal(free)} free; lower data.num_tokens, or take another output_dir"
        )


def finish(
    folder: RunFolder, writer: StoreWriter, target: Target, template: ChatTemplate, num_skipped: int
) -> FeatureStore:
    """Keep the answers apart, declare the store whole, end the run."""
    facts = {
        "target": target.fingerprint,
        "target_name": target.name,
        "vocab_size": target.vocab_size,
        "chat_template": template.fingerprint,
    }
    store = FeatureStore(folder.path, writer.index)
    answers = (Answer(one.tokens, one.supervised, one.conversation_id) for one in store)
    save_answers(folder.path / ANSWERS, answers, facts | {"provenance": writer.index["provenance"]})
    writer.finish(num_skipped=num_skipped)
    if folder.partial(PROMPTS).exists():
        folder.commit(PROMPTS)
    counted = {key: value for key, value in writer.index.items() if key.startswith("num_")}
    folder.write_json("summary.json", counted | {"fingerprint": writer.index["fingerprint"]})
    folder.finish(**facts)
    return store


def summary(index: dict[str, Any]) -> str:
    """What the store holds, in a line."""
    skipped = f" ({index['num_skipped']} skipped)" if index["num_skipped"] else ""
    return (
        f"{index['num_conversations']:,} conversations{skipped}, {index['num_tokens']:,} tokens, "
        f"{index['num_supervised']:,} of them the assistant's, {decimal(index['num_bytes'])}"
    )


class CaptureProgress(Progress):
    """A bar with tokens per second, bytes and time left; off a terminal a line per shard.

    Args:
        console: where to show it.
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
    ) -> None:
        columns = (TextColumn("capture"), BarColumn(), TextColumn("{task.description}"))
        alive = console.is_terminal
        super().__init__(*columns, TimeRemainingColumn(), console=console, disable=not alive)
        self.writer, self.before = writer, writer.num_supervised
        self.max_tokens, self.num_conversations = max_tokens, num_conversations
        self.num_new, self.began = 0, time.monotonic()
        self.bar = self.add_task("", total=self._total(), completed=self.before)

    def on_tokens(self, num: int) -> None:
        """Count new answer tokens."""
        self.num_new += num
        done = self.before + self.num_new
        self.update(self.bar, completed=done, description=self._state())

    def on_shard(self) -> None:
        """Note a whole shard."""
        total = self._total()
        self.update(self.bar, total=total, description=self._state())
        if not self.console.is_terminal:
            left = ""
            if total and self.num_new:
                seconds = max(0.0, total - self.before - self.num_new) / self._speed()
                left = f", about {seconds / 60:.1f} min left"
            self.console.print(f"shard {self.writer.num_shards}: {self._state()}{left}")

    def _speed(self) -> float:
        """Answer tokens per second of this process."""
        return self.num_new / max(time.monotonic() - self.began, 1e-9)

    def _total(self) -> float | None:
        """Answer tokens at the end, as far as can be told by now."""
        limits = [self.max_tokens] if self.max_tokens else []
        stored = int(self.writer.index["num_conversations"])
        if self.num_conversations and stored:
            limits.append(self.writer.num_supervised * self.num_conversations // stored)
        return min(limits) if limits else None

    def _state(self) -> str:
        done, stored = self.before + self.num_new, decimal(self.writer.index["num_bytes"])
        return f"{done:,} answer tokens, {self._speed():.0f} tokens/s, {stored}"
