"""The kernels around a drafter's choices equal plain code."""

import pytest
import torch

from eagle_lab.targets.cpu.ops import best_tokens


@pytest.mark.parametrize(("num_logits", "count"), [(5, 5), (64, 1), (6144, 4), (49152, 10)])
@pytest.mark.parametrize("scale", [0.0, 3.0, 200.0])
def test_best_tokens_are_those_of_a_sorted_softmax(num_logits, count, scale):
    """To 2e-6 of double precision's; scale 0 makes nothing but ties."""
    generator = torch.Generator().manual_seed(0)
    logits = (torch.randn(2, 3, num_logits, generator=generator) * scale).round(decimals=1)
    log_probs, tokens = best_tokens(logits, count)
    expected = torch.log_softmax(logits.double(), dim=-1).sort(dim=-1, descending=True, stable=True)
    assert torch.equal(tokens, expected.indices[..., :count])
    torch.testing.assert_close(
        log_probs.double(), expected.values[..., :count], atol=2e-6, rtol=2e-6
    )


def test_ruled_out_tokens_come_last_and_weigh_nothing():
    logits = torch.tensor([[-torch.inf, 1.0, -torch.inf, 1.0]])
    log_probs, tokens = best_tokens(logits, 3)
    assert tokens[0, :2].tolist() == [1, 3]
    torch.testing.assert_close(log_probs[0].exp(), torch.tensor([0.5, 0.5, 0.0]))
