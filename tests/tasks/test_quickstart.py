"""The whole road on the tiny target: every step leaves its results, and a second call adds none."""

import json

import pandas as pd
import pytest
import torch

from eagle_lab.config import compose
from eagle_lab.drafters import shipped
from eagle_lab.drafters.checkpoint import save_drafter
from eagle_lab.drafters.eagle1 import Eagle1, Eagle1Config
from eagle_lab.models.load import load_target
from eagle_lab.tasks import quickstart

SMALL = [
    "+experiment=quickstart",
    "target=tiny_random",
    "data.num_tokens=600",
    "data.max_new_tokens=12",
    "data.batch_size=16",
    "trainer.max_minutes=null",
    "trainer.max_epochs=1",
    "trainer.val_every_steps=1",
    "trainer.val_fraction=0.2",
    "drafter.draft_vocab_size=100",
    "eval.num_questions=8",
    "eval.max_new_tokens=8",
    "eval.warmup=1",
    "grid.depth=[2]",
    "grid.width=[1,2]",
    "grid.num_nodes=[4]",
]


@pytest.fixture(scope="module")
def package_with_a_drafter(tmp_path_factory):
    """As if a drafter for the tiny target came with the package."""
    folder = tmp_path_factory.mktemp("shipped")
    target = load_target("tiny_random", device="cpu")
    torch.manual_seed(0)
    network = Eagle1(Eagle1Config.from_target(target))
    save_drafter(network, folder / "tiny_eagle1", target=target, training_summary={})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shipped, "SHIPPED_DRAFTERS", folder)
        yield


@pytest.fixture(scope="module")
def root(tmp_path_factory, package_with_a_drafter):
    folder = tmp_path_factory.mktemp("quickstart")
    quickstart.run(compose([*SMALL, f"output_dir={folder / 'run'}"]))
    return folder / "run"


def test_every_step_leaves_its_results(root):
    assert (root / "capture" / "index.json").is_file()
    assert (root / "train" / "drafter" / "model.safetensors").is_file()
    bench = pd.read_csv(root / "bench" / "summary.csv")
    fresh = {"eagle_chain", "eagle_dynamic"}
    own = {"eagle_chain_shipped", "eagle_dynamic_shipped"}
    assert set(bench.method) == {"vanilla", "prompt_lookup"} | fresh | own
    drafters = bench.set_index("method").drafter
    assert set(drafters[list(fresh)]) == {str(root / "train" / "drafter")}
    assert set(drafters[list(own)]) == {"tiny_eagle1"}
    assert (bench.greedy_match_rate.dropna() == 1.0).all()
    assert bench.drafter_matches_target.dropna().all()
    sweep = pd.read_csv(root / "sweep" / "sweep.csv")
    assert len(sweep[sweep.method == "eagle_dynamic"]) == 2  # one of them infeasible
    for step in ("train", "bench", "sweep"):
        assert (root / step / "report.html").stat().st_size > 1000


def test_a_second_call_finds_everything_done(root):
    before = json.loads((root / "bench" / "provenance.json").read_text())
    quickstart.run(compose([*SMALL, f"output_dir={root}"]))
    assert json.loads((root / "bench" / "provenance.json").read_text()) == before
