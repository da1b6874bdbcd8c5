"""A target's weights as a GGUF file in F32, which llama.cpp runs.

Token ids go in and come out, so the file carries no tokenizer, only the size of the vocabulary.
Llama-type models; llama.cpp rotates neighbouring pairs of a head's dimensions where Hugging Face
rotates its halves, so the rows of the query and key projections change places.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from eagle_lab.errors import Infeasible, UserError
from eagle_lab.files import whole
from eagle_lab.models.smollm2 import cache_folder
from eagle_lab.models.target import Target


def gguf_of(target: Target) -> Path:
    """The target's GGUF file in the cache folder, written by the first call.

    Raises:
        Infeasible: the model is not one that this module writes.
        UserError: no room for it.
    """
    path = cache_folder() / f"{target.fingerprint}-f32.gguf"
    if not path.is_file():
        try:
            with whole(path) as partial:
                write_gguf(target, partial)
        except OSError as error:
            raise UserError(
                f"cannot write '{path}': {error}; set EAGLE_LAB_CACHE to a folder with room for "
                "the target's weights in float32"
            ) from error
    return path


def write_gguf(target: Target, path: Path) -> None:
    """Write the weights of `target` to `path`.

    Raises:
        Infeasible: the model is not of type `llama`, or its rotary positions are scaled.
    """
    import gguf

    config = target.config
    rope = config.rope_parameters
    if config.model_type != "llama" or rope.get("rope_type", "default") != "default":
        raise Infeasible(
            f"'{target.name}' is of type {config.model_type} with {rope.get('rope_type')} rotary "
            "positions; only plain llama models are written as GGUF: convert it with llama.cpp's "
            "own tools and give method.llama_cpp.path=FILE"
        )
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    head_width = getattr(config, "head_dim", None) or config.hidden_size // heads

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(head_width)
    writer.add_value_length(head_width)
    writer.add_rope_dimension_count(head_width)
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(target.vocab_size)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_tokenizer_model("none")

    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, weight in target.model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue  # llama.cpp takes the embedding where there is no head
        if "q_proj" in name or "k_proj" in name:
            weight = _pairs_of_halves(weight, heads if "q_proj" in name else kv_heads)
        values = weight.to("cpu", torch.float32).contiguous().numpy()
        known_as = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if known_as is None:
            raise Infeasible(f"llama.cpp knows no tensor like '{name}' of '{target.name}'")
        writer.add_tensor(known_as, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _pairs_of_halves(weight: Tensor, heads: int) -> Tensor:
    """Rows of each head in another order: 0, d/2, 1, d/2 + 1, … for a head width d."""
    halves = weight.reshape(heads, 2, -1, *weight.shape[1:])
    return halves.transpose(1, 2).reshape(weight.shape)
