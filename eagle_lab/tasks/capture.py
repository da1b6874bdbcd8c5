"""`+experiment=capture`: fill a feature store with the target's own answers.

`output_dir` becomes the store. Run again with the same settings, an interrupted capture goes on
where it stopped; other settings, another target or another template are refused by name.
"""

from __future__ import annotations

from typing import Any

from omegaconf import DictConfig
from rich.console import Console

from eagle_lab.capture import capture
from eagle_lab.data.answers import ANSWERS, Answer, save_answers
from eagle_lab.data.store import FeatureStore
from eagle_lab.data.store_writer import StoreWriter
from eagle_lab.errors import UserError
from eagle_lab.models.target import Target
from eagle_lab.tasks.capture_progress import CaptureProgress, check_disk, size
from eagle_lab.tasks.capture_setup import (
    PROMPTS,
    Work,
    needed_bytes,
    settings_from,
    work_from,
    writer_for,
)
from eagle_lab.tasks.run_folder import RunFolder
from eagle_lab.tasks.target import target_from


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
