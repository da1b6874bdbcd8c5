"""From a name to a `Target`: the embedded default, tiny random models, or any Hugging Face model.

    target = load_target("smollm2_135m")
    target = load_target("HuggingFaceTB/SmolLM2-1.7B-Instruct", device="cuda", dtype="bfloat16")
    target = load_target("tiny_random", architecture="gemma2")

Weights are read from safetensors files only, and Python code that comes with a model runs only
with `trust_remote_code`. Knows nothing of configuration files.
"""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from torch import nn

from eagle_lab.errors import UserError, choose
from eagle_lab.targets.cuda.graphs import CudaGraphCapture, VerifyGraphs, no_graphs_reason
from eagle_lab.targets.smollm2 import smollm2_folder
from eagle_lab.targets.target import Target
from eagle_lab.targets.tiny import tiny_random

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedTokenizerBase


BUILTIN = {"smollm2_135m": "SmolLM2-135M-Instruct", "tiny_random": "tiny_random"}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def load_target(
    name: str,
    *,
    path: str | Path | None = None,
    device: str = "auto",
    dtype: str = "float32",
    feature_layers: Sequence[int] | None = None,
    trust_remote_code: bool = False,
    threads: int | None = None,
    fast_layers: bool | None = None,
    attention: str = "auto",
    graphs: bool | None = None,
    architecture: str = "llama",
    tied_head: bool = False,
) -> Target:
    """Load a target, ready to score.

    Args:
        name: `smollm2_135m`, `tiny_random`, or a hub id or folder of a causal language model.
        path: hub id or folder, where it is not `name` itself.
        device: `auto` (CUDA if there is one), `cpu` or `cuda`.
        dtype: `float32`, `bfloat16` or `float16`.
        feature_layers: see `Target`.
        trust_remote_code: run Python code that comes with the weights.
        threads: CPU threads of torch; None leaves torch's own choice.
        fast_layers: see `Target`.
        attention: see `Target`.
        graphs: replay passes over trees from CUDA graphs; None where there is a GPU.
        architecture: of `tiny_random`, see `targets.tiny`.
        tied_head: of `tiny_random`.

    Raises:
        UserError: no such model, no network, no CUDA, weights in another format, ...: one line
            that says what to change.
    """
    placement = choose_device(device)
    precision = DTYPES[choose(dtype, DTYPES, "dtype")]
    with_graphs = wants_graphs(graphs, placement)
    if threads is not None:
        if threads < 1:
            raise UserError(f"threads={threads}; it must be at least 1, or null")
        torch.set_num_threads(threads)
    if name == "tiny_random" and path is None:
        model, tokenizer = tiny_random(architecture, tied_head=tied_head)
        for parameter in model.parameters():  # buffers, such as rotary frequencies, stay float32
            parameter.data = parameter.data.to(precision)
    else:
        source = smollm2_folder() if name == "smollm2_135m" and path is None else path or name
        model, tokenizer = _from_pretrained(str(source), precision, trust_remote_code)
    module: nn.Module = model
    module.to(placement)
    label = BUILTIN.get(name, Path(str(path or name)).name)
    target = Target(
        model,
        tokenizer,
        name=label,
        feature_layers=feature_layers,
        fast_layers=fast_layers,
        attention=attention,
    )
    if with_graphs and (reason := no_graphs_reason(target.config)):
        warnings.warn(f"no CUDA graphs for {label}: {reason}", stacklevel=2)
    elif with_graphs:
        target.graphs = VerifyGraphs(target, CudaGraphCapture())
    return target


def wants_graphs(graphs: bool | None, device: torch.device) -> bool:
    """Whether to capture CUDA graphs; UserError for `graphs=True` on a CPU."""
    on_cuda = device.type == "cuda"
    if graphs and not on_cuda:
        raise UserError("graphs=true, but they need a GPU; use graphs=auto (None in Python)")
    return on_cuda and graphs is not False


