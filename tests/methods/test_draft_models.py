"""Draft models draft by their own distribution, whatever was accepted before, in any batch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from eagle_lab.config import compose
from eagle_lab.engine.draft_tree import DraftTree
from eagle_lab.engine.loop import decode
from eagle_lab.engine.proposer import Context
from eagle_lab.engine.sampling import Sampling
from eagle_lab.errors import UserError
from eagle_lab.methods import draft_model
from eagle_lab.methods.build import MethodBuilder, label_methods
from eagle_lab.methods.draft_model import DraftModelProposer, Speculative
from eagle_lab.methods.universal import Universal
from eagle_lab.methods.vanilla import Vanilla
from eagle_lab.runs.job import entries_from
from eagle_lab.targets.load import load_target
from eagle_lab.targets.pruned import save_model
from eagle_lab.targets.target import Target
from eagle_lab.targets.tiny import tiny_random
from tests.methods.draft_models import foreign_copy, noisy_copy, other_tokenizer

PROMPTS = [[40, 41, 42], [60, 61, 62, 63] * 5, [7], list(range(100, 140)), [20, 21, 20]]
Seen = list[tuple[list[list[int]], DraftTree]]


@pytest.fixture(scope="module")
def target() -> Target:
    return Target(*tiny_random("llama"))


def decode_seen(
    target: Target, proposer: DraftModelProposer, sampling: Sampling
) -> tuple[Seen, int]:
    """The rows and the tree of every cycle, and how many drafts were accepted."""
    seen: Seen = []
    propose = proposer.propose

    def recorded(context: Context) -> DraftTree:
        tree = propose(context)
        seen.append(([list(row) for row in context.tokens], tree))
        return tree

    proposer.propose = recorded  # type: ignore[method-assign]
    rows = decode(target, proposer, PROMPTS, max_new_tokens=24, sampling=sampling)
    return seen, sum(sum(row.accepted_lengths) for row in rows)


def test_drafts_are_what_the_draft_model_says_after_the_row(target: Target) -> None:
    """Ragged rows, partly accepted drafts and rows that end: never a stale slot of the cache."""
    model = noisy_copy(target)
    seen, accepted = decode_seen(target, Speculative(target, draft_model=model), Sampling())
    assert accepted > 20
    for rows, tree in seen:
        for row, drafted in zip(rows, tree.tokens[:, 1:].tolist(), strict=True):
            alone = decode(model, Vanilla(), [row], max_new_tokens=len(drafted))[0].tokens
            assert drafted[: len(alone)] == alone


@pytest.mark.parametrize("kind", [Speculative, Universal])
def test_tokens_are_drawn_from_the_draft_models_distribution_over_shared_tokens(
    target: Target, kind: type[Speculative] | type[Universal]
) -> None:
    """The distribution of every tree's root, against a fresh forward of the draft model."""
    model = noisy_copy(target) if kind is Speculative else foreign_copy(target)
    sampling = Sampling(0.9, top_k=20, top_p=0.9)
    proposer = kind(target, draft_model=model)
    seen, accepted = decode_seen(target, proposer, sampling)
    assert accepted > 10
    ours, theirs = target.tokenizer.get_vocab(), model.tokenizer.get_vocab()
    shared = [(ours[entry], theirs[entry]) for entry in ours if entry in theirs]
    for rows, tree in seen[::4]:
        assert tree.draft_probs is not None
        for number, row in enumerate(rows):
            read = row
            if kind is Universal:
                text = target.tokenizer.decode(row).rstrip("\ufffd")
                read = model.tokenizer(text)["input_ids"]
            logits = model.prefill([read], model.new_cache(1)).logits[0, 0]
            kept = torch.full_like(logits, -torch.inf)
            there = torch.tensor([number for _, number in shared])
            kept[there] = logits[there]
            distribution = sampling.probs(kept)
            expected = torch.zeros(target.vocab_size)
            for own, other in shared:
                expected[own] = distribution[other]
            torch.testing.assert_close(tree.draft_probs[number, 0], expected, atol=1e-4, rtol=0)
            assert float(expected[tree.tokens[number, 1]]) > 0


@pytest.mark.parametrize("size", [260, 340])
def test_embeddings_padded_to_another_size_change_nothing(target: Target, size: int) -> None:
    """A draft model may know fewer ids than the target, or more that are never drafted."""
    model, tokenizer = tiny_random("llama", vocab_size=size)
    draft = Target(model, tokenizer)
    prompts = [[270, 299, 4], [5]]
    rows = decode(target, Speculative(target, draft_model=draft), prompts, max_new_tokens=20)
    plain = decode(target, Vanilla(), prompts, max_new_tokens=20)
    assert [row.tokens for row in rows] == [row.tokens for row in plain]
    assert all(row.num_drafted for row in rows)


def test_a_draft_ends_where_the_draft_model_is_in_doubt(target: Target) -> None:
    """The chain's probability, the best next token included, stays above the threshold."""
    model, threshold = noisy_copy(target), 4e-2
    proposer = Speculative(target, draft_model=model, stop_confidence=threshold)
    seen, _ = decode_seen(target, proposer, Sampling())
    lengths = set()
    for rows, tree in seen:
        for row, drafted, count in zip(
            rows, tree.tokens[:, 1:].tolist(), tree.num_nodes().tolist(), strict=True
        ):
            lengths.add(count)
            probability = 1.0
            for place in range(min(count + 1, 5)):
                read = row + drafted[:place]
                logits = model.prefill([read], model.new_cache(1)).logits[0, 0]
                probability *= float(logits.softmax(-1).max())
                assert (probability >= threshold) == (place < count)
    assert {0, 1, 2} <= lengths


