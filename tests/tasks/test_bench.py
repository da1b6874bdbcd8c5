"""`+experiment=bench` and `+experiment=sweep` on the tiny target: files, resuming, clear errors."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

import pytest
import torch

from eagle_lab import run
from eagle_lab.bench import runner
from eagle_lab.catalog import options
from eagle_lab.config import compose
from eagle_lab.drafters import folder as drafter_folders
from eagle_lab.drafters.checkpoint import save_drafter
from eagle_lab.drafters.folder import weights_digest
from eagle_lab.errors import UserError
from eagle_lab.methods.build import place_of
from eagle_lab.methods.sizes import PAPER, DraftSizes
from eagle_lab.methods.sizes import SMALL as SMALL_SIZES
from eagle_lab.reports import make_report
from eagle_lab.reports.findings import REPLAYED
from eagle_lab.reports.load import collect_jobs, unfinished_jobs
from eagle_lab.runs import job
from eagle_lab.targets.load import load_target
from eagle_lab.targets.tiny import tiny_random
from eagle_lab.tasks import bench, sweep
from tests.drafters.fakes import eagle1

SMALL = (
    "target=tiny_random",
    "device=cpu",
    "eval.num_questions=2",
    "eval.max_new_tokens=6",
    "eval.timing=false",
    "eval.batch_size=2",
)
TREE = ("tree.depth=2", "tree.width=2", "tree.num_nodes=4")


@pytest.fixture(scope="module")
def drafter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained drafter for the tiny target."""
    target = load_target("tiny_random", device="cpu")
    folder = tmp_path_factory.mktemp("drafters") / "untrained"
    return save_drafter(eagle1(target), folder, target=target, training_summary={})


