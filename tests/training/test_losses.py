"""The losses against a float64 loop over rows, and what half precision does to their gradient."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from eagle_lab.drafters.eagle1.network import Eagle1
from eagle_lab.training import losses
from eagle_lab.training.losses import Sums, row_sums
from tests.drafters.fakes import FakeTarget
from tests.training.fakes import HIDDEN, VOCAB, new_drafter

KEPT = [0, 3, 7, 8]


def rows(num: int = 7) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(3)
    return {
        "predicted": torch.randn(num, HIDDEN, generator=generator) * 2,
        "features": torch.randn(num, HIDDEN, generator=generator),
        "token_labels": torch.tensor([0, 1, 3, 7, 2, 8, 11])[:num],
    }


def naive(target: FakeTarget, kept: list[int], given: dict[str, Tensor]) -> tuple[float, float]:
    """Both means, number by number in float64; labels outside `kept` do not count for CE."""

    def distribution(hidden: Tensor) -> list[float]:
        scores = []
        for token in kept:
            score = float(hidden.double() @ target.head_weight[token].double())
            score += float(target.head_bias[token])
            if target.softcap is not None:
                score = target.softcap * math.tanh(score / target.softcap)
            scores.append(math.exp(score))
        return [score / sum(scores) for score in scores]

    feature_losses, token_losses = [], []
    for predicted, feature, label in zip(
        given["predicted"], given["features"], given["token_labels"].tolist(), strict=True
    ):
        errors = [abs(a - b) for a, b in zip(predicted.tolist(), feature.tolist(), strict=True)]
        smooth = [0.5 * e * e if e < 1 else e - 0.5 for e in errors]
        feature_losses.append(sum(smooth) / HIDDEN)
        if label in kept:
            p, q = distribution(feature), distribution(predicted)
            token_losses.append(-sum(a * math.log(b) for a, b in zip(p, q, strict=True)))
    return sum(feature_losses) / len(feature_losses), sum(token_losses) / len(token_losses)


def run(target: FakeTarget, kept: list[int] | None, given: dict[str, Tensor]) -> Sums:
    return sums_of(new_drafter(target, kept), given)[0]


def sums_of(drafter: Eagle1, given: dict[str, Tensor]) -> tuple[Sums, Tensor]:
    """EAGLE-1's losses: the target's head reads the features that the states should equal."""
    features, labels = given["features"], drafter.draft_ids(given["token_labels"])
    heads = drafter.logits, drafter.target_logits
    return row_sums(
        given["predicted"], heads[0], features, heads[1], labels=labels, features=features
    )


@pytest.mark.parametrize("kept", [None, KEPT])
@pytest.mark.parametrize("softcap", [None, 2.0])
def test_losses_are_the_naive_ones(kept: list[int] | None, softcap: float | None) -> None:
    target, given = FakeTarget(softcap=softcap), rows()
    sums = run(target, kept, given)
    feature, token = naive(target, kept or list(range(VOCAB)), given)
    assert float(sums.loss(1.0, 0.0)) == pytest.approx(feature, rel=1e-5)
    assert float(sums.loss(0.0, 1.0)) == pytest.approx(token, rel=1e-5)
    assert float(sums.loss(1.0, 0.1)) == pytest.approx(feature + 0.1 * token, rel=1e-5)


def test_rows_whose_label_cannot_be_drafted_keep_their_feature_loss() -> None:
    sums = run(FakeTarget(), KEPT, rows())
    assert sums.num_rows == 7
    assert sums.num_token_rows == 4  # labels 0, 3, 7, 8


def test_correct_means_the_texts_own_token_in_target_ids() -> None:
    target, given = FakeTarget(), rows()
    drafter = new_drafter(target, KEPT)
    best = target.head(given["predicted"])[:, KEPT].argmax(-1)
    given["token_labels"] = torch.tensor(KEPT)[best]
    given["token_labels"][0] = 1
    _, correct = sums_of(drafter, given)
    assert correct.tolist() == [False] + [True] * 6


@pytest.mark.parametrize("kept", [None, KEPT])
def test_gradient_is_autograds_own(kept: list[int] | None) -> None:
    """The gradient made in the forward pass equals autograd through plain float64 formulas."""
    target, given = FakeTarget(softcap=2.0), rows()
    given["predicted"].requires_grad_()
    run(target, kept, given).loss(0.0, 1.0).backward()
    plain = given["predicted"].detach().double().requires_grad_()
    ids = kept or list(range(VOCAB))

    def logits(hidden: Tensor) -> Tensor:
        raw = hidden @ target.head_weight[ids].double().T + target.head_bias[ids].double()
        return 2.0 * torch.tanh(raw / 2.0)

    distribution = torch.softmax(logits(given["features"].double()), -1)
    ce = -(distribution * torch.log_softmax(logits(plain), -1)).sum(-1)
    counted = torch.tensor([label in ids for label in given["token_labels"].tolist()])
    ce[counted].mean().backward()
    assert plain.grad is not None
    torch.testing.assert_close(given["predicted"].grad, plain.grad.float(), rtol=1e-4, atol=1e-6)


def test_half_precision_gives_the_float64_gradient_within_one_percent() -> None:
    """For a drafter close to its target: the two distributions nearly cancel in the gradient."""
    generator = torch.Generator().manual_seed(0)
    target_logits = (torch.randn(8, 4096, generator=generator) * 3).bfloat16()
    logits = (target_logits + torch.randn(8, 4096, generator=generator) * 0.1).bfloat16()

    hidden = logits.clone().requires_grad_()  # an identity head: hidden states are the logits
    loss, _ = losses.ChunkedTokenLoss.apply(
        hidden, lambda states: states * 1.0, target_logits, lambda states: states
    )
    loss.backward()
    exact = logits.double().requires_grad_()
    distribution = torch.softmax(target_logits.double(), -1)
    (-(distribution * torch.log_softmax(exact, -1)).sum()).backward()
    assert hidden.grad is not None
    assert exact.grad is not None
    error = (hidden.grad.double() - exact.grad).norm() / exact.grad.norm()
    assert error < 0.01
    # The same in bfloat16 throughout misses the bound: the claim has teeth
    careless = logits.clone().requires_grad_()
    (-(torch.softmax(target_logits, -1) * torch.log_softmax(careless, -1)).sum()).backward()
    assert careless.grad is not None
    assert (careless.grad.double() - exact.grad).norm() / exact.grad.norm() > 0.01


def test_chunks_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    results = []
    for chunk in (512, 3):
        monkeypatch.setattr(losses, "CHUNK", chunk)
        given = rows()
        given["predicted"].requires_grad_()
        sums = run(FakeTarget(), KEPT, given)
        sums.loss(1.0, 0.1).backward()
        results.append((float(sums.token.detach()), given["predicted"].grad))
    assert results[0][0] == pytest.approx(results[1][0], rel=1e-5)
    torch.testing.assert_close(results[0][1], results[1][1], rtol=1e-5, atol=1e-7)


def test_no_rows_is_no_loss() -> None:
    sums = run(FakeTarget(), KEPT, rows(0))
    assert float(sums.loss(1.0, 0.1)) == 0.0


def test_a_head_of_its_own_learns_as_by_autograd() -> None:
    """Another width, another head than the target's, and its bias: gradients of all three."""
    given, generator = rows(), torch.Generator().manual_seed(4)
    head = torch.nn.Linear(5, VOCAB)
    states = torch.randn(7, 5, generator=generator)
    target = FakeTarget()
    labels = torch.tensor([0, 1, -1, 7, 2, 8, 11])
    gradients = []
    for plain in (False, True):
        ours = states.clone().requires_grad_()
        head.zero_grad()
        if plain:
            distribution = torch.softmax(target.head(given["features"]), -1)
            ce = -(distribution * torch.log_softmax(head(ours), -1)).sum(-1)
            ce[labels >= 0].mean().backward()
        else:
            sums, _ = row_sums(
                ours, head, given["features"], target.head, labels=labels,
                head_weights=tuple(head.parameters()),
            )  # fmt: skip
            sums.loss(1.0, 1.0).backward()
        gradients.append([ours.grad, head.weight.grad.clone(), head.bias.grad.clone()])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