def bigrams(tokenizer, rows: torch.Tensor, columns: torch.Tensor) -> Target:
    """A model whose next token depends on the last one alone: embedding times head."""
    model, _ = tiny_random("llama", vocab_size=len(rows), num_hidden_layers=1)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "o_proj" in name or "down_proj" in name:
                weight.zero_()
        model.model.embed_tokens.weight.copy_(rows)
        model.lm_head.weight.copy_(columns)
    return Target(model, tokenizer)


def test_text_of_equal_models_is_accepted_across_vocabularies() -> None:
    """Both write lower-case letters by the same rule, under other ids; merges cost a few drafts."""
    ours, theirs = tiny_random("llama")[1], other_tokenizer()
    generator = torch.Generator().manual_seed(0)
    letters = "abcdefghijklmnopqrstuvwxyz"
    embedding, head = (torch.randn(26, 48, generator=generator) for _ in range(2))

    def model(tokenizer) -> Target:
        size = len(tokenizer.get_vocab())
        rows, columns = torch.zeros(size, 48), torch.zeros(size, 48)
        for letter, entry, output in zip(letters, embedding, head, strict=True):
            rows[tokenizer.get_vocab()[letter]] = entry
            columns[tokenizer.get_vocab()[letter]] = output
        return bigrams(tokenizer, rows, columns)

    target = model(ours)
    prompts = [ours(text)["input_ids"] for text in ("k", "xyz", "a b c q")]
    plain = decode(target, Vanilla(), prompts, max_new_tokens=30)
    rows = decode(target, Universal(target, draft_model=model(theirs)), prompts, max_new_tokens=30)
    assert [row.tokens for row in rows] == [row.tokens for row in plain]
    assert sum(sum(row.accepted_lengths) for row in rows) > 45  # of 87


@pytest.mark.parametrize("method", ["speculative", "universal"])
def test_a_bench_without_a_draft_model_names_the_key(target: Target, method: str) -> None:
    entries = entries_from(compose([f"method=[{method}]"]))
    with pytest.raises(UserError, match=r"draft_model\.path"):
        MethodBuilder(target).build_all(entries)


def test_a_draft_model_that_several_methods_use_is_loaded_once(
    target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save_model(noisy_copy(target).model, target.tokenizer, tmp_path / "draft")
    loaded = []
    monkeypatch.setattr(
        draft_model,
        "load_target",
        lambda *args, **options: (loaded.append(args), load_target(*args, **options))[1],
    )
    names = ("speculative", "universal", "hf_assisted")
    chosen = [f"method.{name}.draft_model={folder}" for name in names]
    entries = entries_from(compose([f"method=[{','.join(names)}]", *chosen]))
    entries["speculative"]["num_draft_tokens"] = [1, 3]
    methods = MethodBuilder(target).build_all(entries)
    assert loaded == [(str(folder),)]
    assert list(label_methods(methods).values()) == [
        "vanilla", "speculative num_draft_tokens=1", "speculative num_draft_tokens=3",
        "universal", "hf_assisted",
    ]  # fmt: skip
    assert {method.drafter for method in methods[1:]} == {str(folder)}
    assert methods[1].context_length == methods[4].context_length == target.context_length


def test_a_draft_models_own_context_is_its_limit(target: Target) -> None:
    model, tokenizer = tiny_random("llama", max_position_embeddings=40)
    short = Target(model, tokenizer, name="short")
    proposer = Speculative(target, draft_model=short, num_draft_tokens=5)
    assert (proposer.context_length, proposer.max_nodes) == (40, 5)
    decode(target, proposer, [[40] * 31], max_new_tokens=5)  # 31 + 4 read at most, and 5 drafted
    with pytest.raises(UserError, match="'short'.* 40"):
        decode(target, proposer, [[40] * 31], max_new_tokens=12)


def test_what_cannot_be_is_one_line(target: Target) -> None:
    foreign = foreign_copy(target)
    with pytest.raises(UserError, match=r"\d+ of 300 "):
        Speculative(target, draft_model=foreign)
    with pytest.raises(UserError, match="./nowhere"):
        Speculative(target, draft_model="./nowhere")
    with pytest.raises(UserError, match="speculative: num_draft_tokens=0"):
        Speculative(target, draft_model=noisy_copy(target), num_draft_tokens=0)
    with pytest.raises(UserError, match="universal: stop_confidence=1.5"):
        Universal(target, draft_model=foreign, stop_confidence=1.5)
    lonely = Target(foreign.model, foreign.tokenizer, name="lonely")
    lonely.vocab_size = 0
    with pytest.raises(UserError, match="'lonely'"):
        Universal(target, draft_model=lonely)


def test_a_setting_without_a_default_must_be_given(target: Target) -> None:
    settings = {"_target_": "eagle_lab.methods.eagle_trees.EagleDynamic", "depth": 2, "width": 2}
    with pytest.raises(UserError, match=r"method\.mine\.num_nodes"):
        MethodBuilder(target).build("mine", settings)
