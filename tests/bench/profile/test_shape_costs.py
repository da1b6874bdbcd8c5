"""Shapes cost what their passes take, deep ones follow from two depths, memory is checked first."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from eagle_lab.bench.profile import shapes
from eagle_lab.bench.profile.limits import Model, Profile, Setting
from eagle_lab.bench.profile.passes import after_noise
from eagle_lab.bench.profile.shapes import ShapeCosts, extrapolated
from eagle_lab.engine.draft_tree import DraftTree
from eagle_lab.errors import Infeasible
from eagle_lab.targets.cuda.graphs import CacheGraphs, VerifyGraphs
from eagle_lab.targets.random_shapes import SHAPES, random_model, random_target
from tests.drafters.fakes import eagle1
from tests.targets.test_graphs import CallCapture

CPU = torch.device("cpu")


def tiny_costs(name: str = "tiny", new_drafter=eagle1, **changes) -> ShapeCosts:
    return ShapeCosts(name, CPU, torch.float32, [1, 2, 5], new_drafter, repeats=2, **changes)


@pytest.mark.parametrize("name", SHAPES)
def test_weights_are_counted_and_made_on_the_device_alone(name: str):
    """`meta` stands for a device: whatever is not there was made elsewhere."""
    shape = SHAPES[name]
    for depth in shape.depths:
        model = random_model(shape, depth, torch.device("meta"), torch.bfloat16)
        assert all(part.is_meta for part in (*model.parameters(), *model.buffers()))
        assert {weight.dtype for weight in model.parameters()} == {torch.bfloat16}
        assert sum(weight.numel() for weight in model.parameters()) == shape.num_weights(depth)


def test_shapes_are_those_of_the_models_they_are_called_after():
    billions = {name: shape.num_weights(shape.num_layers) / 1e9 for name, shape in SHAPES.items()}
    assert billions["llama_1b"] == pytest.approx(1.24, abs=0.005)
    assert billions["llama_8b"] == pytest.approx(8.03, abs=0.005)
    assert billions["llama_70b"] == pytest.approx(70.55, abs=0.005)


@torch.no_grad()
def test_noise_fills_every_layer_and_passes_leave_it_alone():
    target = random_target("tiny", 2, CPU, torch.float32)
    tokens = torch.zeros(3, 12, dtype=torch.long)
    passes = after_noise(target, None, tokens, context=8)["target"]
    cache = passes.cache
    before = cache.store[..., :8, :].clone()
    assert before.std() == pytest.approx(1.0, abs=0.1)
    with passes.ready(4) as run:
        first, again = run().logits, run().logits
    torch.testing.assert_close(first, again)
    assert first.shape == (3, 4, 300)
    assert cache.lengths.tolist() == [8, 8, 8]
    torch.testing.assert_close(cache.store[..., :8, :], before, atol=0, rtol=0)


@pytest.mark.parametrize("capture", [None, CallCapture])
@pytest.mark.parametrize("name", ["tiny", "tiny_deep"])
def test_a_shape_has_cost_curves_of_target_and_drafter(name: str, capture):
    before = CacheGraphs.num_captures
    profile = tiny_costs(
        name, new_drafter=partial(eagle1, draft_vocab_size=50), new_capture=capture
    ).measure(2, 16)
    rows = profile.rows()
    places = [(row["model_pass"], row["num_tokens"]) for row in rows]
    assert places == [(name, count) for name in ("target", "draft") for count in (1, 2, 5)]
    for row in rows:
        assert (row["batch_size"], row["context"]) == (2, 16)
        assert 0 < row["low_ms"] <= row["median_ms"] <= row["high_ms"]
        assert row["plain_median_ms"] is None
    assert (CacheGraphs.num_captures > before) == (capture is not None)
    whole = random_model(SHAPES[name], SHAPES[name].num_layers, CPU, torch.float32)
    embedding = whole.get_input_embeddings().weight.numel()
    expected = sum(weight.numel() for weight in whole.parameters()) - embedding
    assert profile.models["target"].num_weights == expected
    assert profile.models["target"].num_layers == SHAPES[name].num_layers


ONE, DRAFT = Setting("target", 1, 8, 1), Setting("draft", 1, 8, 1)


def depths_one_and_three(shallow: list[float], deep: list[float]) -> Profile:
    """Ten layers from one and three."""
    less, more = Model(110, 1, 4, 2, 16, 2), Model(130, 3, 4, 2, 16, 2)
    return extrapolated(
        Profile({ONE: shallow}, {"read": 5.0, "bfloat16": 9.0}, {"target": less}, "bfloat16"),
        Profile(
            {ONE: deep, DRAFT: [0.5, 0.5]},
            {"read": 4.0, "bfloat16": 8.0},
            {"target": more, "draft": less},
            "bfloat16",
        ),
        (1, 3),
        10,
    )


def test_a_deep_model_is_a_straight_line_in_its_depth():
    """2 ms and 3 ms at 1 and 3 layers: 0.5 ms a layer, so 10 layers take 6.5 ms."""
    whole = depths_one_and_three([2.0, 2.0], [3.0, 3.0])
    assert whole.spread(ONE) == (6.5, 6.5, 6.5)
    assert whole.milliseconds == {DRAFT: [0.5, 0.5]}
    assert (whole.models["target"].num_weights, whole.models["target"].num_layers) == (200, 10)
    assert whole.ceilings == {"read": 4.0, "bfloat16": 8.0}
    assert [row["median_ms"] for row in whole.rows()] == [6.5, 0.5]


def test_noise_of_the_rounds_widens_the_interval_and_does_not_move_the_median():
    """Rounds of one depth and the next have nothing to do with each other."""
    median, low, high = depths_one_and_three([2.0, 1.5, 2.5], [3.0, 3.5, 2.5]).spread(ONE)
    assert median == 6.5
    assert low < 6.5 < high
    assert 6.5 - low == pytest.approx(high - 6.5, rel=0.2)


def test_more_layers_never_take_less_time():
    assert depths_one_and_three([4.0], [3.0]).spread(ONE) == (3.0, 3.0, 3.0)


@torch.no_grad()
def test_what_graphs_need_is_counted():
    """The block that a cache is moved to: 3 rows become 4, 260 slots become 512."""
    target = random_target("tiny", 2, CPU, torch.float32)
    target.graphs = VerifyGraphs(target, CallCapture())
    cache = target.new_cache(3)
    target.prefill([[7] * 255] * 3, cache)
    target.score(DraftTree.chain(torch.tensor([9] * 3), torch.full((3, 4), 9)), cache)
    plain, graphs = (tiny_costs(new_capture=made) for made in (None, CallCapture))
    store = cache.store
    assert store is not None and store.untyped_storage().nbytes() == 4 * 4 * 512 * 2 * 2 * 2 * 16
    added = graphs.needed_bytes(3, 255) - plain.needed_bytes(3, 255)
    assert store.untyped_storage().nbytes() < added < 2 * store.untyped_storage().nbytes()


def test_a_model_too_large_for_the_device_is_told_from_its_few_layers(
    monkeypatch: pytest.MonkeyPatch,
):
    costs = ShapeCosts("llama_70b", CPU, torch.bfloat16, [1, 64], eagle1)
    made = costs.weight_bytes() + costs.needed_bytes(1, 512)
    for gigabytes, fits in ((80, False), (180, True)):
        monkeypatch.setattr(shapes, "total_bytes", lambda device, n=gigabytes: n * 10**9)
        assert made < gigabytes * 10**9
        assert costs.whole_model_fits(1, 512) == fits
    assert not costs.whole_model_fits(128, 2048)


def test_what_does_not_fit_is_refused_before_anything_is_made(monkeypatch: pytest.MonkeyPatch):
    costs = tiny_costs()
    needed = costs.needed_bytes(4, 16) + costs.weight_bytes()
    assert costs.needed_bytes(8, 16) > costs.needed_bytes(4, 16)
    assert costs.needed_bytes(4, 4000) > costs.needed_bytes(4, 16)
    monkeypatch.setattr(shapes, "free_bytes", lambda device: needed)
    with pytest.raises(Infeasible, match="GB"):
        costs.measure(4, 16)
    assert costs._models is None
    monkeypatch.setattr(shapes, "free_bytes", lambda device: 2 * needed)
    costs.measure(4, 16)


def test_an_estimate_that_was_wrong_is_no_crash(monkeypatch: pytest.MonkeyPatch):
    def exhausted(*arguments):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(shapes.Profiler, "run", exhausted)
    with pytest.raises(Infeasible):
        tiny_costs().measure(1, 8)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_a_small_shape_on_cuda():
    from eagle_lab.targets.cuda.graphs import CudaGraphCapture

    costs = ShapeCosts(
        "tiny_deep",
        torch.device("cuda"),
        torch.bfloat16,
        [1, 4, 64],
        eagle1,
        new_capture=CudaGraphCapture,
    )
    before = CacheGraphs.num_captures
    assert len(costs.measure(4, 512).rows()) == 6
    assert CacheGraphs.num_captures == before + 2 * 3 + 3
