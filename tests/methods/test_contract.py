"""The contract of every method: greedy text is vanilla's, sampled text follows the target."""

import functools
import json
from collections import Counter

import pytest
import torch
from scipy import stats

from eagle_lab.catalog import options
from eagle_lab.drafters.eagle1.network import Eagle1
from eagle_lab.engine.loop import decode
from eagle_lab.engine.sampling import Sampling
from eagle_lab.errors import Infeasible, UserError
from eagle_lab.methods.draft_model import SelfSpeculation, Speculative
from eagle_lab.methods.eagle import EagleChain
from eagle_lab.methods.eagle_trees import EagleDynamic, EagleStatic
from eagle_lab.methods.hybrid import Hybrid
from eagle_lab.methods.lookahead import Lookahead
from eagle_lab.methods.prompt_lookup import PromptLookup
from eagle_lab.methods.suffix import Suffix
from eagle_lab.methods.universal import Universal
from eagle_lab.methods.vanilla import Vanilla
from eagle_lab.targets.target import Target
from eagle_lab.targets.tiny import ARCHITECTURES, tiny_random
from tests.methods.draft_models import fitted_drafter, foreign_copy, noisy_copy

PROMPTS = [
    [40, 41, 42],
    [60, 61, 62, 63, 60, 61, 62, 63, 60, 61, 62, 63, 60, 61, 62, 63, 60, 61],
    [7],
    list(range(100, 140)),
    [20, 21, 20, 21, 20],
]
MODELS = [*ARCHITECTURES]
NUM_ROWS = 1200


@functools.cache
def target_of(architecture: str, **changes) -> Target:
    return Target(*tiny_random(architecture, **changes))


@functools.cache
def drafter_of(target: Target, draft_vocab_size: int | None = 200) -> Eagle1:
    return fitted_drafter(target, PROMPTS, draft_vocab_size)


def dynamic(target, drafter, depth, width, num_nodes, **options):
    return EagleDynamic(target, drafter, depth=depth, width=width, num_nodes=num_nodes, **options)


def chain(target, **options):
    return EagleChain(target, drafter_of(target), num_draft_tokens=4, **options)


def hybrid(target, alone_from, **options):
    sizes = {"depth": 3, "width": 4, "num_nodes": 12, "n_min": 1}
    return Hybrid(target, drafter_of(target), **sizes, alone_from=alone_from, **options)


METHODS = {
    "self_speculation": lambda target: SelfSpeculation(target, num_draft_tokens=3),
    "prompt_lookup": lambda target: PromptLookup(),
    "suffix": lambda target: Suffix(),
    "lookahead": lambda target: Lookahead(window_size=4, ngram_size=4, num_guesses=3),
    "hybrid": lambda target: hybrid(target, alone_from=3),
    "hybrid_copies_alone": lambda target: hybrid(target, alone_from=1),
    "eagle_chain": chain,
    "eagle_static": lambda target: EagleStatic(target, drafter_of(target)),
    "eagle_dynamic": lambda target: dynamic(target, drafter_of(target), 4, 4, 20),
    "eagle_full_vocabulary": lambda target: dynamic(target, drafter_of(target, None), 3, 3, 9),
    "eagle_chain_stopped": lambda target: chain(target, stop_confidence=3e-4),
    "eagle_dynamic_stopped": lambda target: dynamic(
        target, drafter_of(target), 4, 4, 20, stop_confidence=3e-4
    ),
    "speculative": lambda target: Speculative(target, draft_model=noisy_copy(target)),
    "speculative_stopped": lambda target: Speculative(
        target, draft_model=noisy_copy(target), stop_confidence=0.02
    ),
    "universal": lambda target: Universal(target, draft_model=foreign_copy(target)),
    "universal_stopped": lambda target: Universal(
        target, draft_model=foreign_copy(target), stop_confidence=0.02
    ),
}


def test_every_method_of_the_configuration_is_held_to_the_contract():
    """Peers, which bring a loop of their own, are held to theirs in tests/bench/peers/."""
    peers = {name for name in options("method") if name.startswith(("hf_", "llama_cpp"))}
    assert set(options("method")) - {"vanilla"} - peers <= set(METHODS)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("architecture", MODELS)
def test_greedy_equals_vanilla_alone_and_in_ragged_batches(architecture, name):
    target = target_of(architecture)
    plain = [decode(target, Vanilla(), [prompt], max_new_tokens=24)[0] for prompt in PROMPTS]
    batched = decode(target, METHODS[name](target), PROMPTS, max_new_tokens=24)
    for expected, row, prompt in zip(plain, batched, PROMPTS, strict=True):
        alone = decode(target, METHODS[name](target), [prompt], max_new_tokens=24)[0]
        assert alone.tokens == expected.tokens
        assert row.tokens == expected.tokens
        assert row.accepted_lengths == alone.accepted_lengths  # padding changes no acceptance
    nothing_to_copy = architecture == "mistral" and name.startswith(("prompt_lookup", "suffix"))
    assert nothing_to_copy or sum(sum(row.accepted_lengths) for row in batched) > 0


