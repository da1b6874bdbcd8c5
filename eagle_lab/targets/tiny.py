"""Random models of a few thousand weights for tests: every architecture's quirks, no download.

The architectures differ where engines go wrong: grouped heads whose widths do not add up to the
hidden width, query and key norms, sliding windows shorter than a test sequence, layers of two
kinds, soft-capped logits, scaled embeddings, tied and untied heads. Weights are a function of the
seed alone. Nothing is learned; texts are noise, but greedy text does not repeat itself at once.

    model, tokenizer = tiny_random("gemma2")
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch

from eagle_lab.errors import choose

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast


VOCAB_SIZE = 300
END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SLIDING_WINDOW = 12  # shorter than any test's prompt

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

_SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,  # 4 heads x 16 = 64, not the hidden width
    "max_position_embeddings": 2048,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_ALTERNATING = ["sliding_attention", "full_attention"] * 4
# Architecture -> what sets it apart from the shape above.
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {"head_dim": 12},  # the class knows no head_dim: heads fill the hidden width
    "qwen3": {},
    "mistral": {"sliding_window": SLIDING_WINDOW},
    "gemma2": {
        "sliding_window": SLIDING_WINDOW,
        "layer_types": _ALTERNATING,
        "query_pre_attn_scalar": 24,
        "attn_logit_softcapping": 20.0,
        "final_logit_softcapping": 15.0,
    },
    "gemma3_text": {
        "sliding_window": SLIDING_WINDOW,
        "layer_types": (["sliding_attention"] * 3 + ["full_attention"]) * 2,
        "query_pre_attn_scalar": 24,
    },
}


def tiny_random(
    architecture: str = "llama", *, tied_head: bool = False, seed: int = 0, **changes: Any
) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """A random float32 model in evaluation mode and the byte-level chat tokenizer for it.

    Args:
        architecture: a key of `ARCHITECTURES`.
        tied_head: whether the LM head shares the embedding's weights.
        seed: of the weights; the global random state is left as it was.
        changes: entries of the Hugging Face configuration to set (`num_hidden_layers=3`).
    """
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

    choose(architecture, ARCHITECTURES, "tiny architecture")
    # deep copy: configuration classes keep and change the lists they are given
    settings = copy.deepcopy({**_SHAPE, **ARCHITECTURES[architecture], **changes})
    config = AutoConfig.for_model(architecture, **settings, tie_word_embeddings=tied_head)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        _draw_weights(model)
    model.generation_config = GenerationConfig(bos_token_id=1, eos_token_id=2, pad_token_id=0)
    return model.eval(), byte_tokenizer()


@torch.no_grad()
def _draw_weights(model: PreTrainedModel) -> None:
    """Draw every weight at a scale at which the layers, not the last token, decide the logits.

    Matrices N(0, 1.5^2 / columns), so that each layer answers with about the size of its input;
    small embeddings, or the last token would shine through the residual stream to a tied head;
    norms and biases a little off their neutral values, so that no test passes by leaving one out.
    Gemma multiplies its embeddings by the root of the hidden width: there they are drawn smaller
    by that factor, and with a tied head the final norm gives it back.
    """
    scale = model.config.hidden_size**0.5 if "gemma" in model.config.model_type else 1.0
    for name, parameter in model.named_parameters():
        if "embed_tokens" in name:
            parameter.normal_(0.0, 0.3 / scale)
        elif parameter.dim() == 2:
            parameter.normal_(0.0, 1.5 / parameter.shape[1] ** 0.5)
        else:
            parameter.add_(torch.randn_like(parameter) * 0.1)
        if name == "model.norm.weight" and model.config.tie_word_embeddings:
            parameter.add_(scale - 1.0)


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer of 300 entries: 3 control tokens, 256 bytes and 41 merges of English letters.

    Any text survives encoding and decoding. The merges make texts that can be split in several
    ways, as every real vocabulary does.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    controls = [END_OF_TEXT, TURN_START, TURN_END]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = _merges()
    entries = controls + alphabet + [left + right for left, right in merges]
    vocabulary = {entry: index for index, entry in enumerate(entries)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in controls])
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=TURN_START,
        eos_token=TURN_END,
        pad_token=END_OF_TEXT,
        model_max_length=2048,
    )
    wrapped.chat_template = CHAT_TEMPLATE
    return wrapped


def _merges() -> list[tuple[str, str]]:
    """41 merges; `Ġ` is the byte-level spelling of a space. Later ones build on earlier ones."""
    pairs = "Ġt Ġa Ġs Ġo Ġw Ġi Ġb Ġc Ġf Ġp Ġd Ġm th he in er an re on at en or es is it te ou ar ed"
    merges = [(pair[0], pair[1]) for pair in pairs.split()]
    longer = "Ġt|he Ġa|n Ġo|f in|g Ġw|h Ġt|o Ġi|n Ġan|d s|t n|d l|l Ġb|e"
    return merges + [(left, right) for left, right in (text.split("|") for text in longer.split())]
