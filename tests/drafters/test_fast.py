"""The drafter's fast form computes what the drafter does, whatever its switches and the batch."""

from __future__ import annotations

import copy

import pytest
import torch

from eagle_lab.drafters.base import CacheAttend
from eagle_lab.drafters.checkpoint import save_drafter
from eagle_lab.drafters.eagle1.network import Eagle1, FastEagle1
from eagle_lab.engine.draft_tree import Scores
from eagle_lab.engine.loop import decode
from eagle_lab.engine.proposer import Context
from eagle_lab.engine.sampling import Sampling, Uniforms
from eagle_lab.engine.verify import Acceptance
from eagle_lab.methods.build import MethodBuilder
from eagle_lab.methods.eagle import EagleChain
from eagle_lab.methods.eagle_trees import EagleDynamic, EagleStatic
from eagle_lab.methods.vanilla import Vanilla
from eagle_lab.targets.cache import TreeCache
from eagle_lab.targets.cpu.ops import MAX_ROWS, is_packed, round_weights
from eagle_lab.targets.target import Target
from eagle_lab.targets.tiny import tiny_random
from eagle_lab.targets.tree_pass import TreePass
from tests.drafters.fakes import causal_attend, eagle1

PROMPTS = [[40, 41, 42], [60, 61, 62, 63] * 4, [7], list(range(100, 140))]


@pytest.fixture(scope="module")
def target() -> Target:
    return Target(*tiny_random("llama", hidden_size=64, head_dim=16))  # widths that can be packed


