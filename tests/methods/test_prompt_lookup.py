"""Prompt lookup drafts what the candidate generator of transformers drafts."""

import random

import numpy as np
import pytest
import torch
from transformers.generation.candidate_generator import PromptLookupCandidateGenerator

from eagle_lab.errors import UserError
from eagle_lab.methods.prompt_lookup import PromptLookup, find_continuation


@pytest.mark.parametrize("n_max", [1, 2, 4])
@pytest.mark.parametrize("seed", range(10))
def test_equals_transformers_on_random_texts(seed, n_max):
    draw = random.Random(seed)
    text = [draw.randrange(6) for _ in range(draw.randrange(5, 40))]
    generator = PromptLookupCandidateGenerator(
        num_output_tokens=5, max_matching_ngram_size=n_max, max_length=1000
    )
    candidates, _ = generator.get_candidates(torch.tensor([text]))
    expected = candidates[0, len(text) :].tolist()
    assert find_continuation(np.asarray(text), n_max, 1, 5) == expected


def test_shorter_matches_than_n_min_are_not_copied():
    text = np.asarray([1, 2, 3, 9, 2, 3])
    assert find_continuation(text, 3, 2, 10) == [9, 2, 3]
    assert find_continuation(text, 3, 3, 10) == []
    assert find_continuation(text, 1, 1, 2) == [9, 2]


@pytest.mark.parametrize("changes", [{"n_min": 0}, {"n_min": 4}, {"num_draft_tokens": 0}])
def test_settings_that_cannot_be_are_refused(changes):
    with pytest.raises(UserError, match="prompt_lookup"):
        PromptLookup(**changes)
