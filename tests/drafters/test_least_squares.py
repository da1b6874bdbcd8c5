"""The least-squares start against numpy's own solver."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from eagle_lab.drafters.eagle1.recipe import least_squares_start
from tests.drafters.fakes import FakeTarget, causal_attend
from tests.training.fakes import batch_of, new_drafter

BATCHES = [batch_of([40, 60, 3], seed=1), batch_of([80], seed=2)]


def design(target: FakeTarget, bias: bool) -> tuple[np.ndarray, np.ndarray]:
    """Rows [E(t_{i+1}) ; f_i (; 1)] and f_{i+1} where token i+2 is supervised, by a plain loop."""
    inputs, labels = [], []
    for batch in BATCHES:
        start = 0
        for length in batch.lengths:
            for i in range(start, start + length - 2):
                if batch.supervised[i + 2]:
                    embedded = target.embedding.weight[batch.tokens[i + 1]]
                    one = [torch.ones(1)] if bias else []
                    inputs.append(torch.cat([embedded, batch.features["top"][i], *one]).numpy())
                    labels.append(batch.features["top"][i + 1].numpy())
            start += length
    return np.array(inputs, dtype=np.float64), np.array(labels, dtype=np.float64)


@pytest.mark.parametrize("bias", [False, True])
def test_fc_is_the_least_squares_solution(bias: bool) -> None:
    target = FakeTarget()
    drafter = new_drafter(target, fc_bias=bias)
    explained = least_squares_start(drafter, BATCHES)
    inputs, labels = design(target, bias)
    solution, *_ = np.linalg.lstsq(inputs, labels, rcond=None)
    # Twelve embeddings leave the weights undetermined in places; what they predict is not.
    ours = drafter.fc(torch.tensor(inputs[:, : 2 * 16], dtype=torch.float32)).detach()
    theirs = torch.tensor(inputs @ solution, dtype=torch.float32)
    torch.testing.assert_close(ours, theirs, rtol=1e-2, atol=1e-2)
    residual = ((labels - inputs @ solution) ** 2).sum()
    variance = ((labels - labels.mean(0)) ** 2).sum()
    assert explained == pytest.approx(1 - residual / variance, abs=1e-3)


def test_the_layer_starts_as_the_identity() -> None:
    target = FakeTarget()
    drafter = new_drafter(target)
    least_squares_start(drafter, BATCHES)
    tokens, features = torch.tensor([[3, 1, 4]]), torch.randn(1, 3, 16)
    output = drafter(tokens, features, torch.arange(3)[None], causal_attend)
    fused = drafter.fc(torch.cat((target.embedding(tokens), features), dim=-1))
    torch.testing.assert_close(output, fused, rtol=0, atol=0)


def test_fewer_rows_than_columns_still_solve() -> None:
    drafter = new_drafter()
    least_squares_start(drafter, [batch_of([6], seed=5)])
    assert torch.isfinite(drafter.fc.weight).all()
