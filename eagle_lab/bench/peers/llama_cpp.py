"""llama.cpp as a peer, through llama-cpp-python: another engine on the same weights in F32.

Imported only where the method is asked for. The weights are written as GGUF once and lie in memory
a second time; keys and values are kept in F32, too, so that greedy output can be compared. Token
ids go in and come out, so the file carries no tokenizer. Llama-type models; llama.cpp rotates
neighbouring pairs of a head's dimensions where Hugging Face rotates its halves, so the rows of the
query and key projections change places. With top_p < 1 and a temperature other than 1 its
distribution is another than ours: it cuts before it heats.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from eagle_lab.bench.peers.counting import Pass, generations_of
from eagle_lab.engine.loop import check_fits
from eagle_lab.engine.record import Generation
from eagle_lab.engine.sampling import Sampling
from eagle_lab.errors import Infeasible, Missing, UserError
from eagle_lab.files import whole
from eagle_lab.methods.build import Decoder
from eagle_lab.targets.smollm2 import cache_folder
from eagle_lab.targets.target import Target


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


_F32 = 0  # GGML_TYPE_F32


class LlamaCpp(Decoder):
    """Plain decoding by llama.cpp, one prompt at a time."""

    max_batch_size = 1

    def __init__(self, target: Target, *, path: str | None = None, context_length: int = 4096):
        """Load `path`, a GGUF file of the target; None writes one into the cache folder.

        Args:
            target: the model; its prompts, its end-of-sequence ids, its device.
            path: a GGUF file with the target's vocabulary.
            context_length: slots of llama.cpp's cache.

        Raises:
            Missing: llama-cpp-python is not installed.
            Infeasible: a model that cannot be written as GGUF.
            UserError: no such file, or not one that llama.cpp loads.
        """
        try:
            from llama_cpp import Llama
        except ImportError as error:
            raise Missing(
                "method llama_cpp needs a package: pip install llama-cpp-python"
            ) from error
        file = gguf_of(target) if path is None else Path(path).expanduser()
        if not file.is_file():
            raise UserError(f"method.llama_cpp.path={path}: no such file")
        self.target = target
        self.context_length = min(context_length, target.context_length)
        threads = torch.get_num_threads()
        try:
            self._llama = Llama(
                model_path=str(file),
                n_ctx=self.context_length,
                n_threads=threads,
                n_threads_batch=threads,
                n_gpu_layers=-1 if target.device.type == "cuda" else 0,
                type_k=_F32,
                type_v=_F32,
                verbose=False,
            )
        except ValueError as error:
            raise UserError(f"llama.cpp cannot load '{file}': {error}") from error

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        sampling: Sampling | None = None,
        max_new_tokens: int = 128,
        row_keys: Sequence[int] | None = None,
    ) -> list[Generation]:
        """What `decoding.loop.decode` returns, decoded one prompt after the other.

        Raises:
            UserError: an empty prompt, or one that does not fit the context.
        """
        check_fits(self.target, 0, prompts, max_new_tokens)
        keys = row_keys or range(len(prompts))
        distribution = sampling or Sampling()
        return [
            generations_of(
                [prompt],
                self._passes(list(prompt), distribution, max_new_tokens, key),
                max_new_tokens=max_new_tokens,
                eos_ids=self.target.eos_ids,
            )[0]
            for prompt, key in zip(prompts, keys, strict=True)
        ]

    def _passes(
        self, prompt: list[int], sampling: Sampling, max_new_tokens: int, key: int
    ) -> list[Pass]:
        if len(prompt) + max_new_tokens > self.context_length:
            raise UserError(
                f"a prompt of {len(prompt)} tokens and {max_new_tokens} new ones exceed "
                f"method.llama_cpp.context_length={self.context_length}"
            )
        self._llama.reset()  # or the cache of the prompt before would serve a common beginning
        self._llama.set_seed(key % 2**32)
        passes: list[Pass] = []
        before = time.perf_counter()
        tokens = self._llama.generate(
            prompt,
            temp=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            min_p=0.0,
            repeat_penalty=1.0,
        )
        for token in tokens:
            now = time.perf_counter()
            passes.append(Pass([[int(token)]], now - before))
            before = now
            if len(passes) == max_new_tokens or int(token) in self.target.eos_ids:
                break
        return passes
