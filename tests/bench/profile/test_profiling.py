"""A profile times the passes it names, all equally often, and its rows follow from the timings."""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch

from eagle_lab.bench.profile import passes
from eagle_lab.bench.profile.limits import Model, Profile, Setting
from eagle_lab.bench.profile.passes import TargetPasses, after_text
from eagle_lab.bench.profile.profiler import Profiler
from eagle_lab.bench.profile.settings import PassSettings
from eagle_lab.columns import CURVES, WORK, csv_names
from eagle_lab.drafters.eagle1.network import Eagle1
from eagle_lab.errors import UserError
from eagle_lab.targets.load import load_target
from eagle_lab.targets.target import Target
from eagle_lab.targets.tiny import ARCHITECTURES
from tests.bench.fakes import tiny_target
from tests.drafters.fakes import eagle1

SMALL = PassSettings(batch_sizes=[1, 2], contexts=[5, 9], num_tokens=[1, 3], repeats=2)


@pytest.fixture(scope="module")
def drafter() -> Eagle1:
    return eagle1(tiny_target())


def random_tokens(target: Target, *shape: int) -> torch.Tensor:
    return torch.randint(target.vocab_size, shape, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@torch.no_grad()
def test_engine_and_plain_layers_compute_the_same_pass_again_and_again(architecture: str):
    """After a context longer than the sliding windows, and in any order of sizes."""
    target = load_target("tiny_random", device="cpu", architecture=architecture)
    tokens = random_tokens(target, 2, 30)
    passes = after_text(target, None, tokens, 20)
    ours, plain = passes["target"], passes["plain"]
    for num_tokens in (4, 1, 10, 4):
        with ours.ready(num_tokens) as run:
            expected = run().logits
        with plain.ready(num_tokens) as run:
            logits = run().logits
        assert logits.shape == (2, num_tokens, target.vocab_size)
        torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)
    with torch.no_grad():
        whole = target.prefill(tokens[:, :24].tolist(), target.new_cache(2)).logits
    torch.testing.assert_close(whole[:, 0], expected[:, -1], atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_a_draft_step_does_not_depend_on_its_siblings_or_on_earlier_steps(drafter: Eagle1):
    target = tiny_target()
    tokens = random_tokens(target, 2, 20)
    passes = after_text(target, drafter, tokens, 8)["draft"]
    with passes.ready(1) as run:
        alone = run()
    with passes.ready(5) as run:
        beside = run()
    assert beside.shape == (2, 5, target.vocab_size)
    torch.testing.assert_close(beside[:, :1], alone)


def test_rows_hold_every_pass_of_the_engine_in_order(drafter: Eagle1):
    rows = Profiler(tiny_target(), drafter, SMALL).run().rows()
    places = [tuple(row[name] for name in csv_names(CURVES)[:4]) for row in rows]
    sizes = [(b, c, n) for b in (1, 2) for c in (5, 9) for n in (1, 3)]
    assert places == [(name, *size) for name in ("target", "draft") for size in sizes]
    for row in rows:
        assert set(row) == set(csv_names((*CURVES, *WORK)))
        assert 0 < row["low_ms"] <= row["median_ms"] <= row["high_ms"]
        assert (row["plain_median_ms"] is None) == (row["model_pass"] == "draft")
        assert row["read_share"] > 0 and row["arithmetic_share"] > 0
        if row["num_tokens"] == 1:
            assert row["relative_cost"] == 1.0


def test_without_a_drafter_the_target_is_profiled_alone():
    rows = Profiler(tiny_target(), None, SMALL).run().rows()
    assert {row["model_pass"] for row in rows} == {"target"}


def test_every_round_times_every_pass_once_in_another_order(monkeypatch: pytest.MonkeyPatch):
    order: list[tuple[int, int]] = []

    class Recorded(TargetPasses):
        @contextmanager
        def ready(self, num_tokens: int):
            order.append((int(self.cache.lengths[0]), num_tokens))
            with super().ready(num_tokens) as run:
                yield run

    monkeypatch.setattr(passes, "TargetPasses", Recorded)
    settings = PassSettings(batch_sizes=[1], contexts=[4, 6], num_tokens=[1, 2, 3], repeats=3)
    profile = Profiler(tiny_target(), None, settings).run()
    assert all(len(times) == 3 for times in profile.milliseconds.values())
    rounds = [order[start : start + 6] for start in range(0, 24, 6)]  # the first one warms up
    assert len(order) == 24
    assert all(len(Counter(one)) == 6 for one in rounds)
    assert len({tuple(one) for one in rounds}) > 1


def test_rows_follow_from_the_timings():
    """10 and 20 ms; quartiles by hand; 4 GB/s of reads and 100 GFLOP/s at most."""
    model = Model(
        num_weights=10_000_000, num_layers=0, num_heads=1, num_kv_heads=1, head_dim=1,
        bytes_per_number=4,
    )  # fmt: skip
    times = {
        Setting("target", 1, 8, 1): [10.0, 9.0, 14.0, 10.0, 12.0],
        Setting("target", 1, 8, 4): [20.0] * 5,
        Setting("plain", 1, 8, 1): [30.0] * 5,
        Setting("plain", 1, 8, 4): [60.0] * 5,
    }
    profile = Profile(times, {"read": 8e9, "float32": 100e9}, {"target": model}, "float32")
    one, four = profile.rows()
    assert [one[name] for name in csv_names(CURVES)[4:]] == [10, 10, 12, 30]
    assert (four["relative_cost"], four["plain_relative_cost"]) == (2, 2)
    assert one["gigabytes_per_second"] == pytest.approx(4)  # 40 MB in 10 ms
    assert one["read_share"] == pytest.approx(0.5)
    assert four["gigaflops"] == pytest.approx(4)  # 80 MFLOP in 20 ms
    assert four["arithmetic_share"] == pytest.approx(0.04)


@pytest.mark.parametrize("tied_head", [False, True])
def test_the_work_of_a_pass_is_what_its_shapes_say(tied_head: bool):
    """The tiny llama: 8 layers, width 48, 4 query heads over 2 of width 16, MLP 96, 300 ids."""
    target = load_target("tiny_random", device="cpu", tied_head=tied_head)
    layer = 48 * 64 * 2 + 48 * 32 * 2 + 3 * 48 * 96 + 2 * 48  # q, o; k, v; MLP; norms
    num_weights = 8 * layer + 48 + 300 * 48  # layers, last norm, head
    model = Model.of_target(target)
    assert model.num_weights == num_weights
    # keys and values: 8 layers x 2 heads x 16 wide, for 3 rows of 10 + 5 slots
    assert model.read_bytes(3, 10, 5) == 4 * (num_weights + 2 * 8 * 2 * 16 * 3 * 15)
    attention = 8 * 2 * 2 * (4 * 16) * 15  # scores and sums of values, over 15 slots
    assert model.flops(3, 10, 5) == 3 * 5 * (2 * num_weights + attention)


def test_a_drafter_works_with_its_own_vocabulary():
    network = eagle1(tiny_target(), draft_vocab_size=20)
    own = sum(weight.numel() for weight in network.parameters())
    assert Model.of_drafter(network).num_weights == own + 20 * 48


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"batch_sizes": []}, r"profile\.batch_sizes=\[\]"),
        ({"contexts": [0, 4]}, r"profile\.contexts=\[0, 4\]"),
        ({"num_tokens": [2, 4]}, r"profile\.num_tokens=\[2, 4\]"),
        ({"repeats": 0}, r"profile\.repeats=0"),
    ],
)
def test_a_mistaken_setting_is_named(changes: dict, words: str):
    with pytest.raises(UserError, match=words):
        replace(SMALL, **changes)


def test_a_context_that_does_not_fit_is_named():
    settings = PassSettings(batch_sizes=[1], contexts=[2040], num_tokens=[1, 16], repeats=1)
    with pytest.raises(UserError, match=r"2040.*16.*2056.*2048"):
        Profiler(tiny_target(), None, settings)


@torch.no_grad()
def test_plain_passes_run_without_the_fast_layers(monkeypatch: pytest.MonkeyPatch):
    """The way to the kernels is broken; plain passes do not notice, the engine's do."""
    target = load_target("tiny_random", device="cpu", fast_layers=True)
    tokens = random_tokens(target, 1, 8)
    passes = after_text(target, None, tokens, 4)
    ours, plain = passes["target"], passes["plain"]

    def broken(*arguments):
        raise ZeroDivisionError

    for module in ("ops", "patch"):
        monkeypatch.setattr(f"eagle_lab.targets.cpu.{module}.kernels", broken)
    with plain.ready(2) as run:
        run()
    with ours.ready(2) as run, pytest.raises(ZeroDivisionError):
        run()