@pytest.mark.parametrize("name", METHODS)
def test_any_end_of_sequence_id_cuts_inside_an_accepted_path(name):
    """Ids that vanilla emits midway are declared to end a row."""
    target = target_of("llama", seed=5)
    free = decode(target, Vanilla(), PROMPTS, max_new_tokens=30)
    original = target.eos_ids
    try:
        target.eos_ids = frozenset({free[0].tokens[9], free[1].tokens[6]})
        expected = decode(target, Vanilla(), PROMPTS, max_new_tokens=30)
        rows = decode(target, METHODS[name](target), PROMPTS, max_new_tokens=30)
    finally:
        target.eos_ids = original
    assert [row.tokens for row in rows] == [row.tokens for row in expected]
    for row in rows:
        assert not set(row.tokens[:-1]) & {free[0].tokens[9], free[1].tokens[6]}
        assert (row.finished_by == "eos") == (
            len(row.tokens) < 30 or row.tokens[-1] in {free[0].tokens[9], free[1].tokens[6]}
        )
        assert 1 + sum(row.emitted_lengths) == len(row.tokens)


@pytest.mark.parametrize("max_new_tokens", [1, 2, 3])
@pytest.mark.parametrize("name", METHODS)
def test_exactly_max_new_tokens(name, max_new_tokens):
    target = target_of("llama")
    rows = decode(target, METHODS[name](target), PROMPTS, max_new_tokens=max_new_tokens)
    assert [len(row.tokens) for row in rows] == [max_new_tokens] * len(PROMPTS)
    for row in rows:
        assert sum(row.emitted_lengths) == max_new_tokens - 1
        assert all(
            accepted <= emitted
            for accepted, emitted in zip(row.accepted_lengths, row.emitted_lengths, strict=True)
        )


def test_the_target_as_its_own_drafter_accepts_everything():
    """Greedy exactly; at T > 0 each draft fails with probability below 1e-5, rounding's share."""
    target = target_of("llama")
    for sampling in (Sampling(), Sampling(1.0), Sampling(0.8, top_p=0.9)):
        rows = decode(
            target, SelfSpeculation(target), PROMPTS, max_new_tokens=41, sampling=sampling
        )
        for row in rows:
            whole_cycles = row.accepted_lengths[:-1]
            assert whole_cycles == [4] * len(whole_cycles)


@pytest.mark.parametrize("name", METHODS)
def test_one_seed_gives_the_same_tokens_whatever_the_neighbours(name):
    target = target_of("llama")
    sampling = Sampling(1.0, top_k=50)
    keys = [11, 12, 13, 14, 15]
    options = {"sampling": sampling, "max_new_tokens": 20}
    first = decode(target, METHODS[name](target), PROMPTS, row_keys=keys, **options)
    again = decode(target, METHODS[name](target), PROMPTS, row_keys=keys, **options)
    alone = decode(target, METHODS[name](target), [PROMPTS[3]], row_keys=[14], **options)
    other = decode(
        target, METHODS[name](target), PROMPTS, row_keys=[k + 9 for k in keys], **options
    )
    assert [row.tokens for row in first] == [row.tokens for row in again]
    assert alone[0].tokens == first[3].tokens
    assert [row.tokens for row in first] != [row.tokens for row in other]


@pytest.mark.parametrize(
    "name", ["prompt_lookup", "suffix", "lookahead", "hybrid", "eagle_dynamic"]
)
def test_chosen_children_draw_vanillas_very_text(name):
    """At equal uniforms a method that chooses its children samples the same tokens as vanilla."""
    target = target_of("llama")
    sampling = Sampling(1.0, top_p=0.95)
    expected = decode(target, Vanilla(), PROMPTS, max_new_tokens=30, sampling=sampling)
    rows = decode(target, METHODS[name](target), PROMPTS, max_new_tokens=30, sampling=sampling)
    assert [row.tokens for row in rows] == [row.tokens for row in expected]


