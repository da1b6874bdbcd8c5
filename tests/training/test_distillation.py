"""A draft model learns: which rows count, packed conversations, chains."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.functional import log_softmax, softmax

from eagle_lab.data.batches import Document, PackedBatch, pack
from eagle_lab.errors import UserError
from eagle_lab.targets.pruned import layer_pruned, spread_layers
from eagle_lab.targets.target import Target
from eagle_lab.targets.tiny import ARCHITECTURES, tiny_random
from eagle_lab.training.distillation import DistillationModule
from tests.training.fakes import trainer

SETTINGS: dict[str, Any] = {
    "noise": 0.0, "learning_rate": 1e-2, "warmup_steps": 2, "val_depth": 3,
    "feature_weight": 0.5, "token_weight": 1.0,
}  # fmt: skip
SUPERVISED = [False, False, True, True, False, True, True, True]


def target_of(architecture: str = "llama") -> Target:
    return Target(*tiny_random(architecture))


def batch_of(target: Target, lengths: list[int]) -> PackedBatch:
    """Random texts with the target's own features; two stretches of each are the assistant's."""
    generator = torch.Generator().manual_seed(0)
    documents = []
    for length in lengths:
        tokens = torch.randint(3, 290, (length,), generator=generator)
        features = target.prefill([tokens.tolist()], target.new_cache(1)).features["top"][0]
        supervised = torch.tensor((SUPERVISED * length)[:length])
        documents.append(Document(tokens, supervised, {"top": features}))
    return pack(documents)


def module_of(target: Target, layers: list[int], **changes: Any) -> DistillationModule:
    settings = trainer(**{**SETTINGS, **changes})
    return DistillationModule(layer_pruned(target, layers), target, settings)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_loss_and_acceptance_are_those_of_each_conversation_by_itself(architecture: str) -> None:
    """Against one plain Hugging Face forward per conversation and loops over its rows."""
    target = target_of(architecture)
    model = layer_pruned(target, [0, 3, 7])
    module = DistillationModule(model, target, trainer(**SETTINGS))
    batch = batch_of(target, [19, 8, 30])
    with torch.no_grad():
        module.validation_step(batch, 0)
    feature, token, tried, accepted = [], [], [0] * 3, [0] * 3
    for number in range(3):
        own = batch.document == number
        tokens, supervised, features = (
            part[own] for part in (batch.tokens, batch.supervised, batch.features["top"])
        )
        with torch.no_grad():
            whole = model(input_ids=tokens[None], use_cache=False, output_hidden_states=True)
        logits, states = whole.logits[0], whole.hidden_states[-1][0]
        rows = [row for row in range(len(tokens) - 1) if supervised[row + 1]]
        for row in rows:
            distribution = softmax(target.head(features[row]), dim=-1)
            token.append(float(-(distribution * log_softmax(logits[row], dim=-1)).sum()))
            feature.append(float(torch.nn.functional.smooth_l1_loss(states[row], features[row])))
            for depth in range(3):
                if row + depth not in rows:
                    break
                tried[depth] += 1
                if int(logits[row + depth].argmax()) != int(tokens[row + depth + 1]):
                    break
                accepted[depth] += 1
    sums = module.val_sums[0]
    assert sums.num_rows == len(token)
    assert float(sums.token) == pytest.approx(sum(token), rel=1e-4)
    assert float(sums.feature) == pytest.approx(sum(feature), rel=1e-4)
    assert module.val_counts.tried.tolist() == tried
    assert module.val_counts.accepted.tolist() == accepted


def test_all_layers_of_a_target_accept_what_it_says_itself() -> None:
    """A text of the target's argmaxes: whole chains are right, but for where labels end."""
    target = target_of()
    tokens = torch.tensor([5, 6, 7])
    for _ in range(20):
        logits = target.prefill([tokens.tolist()], target.new_cache(1)).logits[0, 0]
        tokens = torch.cat([tokens, logits.argmax()[None]])
    features = target.prefill([tokens.tolist()], target.new_cache(1)).features["top"][0]
    supervised = torch.arange(23) >= 3
    module = module_of(target, list(range(8)))
    with torch.no_grad():
        module.validation_step(pack([Document(tokens, supervised, {"top": features})]), 0)
    assert module.val_counts.tried.tolist() == [20, 19, 18]
    assert module.val_counts.expected_tau == 4.0


def test_only_the_layers_learn_and_only_they_are_saved() -> None:
    target = target_of()
    module = module_of(target, [1, 4])
    names = set(module.state_dict())
    assert not any("embed" in name or "head" in name for name in names)
    assert {name.split(".")[1] for name in names} == {"layers", "norm"}
    module.training_step(batch_of(target, [12, 9]), 0).backward()
    assert all(weight.grad is not None for weight in module.parameters())
    assert all(weight.grad is None for weight in target.model.parameters())


def test_layers_are_spread_from_the_first_to_the_last() -> None:
    assert spread_layers(4, 30) == [0, 10, 19, 29]
    assert spread_layers(1, 30) == [0]
    assert spread_layers(3, 3) == [0, 1, 2]


def test_what_cannot_be_is_one_line() -> None:
    target = target_of()
    for num_layers in (0, 9):
        with pytest.raises(UserError, match=f"num_layers={num_layers}"):
            spread_layers(num_layers, 8)
    for layers in ([], [0, 8]):
        with pytest.raises(UserError, match=r"layers="):
            layer_pruned(target, layers)
    with pytest.raises(UserError, match=r"trainer\.noise=0\.1"):
        module_of(target, [0], noise=0.1)
    with pytest.raises(UserError, match=r"trainer\.ttt_steps=2.*trainer\.ttt_steps=1"):
        module_of(target, [0], ttt_steps=2)
