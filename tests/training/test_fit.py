"""Training runs: exact resume, d2t, validation, budgets, interruption."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from eagle_lab.data.batches import PackedBatch
from eagle_lab.data.datamodule import DrafterDataModule
from eagle_lab.drafters.checkpoint import save_drafter
from eagle_lab.drafters.eagle1.network import Eagle1, Eagle1Settings
from eagle_lab.drafters.eagle1.recipe import Eagle1Module, Eagle1Recipe
from eagle_lab.errors import UserError
from eagle_lab.training.alignment import next_tokens
from eagle_lab.training.fit import FitResult, fit
from eagle_lab.training.metrics import AcceptanceCounts
from eagle_lab.training.recipe import trained_drafter
from tests.drafters.fakes import FakeTarget, causal_attend
from tests.training.fakes import fake_data, trainer

LENGTHS = [9, 12, 15, 8, 14, 8, 9, 11, 10, 12, 7, 13]  # ten conversations to train on
Write = Callable[[list[dict[str, Any]], list[dict[str, Any]]], None]


def ignore(train_rows: list[dict[str, Any]], val_rows: list[dict[str, Any]]) -> None:
    pass


def train(
    folder: Path,
    *,
    write: Write = ignore,
    drafter: Eagle1 | None = None,
    lengths: list[int] = LENGTHS,
    data_seed: int = 0,
    **changes: Any,
) -> tuple[Eagle1Module, FitResult]:
    """A small run: two epochs of five batches unless told otherwise."""
    data = fake_data(lengths, seed=data_seed)
    settings = trainer(**{"ttt_steps": 2, "noise": 0.1, **changes})
    module = Eagle1Recipe().module(drafter or new_drafter(data), settings)
    return module, fit(module, data, folder, settings, write=write)


def new_drafter(data: DrafterDataModule) -> Eagle1:
    settings = Eagle1Settings(
        inner_norm=True, draft_vocab_size=6, fc_bias=False, intermediate_size=None
    )
    return Eagle1Recipe().new(Eagle1, FakeTarget(), data, settings, seed=0)


def interrupt_at(step: int) -> Write:
    """Ctrl-C, once, while the row of an optimizer step is written."""
    pending = [step]

    def write(train_rows: list[dict[str, Any]], val_rows: list[dict[str, Any]]) -> None:
        if train_rows and train_rows[-1]["step"] in pending:
            pending.clear()
            signal.raise_signal(signal.SIGINT)

    return write


def final_state(folder: Path) -> dict[str, Any]:
    """Everything a checkpoint holds that must not depend on interruptions, without clocks."""
    checkpoint = torch.load(folder / "last.ckpt", weights_only=True)
    rows = checkpoint["callbacks"]["Curve"]
    clocks = ("minutes", "tokens_per_second")
    curves = {
        name: [{key: row[key] for key in row if key not in clocks} for row in rows[name]]
        for name in ("train", "val")
    }
    kept = {name: checkpoint[name] for name in ("state_dict", "optimizer_states", "global_step")}
    schedule = checkpoint["lr_schedulers"][0]
    return {
        **kept,
        **curves,
        "schedule": {key: schedule[key] for key in ("last_epoch", "_last_lr")},
    }


def assert_same(ours: Any, theirs: Any, where: str = "") -> None:
    """Bit for bit, through dictionaries and lists."""
    if isinstance(ours, Tensor):
        assert torch.equal(ours, theirs), where
    elif isinstance(ours, dict):
        assert ours.keys() == theirs.keys(), where
        for key in ours:
            assert_same(ours[key], theirs[key], f"{where}.{key}")
    elif isinstance(ours, list | tuple):
        assert len(ours) == len(theirs), where
        for index, pair in enumerate(zip(ours, theirs, strict=True)):
            assert_same(*pair, f"{where}[{index}]")
    else:
        assert ours == theirs, where


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Ten steps without interruption."""
    folder = tmp_path_factory.mktemp("straight")
    train(folder)
    return final_state(folder)


@pytest.mark.parametrize("stop", [1, 4, 5, 6, 9, 10])
def test_an_interrupted_run_ends_bit_for_bit_like_a_straight_one(
    stop: int, straight: dict[str, Any], tmp_path: Path
) -> None:
    """10 = 6 + resume + 4, and at the ends of epochs: weights, moments, rate, order."""
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, write=interrupt_at(stop))
    assert torch.load(tmp_path / "last.ckpt", weights_only=True)["global_step"] == stop
    train(tmp_path)
    resumed = final_state(tmp_path)
    assert resumed["global_step"] == 10
    assert_same(resumed, straight)


