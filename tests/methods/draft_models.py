"""What agrees with a tiny target now and then: an EAGLE drafter fitted to its answers, and draft
models of its vocabulary and of another.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from eagle_lab.data.batches import Document, pack
from eagle_lab.drafters.eagle1.network import Eagle1
from eagle_lab.drafters.eagle1.recipe import least_squares_start
from eagle_lab.engine.loop import decode
from eagle_lab.methods.vanilla import Vanilla
from eagle_lab.targets.target import Target
from eagle_lab.targets.tiny import END_OF_TEXT, TURN_END, TURN_START, tiny_random
from tests.drafters.fakes import eagle1

OTHER_MERGES = "Ġ t|i n|Ġ s|o n|Ġt h|Ġth e|e a|s ea|Ġ c|a t|in g|o u|Ġ w|Ġw e".split("|")


@torch.no_grad()
def fitted_drafter(
    target: Target, prompts: Sequence[Sequence[int]], draft_vocab_size: int | None
) -> Eagle1:
    """A drafter whose fc predicts the features of the target's answers to `prompts`, linearly.

    Its layer is random but small: enough that attention to another text changes the draft.
    """
    with torch.random.fork_rng():
        torch.manual_seed(0)
        kept = torch.randperm(target.vocab_size)[:draft_vocab_size].sort().values
        drafter = eagle1(target, kept if draft_vocab_size else None, inner_norm=True)
        least_squares_start(drafter, [pack(_answered(target, prompts))])
        for output in (drafter.layers[0].self_attn.o_proj, drafter.layers[0].mlp.down_proj):
            torch.nn.init.normal_(output.weight, std=0.02)
    return drafter.to(target.dtype).eval().requires_grad_(False)


def _answered(target: Target, prompts: Sequence[Sequence[int]]) -> list[Document]:
    """The target's answers as training documents."""
    documents = []
    for row in decode(target, Vanilla(), prompts, max_new_tokens=24, keep_features=True):
        tokens = torch.tensor(row.prompt_tokens + row.tokens)
        supervised = torch.arange(len(tokens)) >= len(row.prompt_tokens)
        assert row.features is not None
        top = row.features["top"].float()
        features = {"top": torch.cat([top, top.new_zeros(1, target.hidden_size)])}
        documents.append(Document(tokens, supervised, features))
    return documents


@functools.cache
def noisy_copy(target: Target, noise: float = 0.03) -> Target:
    """The target's own weights, each a little off."""
    model, tokenizer = tiny_random(target.config.model_type)
    model.load_state_dict(target.model.state_dict())
    model.to(target.dtype)
    _disturb(model, noise)
    return Target(model, tokenizer, name="noisy copy")


@functools.cache
def foreign_copy(target: Target, noise: float = 0.03) -> Target:
    """The target's layers after another vocabulary: entries of both have the target's rows."""
    tokenizer = other_tokenizer()
    ours, theirs = target.tokenizer.get_vocab(), tokenizer.get_vocab()
    model, _ = tiny_random(target.config.model_type, vocab_size=len(theirs))
    state = target.model.state_dict()
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        rows = model.state_dict()[name].clone()
        for entry, number in theirs.items():
            if entry in ours:
                rows[number] = state[name][ours[entry]]
        state = state | {name: rows}
    model.load_state_dict(state)
    model.to(target.dtype)
    model.generation_config.eos_token_id = theirs[TURN_END]
    _disturb(model, noise)
    return Target(model, tokenizer, name="foreign copy")


@torch.no_grad()
def _disturb(model: torch.nn.Module, noise: float) -> None:
    generator = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        shift = torch.randn(parameter.shape, generator=generator)
        parameter.add_(shift.to(parameter.dtype) * parameter.std() * noise)


def other_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level like the tiny targets', with bytes in another order and merges of its own."""
    controls = [TURN_START, TURN_END, END_OF_TEXT]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet(), reverse=True)
    merges = [(left, right) for left, right in (pair.split() for pair in OTHER_MERGES)]
    entries = alphabet + [left + right for left, right in merges] + controls
    vocabulary = {entry: number for number, entry in enumerate(entries)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in controls])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=TURN_END, pad_token=END_OF_TEXT
    )
