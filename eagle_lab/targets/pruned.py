"""A layer-pruned draft model: some of a target's layers between its own embedding and head.

The result is an ordinary Hugging Face model of the target's architecture, which any library loads.
Untrained it drafts poorly; distillation makes it useful (`training.distillation`).
"""

from __future__ import annotations

import copy
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from eagle_lab.errors import UserError
from eagle_lab.files import commit, partial_path
from eagle_lab.targets.target import Target

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def spread_layers(num_layers: int, num_target_layers: int) -> list[int]:
    """Ids of layers spread evenly from the first to the last; one alone is the first.

    Raises:
        UserError: fewer than one, or more than the target has.
    """
    if not 1 <= num_layers <= num_target_layers:
        raise UserError(
            f"draft_model.num_layers={num_layers}; allowed: 1 to {num_target_layers}, the layers "
            "of the target"
        )
    last = num_target_layers - 1
    return [round(place * last / max(num_layers - 1, 1)) for place in range(num_layers)]


def layer_pruned(target: Target, layers: Sequence[int]) -> PreTrainedModel:
    """A float32 model with the chosen layers of `target`, on its device; only these may learn.

    Raises:
        UserError: `layers` are not ids of the target's layers.
    """
    from transformers import AutoModelForCausalLM

    if not layers or not set(layers) <= set(range(target.num_layers)):
        raise UserError(
            f"draft_model.layers={list(layers)}; allowed: ids within 0 ... "
            f"{target.num_layers - 1}, at least one"
        )
    config = type(target.config).from_dict(target.config.to_dict())  # with its own attention
    config.num_hidden_layers = len(layers)
    if kinds := getattr(config, "layer_types", None):
        config.layer_types = [kinds[layer] for layer in layers]
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    whole, part = target.model.get_decoder(), model.get_decoder()
    for name, child in part.named_children():
        if name == "layers":
            for kept, layer in zip(child, layers, strict=True):
                kept.load_state_dict(whole.layers[layer].state_dict())
        else:
            child.load_state_dict(getattr(whole, name).state_dict())
    head = model.get_output_embeddings()
    head.load_state_dict(target.model.get_output_embeddings().state_dict())
    for frozen in (model.get_input_embeddings(), head):
        frozen.requires_grad_(False)
    model.generation_config = copy.deepcopy(target.model.generation_config)
    return model.to(target.device)


def save_model(model: PreTrainedModel, tokenizer: Any, folder: Path) -> Path:
    """Write a Hugging Face folder whole (built beside it, then renamed); replaces an older one."""
    partial = partial_path(folder)
    shutil.rmtree(partial, ignore_errors=True)
    model.save_pretrained(partial)
    tokenizer.save_pretrained(partial)
    commit(folder)
    return folder
