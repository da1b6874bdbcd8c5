"""The whole road on the tiny target: every step leaves its results, and a second call adds none."""

import json

import pandas as pd
import pytest
import yaml

from eagle_lab.config import compose
from eagle_lab.drafters import folder as drafter_folders
from eagle_lab.drafters.checkpoint import load_drafter, save_drafter
from eagle_lab.errors import UserError
from eagle_lab.targets.load import load_target
from eagle_lab.tasks import quickstart, report
from tests.drafters.fakes import eagle1

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
    save_drafter(eagle1(target), folder / "tiny_eagle1", target=target, training_summary={})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drafter_folders, "SHIPPED_DRAFTERS", folder)
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


def test_what_the_bench_measured_of_a_drafter_enters_its_model_card(root):
    """Rows of the fresh drafter alone, once however often they are added."""
    folder = root / "train" / "drafter"
    asked = compose(["+experiment=report", f"report.run={root / 'bench'}", f"report.card={folder}"])
    report.run(asked)
    report.run(asked)
    card = (folder / "README.md").read_text()
    bench = pd.read_csv(root / "bench" / "summary.csv").set_index("method")
    rows = [line for line in card.splitlines() if line.startswith("| eagle_")]
    assert [row.split(" | ")[0] for row in rows] == ["| eagle_chain", "| eagle_dynamic"]
    assert f" | {bench.tau_micro['eagle_dynamic']:.2f}" in rows[1]
    assert f" | {bench.tau_macro['eagle_dynamic']:.2f} [" in rows[1]
    front = yaml.safe_load(card.split("---")[1])
    [result] = front["model-index"][0]["results"]
    assert result["dataset"]["name"] == "bench80"
    assert "evaluation" in json.loads((folder / "config.json").read_text())
    assert load_drafter(folder, load_target("tiny_random", device="cpu"))[1]


def test_a_bench_of_other_weights_does_not_enter_a_card(root, tmp_path):
    target = load_target("tiny_random", device="cpu")
    other = eagle1(target, seed=1)
    folder = save_drafter(other, tmp_path / "other", target=target, training_summary={})
    asked = [f"report.run={root / 'bench'}", f"report.card={folder}"]
    with pytest.raises(UserError, match="tiny_eagle1"):
        report.run(compose(["+experiment=report", *asked]))
    assert not (folder / "README.md").exists()
