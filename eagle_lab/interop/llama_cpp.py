"""llama.cpp as a peer, through llama-cpp-python: another engine on the same weights in F32.

Imported only where the method is asked for. The weights are written as GGUF once and lie in memory
a second time; keys and values are kept in F32, too, so that greedy output can be compared. With
top_p < 1 and a temperature other than 1 its law is another than ours: it cuts before it heats.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import torch

from eagle_lab.decoding.generation import Generation
from eagle_lab.decoding.loop import check_fits
from eagle_lab.errors import Missing, UserError
from eagle_lab.interop.counting import Pass, generations_of
from eagle_lab.interop.gguf_file import gguf_of
from eagle_lab.models.target import Target
from eagle_lab.sampling import Sampling

_F32 = 0  # GGML_TYPE_F32


class LlamaCpp:
    """Plain decoding by llama.cpp, one prompt at a time.

    Attributes:
        max_nodes: tokens drafted per pass: none.
        max_batch_size: most prompts it decodes side by side.
        context_length: most tokens of a prompt and its answer.
    """

    max_nodes = 0
    max_batch_size: int | None = 1

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
        law = sampling or Sampling()
        return [
            generations_of(
                [prompt],
                self._passes(list(prompt), law, max_new_tokens, key),
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