def choose_device(device: str) -> torch.device:
    """The torch device after `auto`, `cpu` or `cuda`; UserError where CUDA is missing."""
    choose(device, ("auto", "cpu", "cuda"), "device")
    available = torch.cuda.is_available()
    if device == "cuda" and not available:
        raise UserError("device=cuda, but torch finds no CUDA device here; use device=cpu or auto")
    return torch.device("cuda" if available and device != "cpu" else "cpu")


def _from_pretrained(source: str, dtype: torch.dtype, trust_remote_code: bool) -> tuple[Any, Any]:
    """Model and tokenizer of a hub id or folder."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    folder = Path(source).expanduser()
    if folder.is_dir():
        _check_folder(folder)
        source = str(folder)
    else:
        _check_hub_id(source)
    code = {"trust_remote_code": trust_remote_code}
    try:
        config = AutoConfig.from_pretrained(source, **code)
        _check_config(config, source)
        tokenizer = AutoTokenizer.from_pretrained(source, **code)
        _check_tokenizer(tokenizer, source)
        model = AutoModelForCausalLM.from_pretrained(
            source, config=config, dtype=dtype, use_safetensors=True, **code
        )
    except (OSError, ValueError, KeyError, ImportError, RuntimeError, SafetensorError) as error:
        raise UserError(_load_failure(source, folder.is_dir(), error)) from error
    return model, tokenizer


def _check_folder(folder: Path) -> None:
    """UserError unless `folder` looks like a model with safetensors weights."""
    if not (folder / "config.json").is_file():
        raise UserError(f"'{folder}' is no model folder: it has no config.json")
    if not list(folder.glob("*.safetensors")):
        others = [path.name for path in folder.iterdir() if path.suffix in (".bin", ".pt", ".gguf")]
        found = f" (found: {', '.join(sorted(others)[:3])})" if others else ""
        raise UserError(f"'{folder}' has no safetensors weights{found}; only those are loaded")


def _check_hub_id(source: str) -> None:
    """UserError if `source` cannot be a hub id: a path, or a misspelt builtin name."""
    if source.startswith((".", "/", "~")) or source.count("/") > 1 or "\\" in source:
        raise UserError(f"no model folder at '{source}'")
    if nearest := difflib.get_close_matches(source, BUILTIN, n=1, cutoff=0.7):
        raise UserError(
            f"unknown target '{source}'; allowed: {', '.join(BUILTIN)}, or the hub id or folder "
            f"of a Hugging Face model. Did you mean '{nearest[0]}'?"
        )


def _check_config(config: PretrainedConfig, source: str) -> None:
    text = config.get_text_config()
    if getattr(text, "is_encoder_decoder", False):
        raise UserError(f"'{source}' is an encoder-decoder model, not a causal language model")
    if not isinstance(getattr(text, "max_position_embeddings", None), int):
        raise UserError(
            f"the configuration of '{source}' does not say how long its context is "
            "(max_position_embeddings); such a model cannot be a target"
        )


def _check_tokenizer(tokenizer: PreTrainedTokenizerBase, source: str) -> None:
    """UserError for the empty tokenizer that transformers makes up where files are missing."""
    word = "sea"
    if word not in str(tokenizer.decode(tokenizer(word)["input_ids"])).lower():
        raise UserError(f"'{source}' has no tokenizer that knows words; its files are missing")


def _load_failure(source: str, is_folder: bool, error: Exception) -> str:
    """One line for what transformers says in many."""
    text = " ".join(str(error).split())
    if "trust_remote_code" in text:
        return f"'{source}' needs its own Python code; allow it with target.trust_remote_code=true"
    if "Unrecognized configuration class" in text or "does not recognize this arch" in text:
        return f"'{source}' is no causal language model that this transformers version knows"
    reason = text if len(text) <= 200 else text[:197] + "..."
    if is_folder:
        return f"'{source}' cannot be loaded as a model with tokenizer: {reason}"
    if isinstance(error, OSError):
        return (
            f"could not get '{source}' from the hub, nor from its local cache (no network, no "
            f"such model, no access, or no safetensors weights): {reason}"
        )
    return f"'{source}' cannot be loaded: {reason}"