@pytest.fixture
def no_shipped_drafter(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty place where the package's own drafters would lie."""
    folder = tmp_path / "shipped"
    monkeypatch.setattr(drafter_folders, "SHIPPED_DRAFTERS", folder)
    return folder


def table(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def generations(folder: Path) -> list[dict]:
    lines = (folder / "generations.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def tiny_folder(folder: Path) -> Path:
    """The tiny target as a Hugging Face folder."""
    model, tokenizer = tiny_random()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def config(folder: Path, *overrides: str, experiment: str = "bench"):
    return compose([f"+experiment={experiment}", *SMALL, f"output_dir={folder}", *overrides])


def test_every_method_of_the_default_bench_equals_vanilla(tmp_path: Path, drafter: Path) -> None:
    folder = tmp_path / "run"
    bench.run(config(folder, *TREE, f"drafter.path={drafter}"))
    summary = {row["method"]: row for row in table(folder / "summary.csv")}
    names = "vanilla self_speculation prompt_lookup eagle_chain eagle_static eagle_dynamic"
    assert list(summary) == names.split()
    assert {row["greedy_match_rate"] for row in summary.values()} == {"1.0"}
    assert summary["vanilla"]["tau_micro"] == "1.0"
    assert summary["self_speculation"]["tau_micro"] == "5.0"
    dynamic = summary["eagle_dynamic"]
    assert (dynamic["depth"], dynamic["width"], dynamic["num_nodes"]) == ("2", "2", "4")
    assert (dynamic["drafter"], dynamic["drafter_matches_target"]) == (str(drafter), "true")
    assert (summary["eagle_static"]["depth"], summary["eagle_static"]["num_nodes"]) == ("4", "8")
    assert summary["vanilla"]["drafter"] == summary["vanilla"]["tokens_per_second"] == ""
    assert len(generations(folder)) == 6 * 2 * 2
    totals = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    assert totals["num_mismatches"] == 0
    assert 0 <= totals["logit_noise"]["max_difference"] < 1e-3
    provenance = json.loads((folder / "provenance.json").read_text(encoding="utf-8"))
    assert provenance["end"]
    assert provenance["prompts_sha256"]
    assert not list(folder.glob("*.partial"))


@pytest.mark.parametrize(("device", "sizes"), [("cpu", SMALL_SIZES), ("cuda", PAPER)])
def test_sizes_follow_the_device_and_are_said(
    device: str,
    sizes: DraftSizes,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(job, "choose_device", lambda asked: torch.device(device))
    asked = compose(["+experiment=bench", "tree.width=3"])
    with caplog.at_level("INFO", logger="eagle_lab"):
        entries = job.entries_from(asked)
    tree = {"depth": sizes.depth, "width": 3, "num_nodes": sizes.num_nodes}
    assert {name: entries["eagle_dynamic"][name] for name in tree} == tree
    assert {name: asked.tree[name] for name in tree} == tree
    assert entries["eagle_static"]["paths"] == sizes.paths
    assert f"num_nodes {sizes.num_nodes}" in caplog.text and "width" not in caplog.text
    explicit = job.entries_from(compose(["+experiment=bench", "tree=paper"]))
    assert (explicit["eagle_dynamic"]["num_nodes"], explicit["eagle_static"]["paths"]) == (59, None)


def test_settings_of_one_method_are_rows_of_their_own(tmp_path: Path, drafter: Path) -> None:
    """Equal sizes, other confidences: told apart by all settings, also when a run goes on."""
    stops = "method.eagle_dynamic.stop_confidence=[0.0,0.9]"
    chosen = ("method=[eagle_dynamic]", stops, f"drafter.path={drafter}", "eval.turns=1")
    bench.run(config(tmp_path / "run", *TREE, *chosen))
    _, never, always = table(tmp_path / "run" / "summary.csv")
    assert [json.loads(row["settings"])["stop_confidence"] for row in (never, always)] == [0.0, 0.9]
    assert float(never["drafted_per_cycle"]) > float(always["drafted_per_cycle"]) == 0
    written = [row for row in generations(tmp_path / "run") if row["method"] == "eagle_dynamic"]
    assert {row["settings"]["stop_confidence"] for row in written} == {0.0, 0.9}
    assert len({place_of(row) for row in written}) == len(written) == 4


def test_a_timed_bench_has_speeds_and_intervals(tmp_path: Path) -> None:
    timed = ("eval.timing=true", "eval.batch_size=1", "eval.warmup=1", "eval.num_questions=5")
    bench.run(config(tmp_path / "run", *timed, "method=[prompt_lookup]"))
    rows = table(tmp_path / "run" / "summary.csv")
    assert [row["method"] for row in rows] == ["vanilla", "prompt_lookup"]  # always added, first
    for row in rows:
        for name in ("tokens_per_second", "draft_ms", "verify_ms", "ttft_ms", "itl_p95_ms"):
            assert float(row[name]) >= 0
        assert float(row["speedup_low"]) <= float(row["speedup"]) <= float(row["speedup_high"])
        assert float(row["tokens_per_second"]) < float(row["decode_tokens_per_second"]) * 6 / 5
    assert rows[0]["speedup"] == "1.0"
    vanilla = [row for row in generations(tmp_path / "run") if row["method"] == "vanilla"]
    seconds = sum(row["prefill_s"] + row["decode_s"] for row in vanilla)
    tokens = sum(len(row["tokens"]) for row in vanilla)
    assert float(rows[0]["tokens_per_second"]) == pytest.approx(tokens / seconds)


def test_a_killed_bench_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = config(tmp_path / "run", "method=[vanilla,prompt_lookup]", "eval.batch_size=1")
    real, calls = runner.decode, []

    def decode(*arguments, **options):
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return real(*arguments, **options)

    monkeypatch.setattr(runner, "decode", decode)
    with pytest.raises(KeyboardInterrupt):
        bench.run(asked)
    assert (tmp_path / "run" / "generations.jsonl.partial").is_file()
    assert not (tmp_path / "run" / "summary.csv").exists()
    bench.run(asked)
    assert len(calls) == 4 + (8 - 3)
    assert len(generations(tmp_path / "run")) == 8
    bench.run(asked)
    assert len(calls) == 9  # finished: nothing to do


def test_a_tree_with_too_small_a_pool_is_a_row(
    tmp_path: Path, drafter: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = ("tree.depth=1", "tree.width=2", "tree.num_nodes=9")
    bench.run(config(tmp_path / "run", *sizes, "method=[eagle_dynamic]", f"drafter.path={drafter}"))
    vanilla, dynamic = table(tmp_path / "run" / "summary.csv")
    assert vanilla["status"] == "ok"
    assert (dynamic["status"], dynamic["num_nodes"], dynamic["tau_micro"]) == (
        "infeasible",
        "9",
        "",
    )
    assert "2 candidates" in dynamic["reason"]
    assert dynamic["reason"] in capsys.readouterr().out
    assert (tmp_path / "run" / "report.html").is_file()


def test_peers_run_beside_our_methods(tmp_path: Path) -> None:
    names = "vanilla,hf_generate,hf_prompt_lookup,hf_assisted"
    timed = ("eval.batch_size=1", "eval.timing=true", "eval.warmup=1", "eval.turns=1")
    draft = f"method.hf_assisted.draft_model={tiny_folder(tmp_path / 'draft')}"
    fixed = "method.hf_assisted.stop_confidence=0"
    asked = config(tmp_path / "run", f"method=[{names}]", draft, fixed, *timed)
    bench.run(asked)
    rows = {row["method"]: row for row in table(tmp_path / "run" / "summary.csv")}
    assert list(rows) == names.split(",")
    assert {row["greedy_match_rate"] for row in rows.values()} == {"1.0"}
    assert rows["hf_generate"]["tau_micro"] == "1.0"
    assert float(rows["hf_assisted"]["tau_micro"]) > 2  # the target's own weights
    assert rows["hf_assisted"]["drafter"] == str(tmp_path / "draft")
    for name in names.split(",")[1:]:
        assert float(rows[name]["tokens_per_second"]) > 0
        assert float(rows[name]["speedup"]) > 0
        assert rows[name]["draft_ms"] == rows[name]["verify_ms"] == rows[name]["overhead_ms"] == ""
    written = generations(tmp_path / "run")
    assert [row["draft_s"] for row in written if row["method"] == "hf_generate"] == [None, None]
    make_report(tmp_path / "run")


def test_a_run_with_peers_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    timed = ("eval.batch_size=1", "eval.timing=true", "eval.warmup=0", "eval.turns=1")
    asked = config(tmp_path / "run", "method=[vanilla,hf_generate]", *timed)
    monkeypatch.setattr(bench, "evaluate", lambda *arguments: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        bench.run(asked)
    monkeypatch.undo()
    bench.run(asked)
    peer = table(tmp_path / "run" / "summary.csv")[1]
    assert (peer["method"], peer["draft_ms"]) == ("hf_generate", "")


def test_peers_that_decode_one_prompt_at_a_time_are_infeasible_in_batches(tmp_path: Path) -> None:
    bench.run(config(tmp_path / "run", "method=[hf_generate,hf_prompt_lookup]", "eval.turns=1"))
    _, plain, lookup = table(tmp_path / "run" / "summary.csv")
    assert (plain["status"], plain["greedy_match_rate"]) == ("ok", "1.0")
    assert lookup["status"] == "infeasible"
    assert "hf_prompt_lookup" in lookup["reason"]


def test_a_comparison_of_all_methods_holds_all_there_are(tmp_path: Path) -> None:
    asked = compose(["+experiment=compare_methods", f"output_dir={tmp_path}"])
    assert set(asked.method) == set(options("method"))


def test_methods_that_lack_something_are_left_out_of_a_comparison(
    tmp_path: Path, no_shipped_drafter: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few = "method=[vanilla,prompt_lookup,eagle_chain,hf_assisted]"
    asked = config(tmp_path / "run", few, "eval.turns=1", experiment="compare_methods")
    bench.run(asked)
    names = [row["method"] for row in table(tmp_path / "run" / "summary.csv")]
    assert names == ["vanilla", "prompt_lookup"]
    said = " ".join(capsys.readouterr().out.split())
    assert "eagle_chain" in said and "hf_assisted" in said and "draft_model.path" in said


def test_a_method_without_its_drafter_says_how_to_get_one(
    tmp_path: Path, no_shipped_drafter: Path
) -> None:
    with pytest.raises(UserError, match=r"eagle_chain.*tiny_random.*drafter\.path=.*train"):
        bench.run(config(tmp_path / "run", "method=[eagle_chain]"))
    assert not (tmp_path / "run").exists()


def test_the_drafter_of_the_package_is_found_by_its_target(
    tmp_path: Path, no_shipped_drafter: Path, drafter: Path
) -> None:
    no_shipped_drafter.mkdir()
    (no_shipped_drafter / "tiny").symlink_to(drafter, target_is_directory=True)
    bench.run(config(tmp_path / "run", "method=[eagle_chain]", "eval.turns=1"))
    assert table(tmp_path / "run" / "summary.csv")[1]["drafter"] == "tiny"
    provenance = json.loads((tmp_path / "run" / "provenance.json").read_text())
    assert provenance["drafters"] == {"tiny": weights_digest(drafter)}


def test_a_drafter_for_another_target_is_marked(tmp_path: Path, drafter: Path) -> None:
    other = config(
        tmp_path / "run",
        "target.tied_head=true",
        "method=[eagle_chain]",
        "eval.turns=1",
        f"drafter.path={drafter}",
    )
    with pytest.warns(UserWarning, match="trained for"):
        bench.run(other)
    row = table(tmp_path / "run" / "summary.csv")[1]
    assert (row["drafter_matches_target"], row["greedy_match_rate"]) == ("false", "1.0")


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("+method.prompt_lookup.n_mx=2", ["n_mx", "n_max"]),
        ("+method.prompt_lokup.n_max=2", ["prompt_lokup", "Did you mean 'prompt_lookup'"]),
        ("method.prompt_lookup.n_min=7", ["n_min=7"]),
        ("method.prompt_lookup.n_min=two", ["method.prompt_lookup.n_min=two", "a whole number"]),
        ("method.prompt_lookup.n_min=true", ["n_min=True", "a whole number"]),
        ("method.prompt_lookup.n_max=2.5", ["n_max=2.5", "a whole number"]),
        ("eval.batch_size=0", ["eval.batch_size=0"]),
        ("eval.temperature=-1", ["temperature=-1"]),
        ("eval.max_new_tokens=3000", ["question", "2048"]),
        ("eval.num_questions=1000", ["1000"]),
        ("eval.prompts=/nowhere/file.jsonl", ["/nowhere/file.jsonl"]),
    ],
)
def test_a_mistake_is_named_and_leaves_no_folder(
    tmp_path: Path, override: str, words: list[str]
) -> None:
    with pytest.raises(UserError) as error:
        bench.run(config(tmp_path / "run", "method=[vanilla,prompt_lookup]", override))
    assert all(word in str(error.value) for word in words), error.value
    assert not (tmp_path / "run").exists()


def test_sampling_has_no_match_rate(tmp_path: Path) -> None:
    bench.run(config(tmp_path / "run", "eval.temperature=1", "method=[prompt_lookup]"))
    assert [row["greedy_match_rate"] for row in table(tmp_path / "run" / "summary.csv")] == ["", ""]
    assert table(tmp_path / "run" / "divergences.csv") == []


def test_a_replay_and_turns_that_no_question_has_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    overrides = ("eval.replay=true", "eval.turns=5", "method=[prompt_lookup]")
    bench.run(config(tmp_path / "run", *overrides))
    printed = " ".join(capsys.readouterr().out.split())
    assert "eval.turns=5" in printed
    assert printed.count(REPLAYED) == 1
    assert REPLAYED in (tmp_path / "run" / "report.md").read_text("utf-8")
    bench.run(config(tmp_path / "decoded", "method=[prompt_lookup]"))
    printed = " ".join(capsys.readouterr().out.split())
    assert "eval.turns" not in printed and REPLAYED not in printed


def test_the_grid_in_one_process(tmp_path: Path, drafter: Path) -> None:
    grid = ("grid.depth=[1,2]", "grid.width=[2]", "grid.num_nodes=[2,4]", "eval.turns=1")
    asked = config(tmp_path / "run", *grid, f"drafter.path={drafter}", experiment="sweep")
    sweep.run(asked)
    rows = table(tmp_path / "run" / "sweep.csv")
    sizes = [(row["depth"], row["num_nodes"], row["status"]) for row in rows[1:]]
    ok, impossible = "ok", "infeasible"
    assert sizes == [("1", "2", ok), ("1", "4", impossible), ("2", "2", ok), ("2", "4", ok)]
    assert rows[0]["method"] == "vanilla"
    assert {row["greedy_match_rate"] for row in rows} == {"1.0", ""}
    vanilla = [row for row in generations(tmp_path / "run") if row["method"] == "vanilla"]
    assert len(vanilla) == 2  # once, not once for each setting


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("grid.method=eagle_dynamc", "Did you mean 'eagle_dynamic'"),
        ("grid.method=vanilla", "has no depth"),
        ("grid.width=[]", "grid.width is empty"),
    ],
)
def test_an_impossible_grid_is_named(
    tmp_path: Path, drafter: Path, override: str, words: str
) -> None:
    asked = config(tmp_path / "run", f"drafter.path={drafter}", override, experiment="sweep")
    with pytest.raises(UserError, match=words):
        sweep.run(asked)


def test_the_grid_as_a_multirun(
    tmp_path: Path, drafter: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "grid"
    arguments = ("tree.depth=1,2", "tree.width=2", "tree.num_nodes=2,4", "eval.turns=1")
    words = [*SMALL, *arguments, f"drafter.path={drafter}", f"output_dir={root}"]
    monkeypatch.setattr(sys, "argv", ["run", "+experiment=bench", "+sweep=tree_grid", *words])
    monkeypatch.chdir(tmp_path)
    assert run.main() == 0
    rows = table(root / "sweep.csv")
    assert [row["job"] for row in rows] == [job for job in "0123" for _ in range(2)]
    assert [row["status"] for row in rows if row["method"] == "eagle_dynamic"] == [
        "ok", "infeasible", "ok", "ok",
    ]  # fmt: skip
    assert {row["method"] for row in rows} == {"vanilla", "eagle_dynamic"}
    (root / "3" / "summary.csv").unlink()
    assert unfinished_jobs(root) == ["3"]
    assert set(collect_jobs(root)["job"]) == {"0", "1", "2"}


def test_nothing_to_collect_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "0").mkdir()
    with pytest.raises(UserError, match=r"summary\.csv"):
        collect_jobs(tmp_path)
