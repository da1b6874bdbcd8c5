"""`eval.record_confidence` adds two columns to the rows of a bench and changes nothing else."""

from __future__ import annotations

import dataclasses

import pytest

from eagle_lab.bench.runner import Bench
from eagle_lab.bench.settings import BenchSettings
from eagle_lab.errors import UserError
from eagle_lab.methods.build import Method
from eagle_lab.methods.eagle_trees import EagleDynamic
from tests.bench.fakes import QUESTIONS, tiny_target, vanilla
from tests.drafters.fakes import eagle1

NOTED = {"draft_confidences", "draft_accepted"}


def test_rows_hold_confidences_only_when_asked():
    target = tiny_target()
    drafter = eagle1(target, inner_norm=True)
    proposer = EagleDynamic(target, drafter, depth=2, width=3, num_nodes=8)
    methods = [vanilla(), Method("eagle_dynamic", proposer, depth=2, width=3, num_nodes=8)]
    plain = BenchSettings(max_new_tokens=10, timing=False)
    asked = dataclasses.replace(plain, record_confidence=True)
    rows = {
        settings: Bench(target, methods, QUESTIONS, settings).run() for settings in (plain, asked)
    }
    for without, noted in zip(rows[plain], rows[asked], strict=True):
        assert set(noted) - set(without) == NOTED
        assert all(noted[key] == without[key] for key in without if key != "peak_memory_mb")
        assert sum(noted["draft_accepted"]) == sum(noted["accepted_lengths"])
        drafts = noted["method"] == "eagle_dynamic"
        assert bool(noted["draft_confidences"]) == drafts


def test_confidences_are_not_noted_beside_timings():
    with pytest.raises(UserError, match="eval.timing=false"):
        BenchSettings(record_confidence=True)
