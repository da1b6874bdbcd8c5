"""Hugging Face `generate` as a peer: plain, assisted by a draft model, and with prompt lookup.

Loop, layers and defaults are those of transformers; weights, prompts, distribution and counting are
ours. A peer gets a second model of the target's class whose parameters are the target's own
tensors: weights are in memory once, buffers and caches twice. Tokens arrive through a streamer, one
call per pass of the target, and a hook notes how many columns each pass had. How a cycle splits
into drafting and verifying is not known.

At T > 0 transformers draws from torch's global generator, seeded here with the keys of the batch's
rows: a run repeats itself, but a row's text changes with its neighbours. transformers 5.17 rolls
sliding-window caches back wrongly: for such models assisted generation and prompt lookup fail
there, or their greedy match rate shows it; 5.24 is right.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationConfig
from transformers.generation.streamers import BaseStreamer

from eagle_lab.bench.peers.counting import Pass, generations_of
from eagle_lab.engine.loop import check_fits
from eagle_lab.engine.record import Generation
from eagle_lab.engine.sampling import Sampling, row_key
from eagle_lab.errors import UserError
from eagle_lab.methods.build import Decoder
from eagle_lab.methods.draft_model import check_same_vocabulary, load_draft_model
from eagle_lab.targets.target import Target


def unmodified(target: Target) -> Any:
    """A `PreTrainedModel` that shares the weights of `target` and none of its changes.

    Its generation settings are those of an empty `GenerationConfig`: a penalty or temperature
    that came with the weights would make another distribution than the one that is benched.
    """
    from accelerate import init_empty_weights

    model = target.model
    # Through a dictionary, which knows no attention implementation: the class takes its default.
    config = type(model.config).from_dict(model.config.to_dict())
    with init_empty_weights(include_buffers=False):
        plain = type(model)(config)
    plain.load_state_dict(model.state_dict(), assign=True)
    plain.to(target.device)  # the buffers; the parameters are there already
    if getattr(plain.config, "attn_logit_softcapping", None):
        plain.set_attn_implementation("eager")  # sdpa, the default of 5.17, leaves the cap out
    plain.generation_config = GenerationConfig()
    return plain.eval().requires_grad_(False)


class _Arrivals(BaseStreamer):
    """Notes what each pass emitted and how long it took; tokens arrive on the host."""

    def __init__(self, num_rows: int):
        self.tokens: list[list[list[int]]] = []
        self.seconds: list[float] = []
        self._num_rows = num_rows
        self._prompt_seen = False
        self._last = time.perf_counter()

    def put(self, value: Tensor) -> None:
        """Take the tokens of one pass, [B] or [1, A]; the first call brings the prompts."""
        if not self._prompt_seen:
            self._prompt_seen = True
            return
        self.tokens.append(value.reshape(self._num_rows, -1).tolist())
        self.seconds.append(self._lap())

    def end(self) -> None:
        """`generate` is about to return: what it did since belongs to the last pass."""
        self.seconds[-1] += self._lap()

    def _lap(self) -> float:
        now = time.perf_counter()
        seconds, self._last = now - self._last, now
        return seconds


class HfGenerate(Decoder):
    """Plain `generate`; `context_length` holds the draft model's, too."""

    def __init__(self, target: Target):
        self.target = target
        self.context_length = target.context_length
        self.model = unmodified(target)
        self._widths: list[int] = []
        self.model.register_forward_pre_hook(self._note_width, with_kwargs=True)

    def _note_width(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._widths.append(kwargs["input_ids"].shape[1])

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        sampling: Sampling | None = None,
        max_new_tokens: int = 128,
        row_keys: Sequence[int] | None = None,
    ) -> list[Generation]:
        """What `decoding.loop.decode` returns, decoded by transformers; same arguments.

        Raises:
            UserError: an empty prompt, or one that does not fit the context.
        """
        check_fits(self.target, 0, prompts, max_new_tokens)
        width = max(map(len, prompts))
        padding = [width - len(prompt) for prompt in prompts]
        ids = [[0] * pad + list(prompt) for pad, prompt in zip(padding, prompts, strict=True)]
        mask = [[0] * pad + [1] * (width - pad) for pad in padding]
        config = self._config(sampling or Sampling(), max_new_tokens)
        self._widths.clear()
        cuda = [self.target.device] if self.target.device.type == "cuda" else []
        with torch.random.fork_rng(devices=cuda):
            torch.manual_seed(row_key(0, list(row_keys or ()), 0, 0))
            arrivals = _Arrivals(len(prompts))
            self.model.generate(
                torch.tensor(ids, device=self.target.device),
                attention_mask=torch.tensor(mask, device=self.target.device),
                generation_config=config,
                streamer=arrivals,
                **self._arguments(),
            )
        read = [width, *[1] * (len(arrivals.tokens) - 1)]  # columns that no draft accounts for
        drafted = [seen - own for seen, own in zip(self._widths, read, strict=False)]
        passes = map(Pass, arrivals.tokens, arrivals.seconds, drafted)
        return generations_of(
            prompts, list(passes), max_new_tokens=max_new_tokens, eos_ids=self.target.eos_ids
        )

    def _config(self, sampling: Sampling, max_new_tokens: int) -> GenerationConfig:
        """The distribution and the limits; everything else as transformers ships it."""
        distribution: dict[str, Any] = {"do_sample": False}
        if not sampling.greedy:
            distribution = {
                "do_sample": True,
                "temperature": sampling.temperature,
                "top_p": sampling.top_p,
                "top_k": sampling.top_k,
            }
        return GenerationConfig(
            max_new_tokens=max_new_tokens,
            eos_token_id=sorted(self.target.eos_ids) or None,
            pad_token_id=0,
            **distribution,
            **self._drafting(),
        )

    def _drafting(self) -> dict[str, Any]:
        """Generation settings of how it drafts."""
        return {}

    def _arguments(self) -> dict[str, Any]:
        """Arguments of `generate` of how it drafts."""
        return {}


