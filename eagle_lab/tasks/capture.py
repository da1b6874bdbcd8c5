"""`+experiment=capture`: fill a feature store with the target's own answers.

`output_dir` becomes the store. Run again with the same settings, an interrupted capture goes on
where it stopped; other settings, another target or another template are refused by name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from omegaconf import DictConfig
from rich.console import Console

from eagle_lab.capture import AnswerQuestions, CaptureSettings, ReadAnswers, capture
from eagle_lab.data.answers import ANSWERS, Answer, save_answers
from eagle_lab.data.batches import BatchPlan
from eagle_lab.data.chat import ChatTemplate
from eagle_lab.data.fingerprint import Fingerprint
from eagle_lab.data.sources import AnswerSource, PromptSource
from eagle_lab.data.store import RESIDUAL, TOP_NORM, FeatureStore, StoreWriter
from eagle_lab.errors import UserError, choose
from eagle_lab.models.load import DTYPES
from eagle_lab.models.target import Target
from eagle_lab.sampling import Sampling
from eagle_lab.tasks import provenance
from eagle_lab.tasks.capture_progress import CaptureProgress, check_disk, size
from eagle_lab.tasks.run_folder import RunFolder
from eagle_lab.tasks.target import target_from


@dataclass
class Work:
    """What a capture does.

    Attributes:
        source: the conversations.
        plan: batches made of them.
        answer: fills a batch.
        settings: that decide the result, for the fingerprint.
        max_tokens: the assistant's tokens at which it ends; None sets no limit.
    """

    source: PromptSource | AnswerSource
    plan: BatchPlan[Any]
    answer: Callable[..., Any]
    settings: dict[str, Any]
    max_tokens: int | None


def run(config: DictConfig) -> None:
    """Capture into `config.output_dir`."""
    console = Console()
    with RunFolder.open(config, task="capture") as folder:
        if folder.finished:
            console.print(f"this capture is finished: {folder.path}")
            return
        target = target_from(config)
        template = ChatTemplate(target.tokenizer)
        work = work_from(config, target, template)
        writer = writer_for(config, folder, target, template, work)
        if not writer.finished:
            fill(writer, work, target, template, console)
        finish(folder, writer, target, template, work)
        console.print(summary(writer.index))


def work_from(config: DictConfig, target: Target, template: ChatTemplate) -> Work:
    """Source and plan as `data.*` asks for them."""
    asked = config.data
    if asked.answers is not None:
        answers = AnswerSource(asked.answers, template, asked.num_prompts)
        reader = ReadAnswers(target, asked.batch_size)
        plan = reader.plan(lambda: answers)
        return Work(answers, plan, reader, {"batch_size": asked.batch_size}, asked.num_tokens)
    settings = CaptureSettings(
        batch_size=asked.batch_size,
        max_new_tokens=asked.max_new_tokens,
        sampled_share=asked.sampled_share,
        sampling=Sampling(asked.temperature, asked.top_p, asked.top_k),
        seed=config.seed,
    )
    prompts = PromptSource(asked.prompts, asked.num_prompts, config.seed)
    answerer = AnswerQuestions(target, template, settings)
    keys = ("batch_size", "max_new_tokens", "sampled_share", "temperature", "top_p", "top_k")
    recorded = {key: asked[key] for key in keys} | {"seed": config.seed}
    return Work(prompts, answerer.plan(lambda: prompts), answerer, recorded, asked.num_tokens)


def writer_for(
    config: DictConfig, folder: RunFolder, target: Target, template: ChatTemplate, work: Work
) -> StoreWriter:
    """The store's writer, at the place where an interrupted capture stopped."""
    layers = list(target.feature_layers) if target.feature_layers else None
    norm_state = RESIDUAL if layers else TOP_NORM
    dtype = feature_dtype(config.data.feature_dtype, target.dtype)
    fingerprint = Fingerprint(
        {
            "target": target.fingerprint,
            "layers": layers,
            "norm_state": norm_state,
            "chat_template": template.fingerprint,
            "dtype": {
                "features": str(dtype).removeprefix("torch."),
                "computed": str(target.dtype).removeprefix("torch."),
                "device": target.device.type,
            },
            "data": {**work.source.describe(), **work.settings, "num_tokens": work.max_tokens},
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


def fill(
    writer: StoreWriter, work: Work, target: Target, template: ChatTemplate, console: Console
) -> None:
    """Look at the disk, then capture with progress shown."""
    if work.max_tokens is None and work.source.count is None:
        raise UserError("a capture needs an end: set data.num_tokens or data.num_prompts")
    needed = needed_bytes(writer, work, target, template) - writer.index["num_bytes"]
    check_disk(writer.folder, needed)
    if writer.num_shards:
        console.print(f"going on behind shard {writer.num_shards} of {writer.folder}")
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
            f"nothing captured: no conversation fits the context of {target.context_length} tokens"
        )


def needed_bytes(writer: StoreWriter, work: Work, target: Target, template: ChatTemplate) -> int:
    """Bytes of the whole store, estimated from above.

    A conversation takes its prompt and at most `max_new_tokens` for each turn; how many there are
    follows from the limits, taking answers of half that length.
    """
    per_token = target.feature_width * writer.feature_dtype.itemsize + 5  # id and mask
    if isinstance(work.source, AnswerSource):
        return per_token * sum(len(answer.tokens) for answer in work.source)
    sample = list(islice(work.source, 100))
    turns = sum(len(question.turns) for question in sample) / len(sample)
    prompt = sum(len(template.encode(question.conversation())) for question in sample) / len(sample)
    longest = work.settings["max_new_tokens"] * turns
    counts = [work.source.count] if work.source.count else []
    if work.max_tokens:
        counts.append(int(work.max_tokens / (longest / 2)) + work.settings["batch_size"])
    return int(per_token * min(counts) * (prompt * turns + longest))


def finish(
    folder: RunFolder, writer: StoreWriter, target: Target, template: ChatTemplate, work: Work
) -> None:
    """Declare the store whole, keep the answers apart, end the run."""
    num_skipped = work.plan.num_skipped + getattr(work.source, "num_skipped", 0)
    facts = {"target": target.fingerprint, "target_name": target.name}
    facts |= {"chat_template": template.fingerprint, "vocab_size": target.vocab_size}
    conversations = FeatureStore(writer.folder, writer.index)
    answers = (Answer(one.tokens, one.supervised, one.conversation_id) for one in conversations)
    save_answers(folder.path / ANSWERS, answers, facts | {"provenance": writer.index["provenance"]})
    writer.finish(num_skipped=num_skipped)
    counted = {key: writer.index[key] for key in writer.index if key.startswith("num_")}
    folder.write_json("summary.json", counted | {"fingerprint": writer.index["fingerprint"]})
    folder.finish(**facts)


def summary(index: dict[str, Any]) -> str:
    """The last line on the screen."""
    skipped = f", {index['num_skipped']} skipped" if index["num_skipped"] else ""
    return (
        f"{index['num_conversations']:,} conversations{skipped}, {index['num_tokens']:,} tokens, "
        f"{index['num_supervised']:,} of them the assistant's, {size(index['num_bytes'])}"
    )
