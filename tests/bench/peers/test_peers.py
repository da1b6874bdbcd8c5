"""Peers decode the target's own text on the target's own weights, and are counted as we count."""

import functools
from collections import Counter

import pytest
import torch
import transformers
from packaging import version
from scipy import stats
from transformers import GenerationConfig

from eagle_lab.bench.peers.counting import Pass, generations_of
from eagle_lab.bench.peers.hf import HfAssisted, HfGenerate, HfPromptLookup, unmodified
from eagle_lab.bench.statistics import check_counts
from eagle_lab.catalog import options
from eagle_lab.config import compose
from eagle_lab.engine.loop import decode
from eagle_lab.engine.sampling import Sampling
from eagle_lab.errors import Missing, UserError
from eagle_lab.methods.build import Decoder
from eagle_lab.methods.vanilla import Vanilla
from eagle_lab.targets.target import Target
from eagle_lab.targets.tiny import ARCHITECTURES, tiny_random

PROMPTS = [
    [40, 41, 42],
    [60, 61, 62, 63] * 4 + [60, 61],
    [7],
    list(range(100, 140)),
    [20, 21, 20, 21, 20],
]
NUM_ROWS = 1200
# Known to drop rejected drafts from sliding windows rightly; 5.17 is known not to
SLIDES_RIGHT = version.parse("5.24")


@functools.cache
def target_of(architecture: str = "llama", **changes) -> Target:
    return Target(*tiny_random(architecture, **changes))


def assisted(target: Target, **options) -> HfAssisted:
    """The target drafts for itself: everything is accepted."""
    return HfAssisted(target, draft_model=target, **{"stop_confidence": 0.0} | options)


PEERS = {
    "hf_generate": HfGenerate,
    "hf_prompt_lookup": HfPromptLookup,
    "hf_assisted": lambda target: assisted(target, num_draft_tokens=3),
}
ONE_BY_ONE = ("hf_prompt_lookup", "hf_assisted")


def plain(target, **options):
    return [decode(target, Vanilla(), [prompt], **options)[0] for prompt in PROMPTS]


def alone(peer, **options):
    return [peer.generate([prompt], **options)[0] for prompt in PROMPTS]


def test_every_peer_of_the_configuration_is_held_to_the_contract():
    targets = {
        name: compose([f"method=[{name}]"]).method[name]._target_ for name in options("method")
    }
    peers = {path for path in targets.values() if path.startswith("eagle_lab.bench.peers.")}
    assert peers - {targets["llama_cpp"]} == {targets[name] for name in PEERS}


@pytest.mark.parametrize("name", PEERS)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_greedy_equals_vanilla(architecture, name):
    target = target_of(architecture)
    slides = "sliding_window" in ARCHITECTURES[architecture]
    if name in ONE_BY_ONE and slides and version.parse(transformers.__version__) < SLIDES_RIGHT:
        pytest.skip("this transformers rolls sliding windows back wrongly")
    rows = alone(PEERS[name](target), max_new_tokens=24)
    for row, expected in zip(rows, plain(target, max_new_tokens=24), strict=True):
        assert row.tokens == expected.tokens
        assert row.finished_by == expected.finished_by


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_plain_generate_takes_ragged_batches(architecture):
    target = target_of(architecture)
    rows = HfGenerate(target).generate(PROMPTS, max_new_tokens=24)
    assert [row.tokens for row in rows] == [row.tokens for row in plain(target, max_new_tokens=24)]
    assert {tuple(row.emitted_lengths) for row in rows} == {(1,) * 23}


@pytest.mark.parametrize("name", PEERS)
def test_any_end_of_sequence_id_ends_a_row(name):
    """Ids that vanilla emits midway are declared to end a row; batch rows end at other times."""
    target = target_of(seed=5)
    free = plain(target, max_new_tokens=30)
    original = target.eos_ids
    try:
        target.eos_ids = frozenset({free[0].tokens[9], free[1].tokens[6]})
        expected = plain(target, max_new_tokens=30)
        peer = PEERS[name](target)
        rows = alone(peer, max_new_tokens=30)
        if name not in ONE_BY_ONE:
            rows += peer.generate(PROMPTS, max_new_tokens=30)
            expected *= 2
    finally:
        target.eos_ids = original
    assert [row.tokens for row in rows] == [row.tokens for row in expected]
    assert "eos" in {row.finished_by for row in rows}
    for row in rows:
        assert 1 + sum(row.emitted_lengths) == len(row.tokens)


@pytest.mark.parametrize("max_new_tokens", [1, 2, 3])
@pytest.mark.parametrize("name", PEERS)
def test_exactly_max_new_tokens(name, max_new_tokens):
    for row in alone(PEERS[name](target_of()), max_new_tokens=max_new_tokens):
        assert len(row.tokens) == max_new_tokens
        assert sum(row.emitted_lengths) == max_new_tokens - 1
        check_counts(vars(row) | {"method": name, "question_id": 0, "turn": 1})


def test_a_perfect_assistant_drafts_what_it_was_asked_to():
    """20 tokens: the prefill verifies 3 drafts, and so does each pass after it."""
    row = assisted(target_of(), num_draft_tokens=3).generate([PROMPTS[0]], max_new_tokens=20)[0]
    # 4 tokens in the prefill, the first of them no cycle's; then 4 a pass
    assert row.emitted_lengths == [3, 4, 4, 4, 4]
    assert row.accepted_lengths == [2, 3, 3, 3, 3]
    assert row.num_drafted == 2 + 4 * 3
    assert row.cycle_s[0] == 0.0
    assert min(row.cycle_s[1:]) > 0
    assert row.decode_s == pytest.approx(sum(row.cycle_s))