@pytest.mark.parametrize("name", METHODS)
def test_sampled_text_follows_the_target(name):
    """Distribution of the second and third token over 1200 rows; false alarm 1e-6 per method.

    The expected distribution is computed from the target's forward alone.
    """
    target = target_of("llama")
    sampling = Sampling(0.7, top_k=4)
    prompt = PROMPTS[4]
    rows = decode(
        target,
        METHODS[name](target),
        [prompt] * NUM_ROWS,
        sampling=sampling,
        max_new_tokens=3,
        row_keys=[7919 * row for row in range(NUM_ROWS)],
    )
    distribution = {(): 1.0}
    for _ in range(3):
        longer = {}
        for tokens, mass in distribution.items():
            cache = target.new_cache(1)
            probs = sampling.probs(target.prefill([prompt + list(tokens)], cache).logits[0, 0])
            for token in probs.nonzero().flatten().tolist():
                if tokens and tokens[-1] in target.eos_ids:
                    continue
                longer[(*tokens, token)] = mass * float(probs[token])
        distribution = longer
    counts = Counter(tuple(row.tokens) for row in rows)
    assert set(counts) <= set(distribution)
    likely = [tokens for tokens in distribution if distribution[tokens] * NUM_ROWS >= 5]
    observed = [counts[tokens] for tokens in likely]
    expected = [distribution[tokens] * NUM_ROWS for tokens in likely]
    rest = NUM_ROWS - sum(observed), NUM_ROWS - sum(expected)
    if rest[1] > 5:
        observed.append(rest[0])
        expected.append(rest[1])
    expected = [value * sum(observed) / sum(expected) for value in expected]
    assert stats.chisquare(observed, expected).pvalue > 1e-6


def test_no_match_is_a_root_only_pass_counted_as_a_cycle():
    target = target_of("llama")
    row = decode(target, PromptLookup(n_min=3), [[200, 201, 202]], max_new_tokens=3)[0]
    assert row.num_drafted == 0
    assert row.accepted_lengths == [0, 0]


def test_tokens_stream_in_the_order_of_the_output():
    target = target_of("llama")
    seen: dict[int, list[int]] = {row: [] for row in range(len(PROMPTS))}
    rows = decode(
        target,
        METHODS["self_speculation"](target),
        PROMPTS,
        max_new_tokens=12,
        on_tokens=lambda row, tokens: seen[row].extend(tokens),
    )
    assert [seen[row] for row in range(len(PROMPTS))] == [row.tokens for row in rows]


def test_features_of_every_position_are_the_targets():
    target = target_of("llama")
    rows = decode(
        target, METHODS["eagle_dynamic"](target), PROMPTS, max_new_tokens=10, keep_features=True
    )
    for row in rows:
        tokens = row.prompt_tokens + row.tokens
        cache = target.new_cache(1)
        expected = target.prefill([tokens[:-1]], cache).features["top"][0]
        torch.testing.assert_close(row.features["top"], expected, atol=1e-4, rtol=1e-4)


def test_positions_beyond_2048_work():
    target = target_of("llama", max_position_embeddings=4096)
    prompt = [(7 * i) % 290 + 5 for i in range(2100)]
    plain = decode(target, Vanilla(), [prompt], max_new_tokens=8)[0]
    drafted = decode(target, METHODS["eagle_dynamic"](target), [prompt], max_new_tokens=8)[0]
    assert drafted.tokens == plain.tokens


@functools.cache
def half_precision_target() -> Target:
    model, tokenizer = tiny_random("llama")
    return Target(model.to(torch.bfloat16), tokenizer)


@pytest.mark.parametrize("name", METHODS)
def test_half_precision_emits_the_argmax_up_to_rounding(name):
    """Teacher-forced in bfloat16, every token's logit is the best one or within 4 of its ulps."""
    target = half_precision_target()
    rows = decode(target, METHODS[name](target), PROMPTS, max_new_tokens=16)
    for row in rows:
        tokens = row.prompt_tokens + row.tokens
        features = target.prefill([tokens[:-1]], target.new_cache(1)).features["top"][0]
        logits = target.head(features[len(row.prompt_tokens) - 1 :]).float()
        chosen = logits.gather(1, torch.tensor(row.tokens)[:, None])[:, 0]
        best = logits.max(-1).values
        assert bool((best - chosen <= 4 * 2.0**-8 * best.abs()).all())


def test_what_does_not_fit_is_named():
    target = target_of("llama")
    with pytest.raises(UserError, match="prompt 1"):
        decode(target, Vanilla(), [[3], []])
    with pytest.raises(UserError, match="2000"):
        decode(target, METHODS["eagle_dynamic"](target), [[3] * 2000], max_new_tokens=40)
    with pytest.raises(UserError, match="max_new_tokens=0"):
        decode(target, Vanilla(), [[3]], max_new_tokens=0)
    with pytest.raises(Infeasible, match="4 children.* 3"):
        EagleStatic(target, drafter_of(target, 3))
    with pytest.raises(Infeasible, match="5 children"):
        dynamic(target, drafter_of(target, 3), 2, 5, 6)
    with pytest.raises(Infeasible, match="num_nodes=30"):
        EagleDynamic(target, drafter_of(target), depth=2, width=4, num_nodes=30)


def test_no_prompts_no_rows():
    assert json.dumps(decode(target_of("llama"), Vanilla(), [])) == "[]"