@pytest.mark.parametrize("stop", [3, 4, 8])
def test_validation_in_the_middle_of_an_epoch_is_neither_lost_nor_repeated(
    stop: int, tmp_path: Path
) -> None:
    fits = {"val_every_steps": 4}
    train(tmp_path / "straight", **fits)
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "resumed", **fits, write=interrupt_at(stop))
    train(tmp_path / "resumed", **fits)
    assert_same(final_state(tmp_path / "resumed"), final_state(tmp_path / "straight"))


def test_interruption_waits_for_the_end_of_an_accumulation(tmp_path: Path) -> None:
    """Seven batches with accumulation 3 make 3 steps, resumed or not."""
    fits = {"accumulate": 3}
    lengths = [10] * 18  # fourteen to train on, two in a batch
    _, result = train(tmp_path / "straight", lengths=lengths, **fits)
    assert result.num_steps == 6  # two epochs of three
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "resumed", lengths=lengths, **fits, write=interrupt_at(2))
    train(tmp_path / "resumed", lengths=lengths, **fits)
    assert_same(final_state(tmp_path / "resumed"), final_state(tmp_path / "straight"))


def test_checkpoints_hold_the_drafter_and_plain_values_only(tmp_path: Path) -> None:
    module, _ = train(tmp_path)
    checkpoint = torch.load(tmp_path / "best.ckpt", weights_only=True)
    assert set(checkpoint["state_dict"]) == {
        f"drafter.{name}" for name in module.drafter.state_dict()
    }
    plain = (int, float, str, bool, type(None))
    assert all(isinstance(value, plain) for value in checkpoint["hyper_parameters"].values())


def test_resume_and_warm_start_keep_d2t_with_other_data(tmp_path: Path) -> None:
    """The vocabulary is the first run's, bit for bit, and so are the head's rows."""
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, write=interrupt_at(4))
    before = torch.load(tmp_path / "last.ckpt", weights_only=True)["state_dict"]["drafter.d2t"]
    other = new_drafter(fake_data(LENGTHS, seed=7))
    assert other.d2t is not None
    assert not torch.equal(other.d2t, before)  # the other data would choose otherwise
    module, _ = train(tmp_path, data_seed=7)
    drafter = module.drafter
    assert drafter.d2t is not None and drafter.draft_to_target is not None
    assert torch.equal(drafter.d2t, before)
    ids = drafter.draft_ids(torch.arange(12))
    assert (ids >= 0).nonzero()[:, 0].tolist() == drafter.draft_to_target.tolist()

    saved = save_drafter(drafter, tmp_path / "saved", target=FakeTarget(), training_summary={})
    warm, _ = train(tmp_path / "warm", drafter=trained_drafter(FakeTarget(), saved), data_seed=7)
    assert warm.drafter.d2t is not None
    assert torch.equal(warm.drafter.d2t, before)
    assert warm.drafter.config.inner_norm


def test_training_lowers_the_loss_and_keeps_the_best_weights(tmp_path: Path) -> None:
    module, result = train(tmp_path, max_epochs=12, noise=0.0)
    assert result.train_rows[-1]["loss"] < 0.8 * result.train_rows[0]["loss"]
    assert result.best_row["val_tau"] == max(row["val_tau"] for row in result.val_rows[1:])
    best = torch.load(tmp_path / "best.ckpt", weights_only=True)
    assert best["global_step"] == result.best_row["step"]
    for name, tensor in module.drafter.state_dict().items():
        assert torch.equal(tensor, best["state_dict"][f"drafter.{name}"])


def chains_by_hand(drafter: Eagle1, batch: PackedBatch, depth: int) -> AcceptanceCounts:
    """Draft every supervised row's chain token by token with its own tokens and features."""
    counts = AcceptanceCounts(depth)
    assert drafter.draft_to_target is not None and drafter.attached is not None
    for row in range(len(batch.tokens)):
        start = row - int(batch.positions[row])
        end = start + batch.lengths[int(batch.document[row])]
        tokens, features = (
            next_tokens(batch)[start : row + 1],
            batch.features["top"][start : row + 1],
        )
        for level in range(depth):
            label = row + 2 + level
            if label >= end or not batch.supervised[label]:
                break
            num = len(tokens)
            output = drafter(tokens[None], features[None], torch.arange(num)[None], causal_attend)
            drafted = drafter.draft_to_target[drafter.logits(output[0, -1]).argmax()]
            counts.tried[level] += 1
            if drafted != batch.tokens[label]:
                break
            counts.accepted[level] += 1
            tokens = torch.cat((tokens, drafted[None]))  # its own token …
            features = torch.cat((features, output[0, -1:]))  # … and its own feature
    return counts


