"""The tiny random models are fit to test with: fixed, quirky, and not stuck on one token."""

import pytest
import torch

from eagle_lab.errors import UserError
from eagle_lab.targets.tiny import (
    ARCHITECTURES,
    SLIDING_WINDOW,
    VOCAB_SIZE,
    byte_tokenizer,
    tiny_random,
)

VARIANTS = [(name, tied) for name in ARCHITECTURES for tied in (False, True)]


@pytest.mark.parametrize(("architecture", "tied"), VARIANTS)
def test_greedy_text_does_not_repeat_one_token(architecture, tied):
    """At least ten different tokens among 48; a model stuck in a loop would prove nothing."""
    model, tokenizer = tiny_random(architecture, tied_head=tied)
    chat = [{"role": "user", "content": "Tell me about the sea."}]
    prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt")
    prompt = prompt["input_ids"]
    output = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        min_new_tokens=48,
        max_new_tokens=48,
        do_sample=False,
    )
    assert len(set(output[0, prompt.shape[1] :].tolist())) >= 10
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    assert (head.weight is embedding.weight) is tied


def test_weights_depend_on_the_seed_alone():
    torch.manual_seed(5)
    first = tiny_random("llama")[0].state_dict()
    expected_next = torch.rand(1)
    torch.manual_seed(5)
    assert torch.equal(torch.rand(1), expected_next), "the global random state was touched"
    second = tiny_random("llama")[0].state_dict()
    other = tiny_random("llama", seed=1)[0].state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["lm_head.weight"], other["lm_head.weight"])


def test_the_quirks_are_there():
    config = tiny_random("llama")[0].config
    assert config.head_dim * config.num_attention_heads != config.hidden_size
    assert tiny_random("mistral")[0].config.sliding_window == SLIDING_WINDOW
    gemma = tiny_random("gemma2")[0].config
    assert gemma.final_logit_softcapping
    assert gemma.attn_logit_softcapping
    assert set(gemma.layer_types) == {"sliding_attention", "full_attention"}
    assert set(tiny_random("gemma3_text")[0].config.layer_types) == set(gemma.layer_types)
    assert hasattr(tiny_random("qwen3")[0].model.layers[0].self_attn, "q_norm")
    assert tiny_random("qwen2")[0].model.layers[0].self_attn.q_proj.bias is not None
    assert len(tiny_random("llama", num_hidden_layers=3)[0].model.layers) == 3


def test_an_unknown_architecture_names_the_nearest():
    with pytest.raises(UserError, match="'gemma'.*'gemma2'"):
        tiny_random("gemma")


@pytest.mark.parametrize(
    "text", ["The sea is in another land.", "  two\n\nblanks\t", "Grüße, 你好 🌊", "<|im_end|", ""]
)
def test_any_text_survives_the_tokenizer(text):
    tokenizer = byte_tokenizer()
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert all(3 <= token < VOCAB_SIZE for token in ids)
    assert tokenizer.decode(ids) == text


def test_the_vocabulary_is_full_and_some_texts_have_several_spellings():
    tokenizer = byte_tokenizer()
    assert len(tokenizer) == VOCAB_SIZE
    whole = tokenizer(" the", add_special_tokens=False)["input_ids"]
    letters = [tokenizer(letter, add_special_tokens=False)["input_ids"][0] for letter in " the"]
    assert len(whole) == 1
    assert tokenizer.decode(letters) == tokenizer.decode(whole) == " the"
    chat = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    ids = tokenizer(tokenizer.apply_chat_template(chat, tokenize=False))["input_ids"]
    assert [ids.count(token) for token in (0, 1, 2)] == [0, 2, 2]
    assert tokenizer.eos_token_id == 2