def test_a_doubtful_assistant_drafts_less():
    """As shipped, drafts end after the first token that is less probable than 0.4."""
    shipped, fixed = (
        HfAssisted(target_of(), draft_model=target_of(), **options).generate(
            [PROMPTS[0]], max_new_tokens=24
        )[0]
        for options in ({}, {"num_draft_tokens": 20, "stop_confidence": 0})
    )
    assert shipped.tokens == fixed.tokens
    assert shipped.num_drafted / len(shipped.cycle_s) < fixed.num_drafted / len(fixed.cycle_s)


def test_the_settings_are_those_that_transformers_ships():
    shipped = GenerationConfig()._get_default_generation_params()
    config = compose(["method=[hf_assisted]"]).method.hf_assisted
    assert config.num_draft_tokens == shipped["num_assistant_tokens"]
    assert config.stop_confidence == shipped["assistant_confidence_threshold"]


def test_the_weights_are_shared_and_the_target_stays_as_it_is():
    target = target_of()
    before = target.prefill([PROMPTS[0]], target.new_cache(1)).logits
    peer = unmodified(target)
    ours = dict(target.model.named_parameters())
    for name, parameter in peer.named_parameters():
        assert parameter.data_ptr() == ours[name].data_ptr()
        assert parameter.device == target.device
    assert peer.config._attn_implementation != target.model.config._attn_implementation
    assert not any("forward" in vars(module) for module in peer.modules())
    torch.testing.assert_close(target.prefill([PROMPTS[0]], target.new_cache(1)).logits, before)


def test_penalties_that_came_with_the_weights_are_left_out():
    model, tokenizer = tiny_random("llama")
    model.generation_config.repetition_penalty = 5.0
    target = Target(model, tokenizer)
    row = HfGenerate(target).generate([PROMPTS[4]], max_new_tokens=24)[0]
    assert row.tokens == decode(target, Vanilla(), [PROMPTS[4]], max_new_tokens=24)[0].tokens


def test_sampled_text_follows_the_target():
    """The first two tokens of 1200 rows; false alarm 1e-6. The global state is kept."""
    target, sampling, prompt = target_of(), Sampling(0.7, top_k=4), PROMPTS[4]
    state = torch.get_rng_state()
    peer = HfGenerate(target)
    asked = {"sampling": sampling, "max_new_tokens": 2}
    rows = peer.generate([prompt] * NUM_ROWS, row_keys=list(range(NUM_ROWS)), **asked)
    assert torch.equal(torch.get_rng_state(), state)
    distribution = {}
    probs = first = sampling.probs(target.prefill([prompt], target.new_cache(1)).logits[0, 0])
    for one in first.nonzero().flatten().tolist():
        probs = sampling.probs(target.prefill([[*prompt, one]], target.new_cache(1)).logits[0, 0])
        distribution |= {
            (one, two): float(first[one] * probs[two]) for two in probs.nonzero().flatten().tolist()
        }
    counts = Counter(tuple(row.tokens) for row in rows)
    assert set(counts) <= set(distribution)
    likely = [pair for pair in distribution if distribution[pair] * NUM_ROWS >= 5]
    observed = [counts[pair] for pair in likely]
    expected = [distribution[pair] for pair in likely]
    expected = [mass * sum(observed) / sum(expected) for mass in expected]
    assert stats.chisquare(observed, expected).pvalue > 1e-6
    again = peer.generate([prompt] * 9, row_keys=list(range(9)), **asked)
    other = peer.generate([prompt] * 9, row_keys=list(range(1, 10)), **asked)
    assert [row.tokens for row in again] != [row.tokens for row in other]
    repeat = peer.generate([prompt] * 9, row_keys=list(range(9)), **asked)
    assert [row.tokens for row in again] == [row.tokens for row in repeat]


def test_passes_are_counted_as_cycles():
    """Row 0 ends in the second cycle, in the middle of what it was given; row 1 at the limit."""
    passes = [
        Pass([[5], [6]], 0.5),
        Pass([[1, 2], [3, 4]], 0.25, 1),
        Pass([[9, 8], [7, 7]], 0.25, 1),
    ]
    first, second = generations_of([[1], [2]], passes, max_new_tokens=4, eos_ids=frozenset({9}))
    assert (first.tokens, first.finished_by) == ([5, 1, 2, 9], "eos")
    assert (first.emitted_lengths, first.accepted_lengths) == ([2, 1], [1, 1])
    assert (second.tokens, second.finished_by) == ([6, 3, 4, 7], "length")
    assert (second.prefill_s, second.decode_s, second.num_drafted) == (0.5, 0.5, 2)
    assert second.draft_s != second.draft_s  # not known


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda t: HfPromptLookup(t, n_max=0), "hf_prompt_lookup.*n_max=0"),
        (lambda t: assisted(t, num_draft_tokens=0), "hf_assisted: num_draft_tokens=0"),
        (lambda t: assisted(t, stop_confidence=1.5), "stop_confidence=1.5"),
        (
            lambda t: HfAssisted(t, draft_model=target_of(vocab_size=320)),
            "equal embeddings.* 320 .* 300",
        ),
    ],
)
def test_impossible_settings_are_named(build, words):
    with pytest.raises(UserError, match=words):
        build(target_of())


def test_without_its_draft_model_assisted_generation_is_missing_one():
    with pytest.raises(Missing, match="draft_model"):
        HfAssisted(target_of())


def test_prompts_that_do_not_fit_are_named():
    with pytest.raises(UserError, match="2000"):
        HfGenerate(target_of()).generate([[3] * 2000], max_new_tokens=100)


@pytest.mark.parametrize("name", PEERS)
def test_peers_are_decoders(name):
    peer = PEERS[name](target_of())
    assert isinstance(peer, Decoder)
    assert peer.max_batch_size == (1 if name in ONE_BY_ONE else None)