def drafter_for(target: Target, *, rounded: bool = False, kept: int | None = 200, **switches):
    """A random drafter; norms included, so that a forgotten one shows."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        ids = torch.randperm(target.vocab_size)[:kept].sort().values
        drafter = eagle1(target, ids if kept else None, **switches)
        for parameter in drafter.parameters():
            torch.nn.init.normal_(parameter, std=0.2)
    if rounded:
        drafter.bfloat16().float()
    drafter.attach(target, rounded=rounded)
    return drafter.eval().requires_grad_(False)


def run(drafter: Eagle1, *, fast: bool, batch: int, num_nodes: int):
    """Outputs and logits of a pass over ragged prompts, then of two levels of a tree."""
    cache = TreeCache(1, batch, fast=fast)
    generator = torch.Generator().manual_seed(5)
    steps = torch.arange(11)
    own = torch.eye(num_nodes).bool().expand(batch, -1, -1)
    passes = [
        (steps.expand(batch, -1), (steps[:, None] >= steps).expand(batch, -1, -1)),
        (None, own),
        (None, torch.cat([own.flip(1), own], dim=2)),  # each node sees another one's slot
    ]
    outputs = []
    for level, (positions, visible) in enumerate(passes):
        if positions is None:
            positions = (cache.lengths + level)[:, None].expand(-1, num_nodes)
        tokens = torch.randint(0, 90, positions.shape, generator=generator)
        features = torch.randn(*positions.shape, drafter.config.hidden_size, generator=generator)
        attend = CacheAttend(TreePass(cache, positions, visible))
        outputs.append(drafter(tokens, features, positions, attend))
        if level == 0:
            cache.advance(torch.tensor([11, 4, 7, 9])[:batch])
            outputs[0] = outputs[0][:, :4]
    return [*outputs, *map(drafter.logits, outputs)]


def assert_equal(ours, expected):
    """To 1e-5 of the largest number: one layer, summed in another order."""
    for one, other in zip(ours, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5 * float(other.abs().max()), rtol=0)


@pytest.mark.parametrize("inner_norm", [True, False])
@pytest.mark.parametrize(("fc_bias", "kept"), [(False, 200), (True, None)])
@pytest.mark.parametrize("rounded", [False, True])
@pytest.mark.parametrize(("batch", "num_nodes"), [(1, 1), (1, 4), (4, 10)])
def test_fast_form_equals_the_plain_one(
    target, inner_norm, fc_bias, kept, rounded, batch, num_nodes
):
    switches = {"inner_norm": inner_norm, "fc_bias": fc_bias, "kept": kept, "rounded": rounded}
    plain, fast = (drafter_for(target, **switches) for _ in range(2))
    fast.use_fast_form()
    assert isinstance(fast.__dict__["forward"], FastEagle1)
    sizes = {"batch": batch, "num_nodes": num_nodes}
    ours, expected = run(fast, fast=True, **sizes), run(plain, fast=False, **sizes)
    assert_equal(ours, expected)
    assert not torch.equal(ours[2], expected[2])  # two ways of computing, not one


def test_rounded_weights_are_read_packed_and_others_are_not(target):
    for rounded in (False, True):
        drafter = drafter_for(target, rounded=rounded)
        drafter.use_fast_form()
        fast = drafter.__dict__["forward"]
        assert is_packed(fast._fc) == is_packed(fast._layer._weights[1]) == rounded
        assert (drafter.attached._packed is not None) == rounded


def test_passes_that_the_kernels_do_not_take_run_layer_by_layer(target):
    """Too many rows, keys that only some columns ask for, gradients."""
    plain, fast = (drafter_for(target, inner_norm=True) for _ in range(2))
    fast.use_fast_form()
    steps = torch.arange(MAX_ROWS + 1)[None]
    visible = steps[:, :, None] >= steps[:, None]
    inputs = steps % 90, torch.randn(1, MAX_ROWS + 1, plain.config.hidden_size), steps
    attends = [CacheAttend(TreePass(TreeCache(1, 1), steps, visible)) for _ in range(2)]
    assert_equal([fast(*inputs, attends[0])], [plain(*inputs, attends[1])])
    columns = torch.tensor([2])

    def attend(query, key, value):
        return causal_attend(query.expand(-1, -1, key.shape[2], -1), key, value)[:, :, :1]

    few = [each[:, :6] for each in inputs]
    assert_equal([fast(*few, attend, columns)], [plain(*few, attend, columns)])
    fast.requires_grad_(True)
    steps, visible = steps[:, :6], visible[:, :6, :6]
    attend = CacheAttend(TreePass(TreeCache(1, 1, fast=True), steps, visible))
    fast(inputs[0][:, :6], inputs[1][:, :6], steps, attend).sum().backward()
    assert fast.fc.weight.grad is not None


@pytest.mark.parametrize(
    ("architecture", "changes"), [("gemma3_text", {}), ("llama", {"head_dim": 6})]
)
def test_what_the_kernel_does_not_compute_keeps_its_own_code(architecture, changes):
    """Another activation, and heads that are no whole registers."""
    other = Target(*tiny_random(architecture, **changes))
    drafter = drafter_for(other, inner_norm=True)
    drafter.use_fast_form()
    assert not isinstance(drafter.__dict__.get("forward"), FastEagle1)
    assert_equal(
        run(drafter, fast=True, batch=2, num_nodes=3),
        run(drafter_for(other, inner_norm=True), fast=False, batch=2, num_nodes=3),
    )


def test_a_copy_is_made_fast_once_more_without_harm(target):
    drafter = drafter_for(target, inner_norm=True)
    drafter.use_fast_form()
    drafter.use_fast_form()
    twin = copy.deepcopy(drafter)
    for parameter in twin.parameters():
        parameter.zero_()
    assert not any(output.any() for output in run(twin, fast=True, batch=1, num_nodes=4)[:3])
    assert all(output.any() for output in run(drafter, fast=True, batch=1, num_nodes=4)[:3])


@pytest.mark.parametrize("inner_norm", [True, False])
@pytest.mark.parametrize("kept", [200, None])
def test_text_with_a_rounded_drafter_is_the_targets(target, inner_norm, kept):
    """Chain, static and dynamic tree, alone and in a ragged batch."""
    drafter = drafter_for(target, inner_norm=inner_norm, kept=kept, rounded=True)
    proposers = [
        EagleChain(target, drafter, num_draft_tokens=4),
        EagleStatic(target, drafter),
        EagleDynamic(target, drafter, depth=4, width=4, num_nodes=8),
    ]
    plain = [decode(target, Vanilla(), [prompt], max_new_tokens=16)[0] for prompt in PROMPTS]
    for proposer in proposers:
        for rows in ([0], [1, 3], [0, 1, 2, 3]):
            texts = decode(target, proposer, [PROMPTS[row] for row in rows], max_new_tokens=16)
            assert [text.tokens for text in texts] == [plain[row].tokens for row in rows]


def test_pairs_after_the_longest_path_change_nothing(target, monkeypatch):
    """The kernels leave them out: 3 of 5 columns here, the same bits."""
    drafter, generator = drafter_for(target), torch.Generator().manual_seed(2)
    prompts, features = torch.randn(2, 2, 5, drafter.config.hidden_size, generator=generator)
    path, num_accepted = torch.tensor([[0, 0, 0, 0, 0], [0, 2, 4, 0, 0]]), torch.tensor([0, 2])
    acceptance = Acceptance(path, num_accepted, torch.arange(10).reshape(2, 5))
    widths, states = [], []
    for fast in (True, False):
        proposer = EagleDynamic(target, drafter, depth=4, width=4, num_nodes=8)
        tokens, roots = [[11, 12, 13, 14], [15, 16, 17]], torch.tensor([14, 17])
        context = Context(tokens, roots, target.new_cache(2), Sampling(), Uniforms([0, 1]))
        context.cache.advance(torch.tensor([3, 2]))
        proposer.begin(context, {"top": prompts[:, :3]})
        context.cache.advance(num_accepted + 1)
        run = proposer._run
        proposer._run = lambda *columns, run=run: (
            widths.append(columns[1].shape[1]) or run(*columns)
        )
        with monkeypatch.context() as patch:
            patch.setattr(target, "fast_layers", fast)
            proposer.observe(context, acceptance, Scores(torch.zeros(2, 5, 1), {"top": features}))
        states.append(proposer.root_hidden)
    assert widths == [3, 5]
    assert torch.equal(*states)


def test_methods_round_where_fast_layers_run_unless_told_otherwise(target, tmp_path):
    plain = Target(*tiny_random("llama", hidden_size=64, head_dim=16), fast_layers=False)
    drafter = drafter_for(target)
    folder = save_drafter(drafter, tmp_path / "drafter", target=target, training_summary={})
    exact, rounded = drafter.fc.weight, round_weights(drafter.fc.weight)
    for of, asked, expected in [
        (target, None, rounded),
        (plain, None, exact),
        (target, False, exact),
        (plain, True, rounded),
    ]:
        loaded, _ = MethodBuilder(of, folder, round_weights=asked).load(folder)
        assert torch.equal(loaded.fc.weight, expected)