def test_validation_is_real_chain_drafting(tmp_path: Path) -> None:
    """The counts of the last validation equal drafting each chain by itself."""
    module, _ = train(tmp_path, max_epochs=6, noise=0.0, learning_rate=3e-2)
    data = fake_data(LENGTHS)
    expected = AcceptanceCounts(3)
    with torch.no_grad():
        for batch in data.train_batches():  # seen texts, so that chains grow
            module.on_validation_epoch_start() if not expected.tried.any() else None
            module.validation_step(batch, 0)
            one = chains_by_hand(module.drafter, batch, 3)
            expected.tried += one.tried
            expected.accepted += one.accepted
    assert module.val_counts.tried.tolist() == expected.tried.tolist()
    assert module.val_counts.accepted.tolist() == expected.accepted.tolist()
    assert expected.accepted[0] > expected.accepted[1] > 0


def test_the_start_is_validated_too(tmp_path: Path) -> None:
    """Step 0's row is what the untrained drafter drafts, and a resumed run keeps it."""
    drafter = new_drafter(fake_data(LENGTHS))
    expected = AcceptanceCounts(3)
    with torch.no_grad():
        for batch in fake_data(LENGTHS).val_dataloader():
            one = chains_by_hand(drafter, batch, 3)
            expected.tried += one.tried
            expected.accepted += one.accepted
    _, result = train(tmp_path, drafter=drafter)
    assert [row["step"] for row in result.val_rows] == [0, 5, 10]
    assert result.val_rows[0]["val_tau"] == expected.expected_tau


def test_a_time_budget_ends_the_run_with_a_validation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a clock that ticks a second whenever it is read."""
    seconds = itertools.count()
    clock = SimpleNamespace(monotonic=lambda: float(next(seconds)))
    monkeypatch.setattr("lightning.pytorch.callbacks.timer.time", clock)
    _, result = train(tmp_path, max_epochs=None, max_minutes=2.0)
    assert result.minutes >= 2.0
    assert result.val_rows[-1]["step"] == result.num_steps
    rates = [row["learning_rate"] for row in result.train_rows]
    assert rates[-1] < 0.2 * max(rates)  # the schedule follows the clock


def test_bfloat16_autocast_trains_float32_weights(tmp_path: Path) -> None:
    module, result = train(tmp_path, precision="bfloat16", max_epochs=8, noise=0.0)
    assert module.drafter.fc.weight.dtype == torch.float32
    assert result.train_rows[-1]["loss"] < result.train_rows[0]["loss"]


def test_schedule_warms_up_and_falls() -> None:
    settings = trainer(warmup_steps=4, schedule="linear", final_learning_rate=0.1)
    assert [settings.learning_rate_factor(step, 0.0) for step in range(5)] == [
        0.25, 0.5, 0.75, 1.0, 1.0
    ]  # fmt: skip
    assert settings.learning_rate_factor(9, 0.5) == pytest.approx(0.55)
    assert settings.learning_rate_factor(9, 2.0) == pytest.approx(0.1)
    cosine = trainer(warmup_steps=0)
    assert cosine.learning_rate_factor(5, 0.5) == pytest.approx(0.5)
    assert trainer(schedule="constant").learning_rate_factor(5000, 0.9) == 1.0


def test_noise_is_uniform_and_a_function_of_seed_epoch_and_batch() -> None:
    drafter = new_drafter(fake_data(LENGTHS))
    module, clean = Eagle1Module(drafter, trainer(noise=0.1)), torch.zeros(400, 16)
    noise = module._with_noise(clean, 3)
    assert noise.abs().max() <= 0.1
    # 6400 draws: the mean is within 5 standard errors (chance of a false alarm below 1e-6)
    assert abs(float(noise.mean())) < 5 * 0.1 / 3**0.5 / 80
    assert torch.equal(noise, module._with_noise(clean, 3))
    assert not torch.equal(noise, module._with_noise(clean, 4))


def test_a_loss_that_explodes_names_the_learning_rate(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="learning_rate"):
        train(tmp_path, learning_rate=1e30, warmup_steps=0)


def test_a_training_too_short_for_a_validation_is_refused_before_it_starts(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="val_every_steps=11.* 10 "):
        train(tmp_path, val_every_steps=11)
    assert not list(tmp_path.glob("*.ckpt"))


def test_settings_that_cannot_be_are_named() -> None:
    with pytest.raises(UserError, match=r"trainer\.max_epochs.*trainer\.max_minutes"):
        trainer(max_epochs=None, max_minutes=None)
    for name, value in (
        ("max_minutes", 0.0), ("checkpoint_minutes", -1.0), ("ttt_steps", 0), ("max_length", 2),
        ("batch_tokens", 0), ("learning_rate", 0.0),
    ):  # fmt: skip
        with pytest.raises(UserError, match=rf"trainer\.{name}={value}"):
            trainer(**{name: value})
    for name, value, nearest in (
        ("precision", "bfloat", "bfloat16"), ("schedule", "cosin", "cosine"),
        ("supervise", "answer", "answers"), ("save_precision", "float3", "float32"),
    ):  # fmt: skip
        with pytest.raises(UserError, match=rf"trainer\.{name} '{value}'.*'{nearest}'"):
            trainer(**{name: value})