class HfPromptLookup(HfGenerate):
    """`generate(prompt_lookup_num_tokens=…)`: copies after n-grams found in the context."""

    max_batch_size = 1

    def __init__(self, target: Target, *, num_draft_tokens: int = 10, n_max: int = 2):
        """Most tokens copied, and the longest n-gram tried (`max_matching_ngram_size`).

        Raises:
            UserError: either is below 1.
        """
        if num_draft_tokens < 1 or n_max < 1:
            raise UserError(
                f"hf_prompt_lookup: num_draft_tokens={num_draft_tokens}, n_max={n_max}; each must "
                "be at least 1"
            )
        super().__init__(target)
        self.max_nodes, self.n_max = num_draft_tokens, n_max

    def _drafting(self) -> dict[str, Any]:
        return {"prompt_lookup_num_tokens": self.max_nodes, "max_matching_ngram_size": self.n_max}


class HfAssisted(HfGenerate):
    """`generate(assistant_model=…)`: a smaller model of the same vocabulary drafts."""

    max_batch_size = 1

    def __init__(
        self,
        target: Target,
        *,
        draft_model: str | Path | Target | None = None,
        num_draft_tokens: int = 20,
        stop_confidence: float = 0.4,
    ):
        """Load the draft model; the defaults are those that transformers 5 ships.

        Args:
            target: the model.
            draft_model: hub id or folder, or a model that is loaded.
            num_draft_tokens: longest draft (`num_assistant_tokens`).
            stop_confidence: a draft ends after a token that is less probable than this
                (`assistant_confidence_threshold`); transformers moves the threshold as it goes
                where scikit-learn is installed; 0 never stops.

        Raises:
            UserError: no model, one of another vocabulary, or a value outside its range.
        """
        if num_draft_tokens < 1 or not 0 <= stop_confidence < 1:
            raise UserError(
                f"hf_assisted: num_draft_tokens={num_draft_tokens} must be at least 1 and "
                f"stop_confidence={stop_confidence} in [0, 1)"
            )
        drafter = load_draft_model("hf_assisted", draft_model, target)
        check_same_vocabulary(target, drafter)
        if drafter.vocab_size != target.vocab_size:
            raise UserError(
                f"hf_assisted: transformers wants equal embeddings, but '{drafter.name}' has "
                f"{drafter.vocab_size} and '{target.name}' {target.vocab_size}"
            )
        super().__init__(target)
        self.max_nodes = num_draft_tokens
        self.context_length = min(self.context_length, drafter.context_length)
        self.assistant = unmodified(drafter)
        self.assistant.generation_config = GenerationConfig(
            num_assistant_tokens=num_draft_tokens,
            num_assistant_tokens_schedule="constant",
            assistant_confidence_threshold=stop_confidence,
        )

    def _arguments(self) -> dict[str, Any]:
        return {"assistant_model": self.assistant}
