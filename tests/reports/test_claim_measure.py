"""A finished run becomes measured.csv and provenance.json: its lines, and nothing private."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from eagle_lab.config import compose
from eagle_lab.errors import UserError
from eagle_lab.reports import load_run
from eagle_lab.reports.acceptance import calibration, expected_calibration_error
from eagle_lab.reports.claims.claim import Claim, load_claim
from eagle_lab.reports.claims.compare import compare, hardware
from eagle_lab.reports.claims.measure import add_run, evaluation_of, publishable, without_paths
from eagle_lab.tasks import report
from tests.reports.claim_folder import CLAIM, write_unmeasured
from tests.reports.fake_run import (
    BENCH,
    eagle,
    make_rows,
    write_bench,
    write_config,
    write_sweep,
)

OURS = "SmolLM2-135M-Instruct"
TREES = "source,benchmark,temperature,method,tau,speedup\nx,bench80,0,eagle_dynamic,2,\n"


def about(root: Path, expected: str, table: str = "summary", more: str = "") -> Claim:
    """A claim with these lines of expected.csv, not measured yet."""
    described = f"{CLAIM}table: {table}\n{more}"
    return load_claim(write_unmeasured(root, expected=expected, claim=described), "trees")


def again(claim: Claim) -> Claim:
    return load_claim(claim.folder.parent, claim.name)


def test_lines_of_a_bench_that_belong_to_the_claim(tmp_path: Path, bench_run: Path):
    claim = about(tmp_path, TREES)
    assert add_run(claim, bench_run) == 1
    (row,) = again(claim).measured.to_dict("records")
    (truth,) = load_run(bench_run).summary.query("method == 'eagle_dynamic'").to_dict("records")
    assert (row["run"], row["target"], row["benchmark"]) == ("run", OURS, "bench80")
    assert (row["depth"], row["width"], row["num_nodes"]) == (6, 10, 32)
    for ours, theirs in (("tau", "tau_macro"), ("tau_low", "tau_macro_low"), ("speedup", "speedup"),
                         ("tau_micro", "tau_micro"), ("num_cycles", "num_cycles")):  # fmt: skip
        assert row[ours] == pytest.approx(truth[theirs], rel=1e-6)
    assert compare(again(claim))["measured"].notna().all()


def test_ties_are_counted_where_a_bench_judged_them(tmp_path: Path, bench_run: Path):
    """The run has one tie, of eagle_dynamic; a sampled run was never held against vanilla."""
    lines = "x,bench80,0,eagle_dynamic,2\nx,bench80,0,eagle_chain,2\nx,bench80,1,eagle_chain,2\n"
    claim = about(tmp_path, "source,benchmark,temperature,method,tau\n" + lines)
    add_run(claim, bench_run)
    pair = [BENCH[0], BENCH[3]]  # too few methods for a tie
    add_run(again(claim), write_bench(tmp_path / "exact", pair, num_questions=8))
    add_run(again(claim), write_bench(tmp_path / "sampled", pair, temperature=1.0))
    found = again(claim).measured.set_index(["run", "method"])["num_ties"]
    assert found["run"].to_dict() == {"eagle_dynamic": 1, "eagle_chain": 0}
    assert found["exact", "eagle_chain"] == 0 and np.isnan(found["sampled", "eagle_chain"])


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_peak_memory_is_published_of_a_gpu_alone(tmp_path: Path, device: str):
    run = write_bench(tmp_path / "run", [BENCH[0], BENCH[5]])
    path = run / "provenance.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"device": device}), "utf-8")
    claim = about(tmp_path, TREES)
    add_run(claim, run)
    assert ("peak_memory_mb" in again(claim).measured) is (device == "cuda")


def test_measuring_again_replaces_a_runs_lines_and_keeps_the_others(
    tmp_path: Path, bench_run: Path
):
    claim = about(tmp_path, TREES)
    other = write_bench(tmp_path / "runs" / "other", [BENCH[0], BENCH[5]], num_questions=8)
    add_run(claim, bench_run)
    first = claim.folder.joinpath("measured.csv").read_text()
    add_run(again(claim), other)
    add_run(again(claim), bench_run)
    assert again(claim).measured["run"].tolist() == ["other", "run"]
    assert set(again(claim).provenance) == {"other", "run"}
    assert len(again(claim).measured) == 2 and len(first.splitlines()) == 2


def test_every_feasible_setting_of_a_sweep_and_the_machine_of_its_jobs(
    tmp_path: Path, sweep_root: Path, one_process_sweep: Path
):
    for number, sweep in enumerate((sweep_root, one_process_sweep)):
        claim = about(tmp_path / str(number), TREES)
        assert add_run(claim, sweep) == 20
        sizes = again(claim).measured[["depth", "width", "num_nodes"]]
        assert not sizes.duplicated().any() and sizes.notna().all(axis=None)
        assert set(again(claim).measured["target"]) == {OURS}
    root = write_sweep(tmp_path / "sweep", [(2, 2, 4)])
    path = root / "provenance.json"
    unknown = {"device": "auto", "device_name": None, "torch_threads": None}
    path.write_text(json.dumps(json.loads(path.read_text()) | unknown), "utf-8")
    claim = about(tmp_path / "claims", TREES)
    add_run(claim, root)
    assert hardware(again(claim)).startswith("AMD EPYC, 2 cores, float32")


def test_a_training_against_time(tmp_path: Path):
    run = tmp_path / "train"
    run.mkdir()
    write_config(run, "train", finished=True)
    head = "step,minutes,val_tau,val_acceptance_1"
    (run / "summary.csv").write_text(f"{head}\n10,0.5,1.25,0.2\n20,1.004,1.5,0.4\n")
    claim = about(tmp_path, "source,benchmark,method,tau,val_tau\nx,held_out,eagle_chain,,\n")
    assert add_run(claim, run) == 2
    measured = again(claim).measured
    assert measured["training_minutes"].tolist() == [0.5, 1.0]
    assert measured["val_tau"].tolist() == [1.25, 1.5]
    write_config(run, "train_draft", finished=True)  # a draft model's chains are no drafter's
    with pytest.raises(UserError, match="speculative"):
        add_run(claim, run)


def test_n_alpha_of_a_chain(tmp_path: Path, bench_run: Path):
    """A cycle cut by the end of the text is no trial beyond what it emitted."""
    lines = [f"x,eagle_chain,{place},0.7" for place in range(5)]
    expected = "\n".join(["source,method,draft_position,acceptance", *lines, ""])
    claim = about(tmp_path, expected, "acceptance")
    assert add_run(claim, bench_run) == 5
    ends = [
        pair
        for row in make_rows(BENCH[3])
        for pair in zip(row["accepted_lengths"], row["emitted_lengths"], strict=True)
    ]
    for place, line in enumerate(again(claim).measured.to_dict("records")):
        successes = sum(kept > place for kept, _ in ends)
        trials = successes + sum(kept == place and new > kept for kept, new in ends)
        assert line["acceptance"] == pytest.approx(successes / trials, rel=1e-6)
        assert line["num_trials"] == trials
        assert line["acceptance_low"] < line["acceptance"] < line["acceptance_high"]


def generations(**columns: list) -> pd.DataFrame:
    return pd.DataFrame({"label": ["a"] * len(columns["question_id"]), **columns})


def test_calibration_by_hand():
    """Bins of 0.05; 0.15 opens a bin although 0.15 / 0.05 is 2.999…, and 1 is in the last one."""
    frame = calibration(
        generations(
            question_id=[1, 2],
            draft_confidences=[[0.15, 0.19, 1.0], [0.16, 0.97, 0.0]],
            draft_accepted=[[1, 0, 1], [0, 1, 0]],
        )
    )
    assert frame["confidence_from"].tolist() == [0.0, 0.15, 0.95]
    assert frame["confidence_to"].tolist() == [0.05, 0.2, 1.0]
    assert frame["num_trials"].tolist() == [1, 3, 2]
    np.testing.assert_allclose(frame["acceptance"], [0, 1 / 3, 1])
    np.testing.assert_allclose(frame["mean_confidence"], [0, 0.5 / 3, 1.97 / 2])
    assert frame["acceptance_low"].isna().all()  # of two questions
    # Distances 0 of one, 1/6 of three and 0.015 of two tokens
    assert expected_calibration_error(frame) == pytest.approx((3 * 1 / 6 + 2 * 0.015) / 6)


def test_calibration_of_a_drafter_that_is_calibrated():
    """20,000 tokens accepted with their confidence: 20 bins within 0.07 of their mean.

    A bin holds 1000 +- 100 tokens, 0.07 is more than 4 standard deviations: a false alarm in
    less than 1 of 700 runs. The error is a mean of 20 such distances, 0.010 +- 0.002.
    """
    random = np.random.default_rng(0)
    confidences = random.random((100, 200))
    accepted = (random.random((100, 200)) < confidences).astype(int)
    frame = calibration(
        generations(
            question_id=list(range(100)),
            draft_confidences=confidences.tolist(),
            draft_accepted=accepted.tolist(),
        )
    )
    assert (frame["acceptance"] - frame["mean_confidence"]).abs().max() < 0.07
    assert 0.002 < expected_calibration_error(frame) < 0.018
    frame["mean_confidence"] = 1 - frame["mean_confidence"]
    assert expected_calibration_error(frame) > 0.4


def test_calibration_of_a_run(tmp_path: Path):
    run = write_bench(tmp_path / "run", [BENCH[0], eagle("eagle_dynamic", 0.6, 6, 10, 32)])
    lines = "x,eagle_dynamic,0.9,0.95,0.9\nx,eagle_dynamic,0.1,0.15,0.1\n"
    head = "source,method,confidence_from,confidence_to,acceptance\n"
    claim = about(tmp_path, head + lines, "calibration")
    with pytest.raises(UserError, match="eval.record_confidence=true"):
        add_run(claim, run)
    path = run / "generations.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows:
        noted = row["method"] == "eagle_dynamic"
        row |= {"draft_confidences": [0.12, 0.93] * noted, "draft_accepted": [0, 1] * noted}
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert add_run(claim, run) == 2
    measured = again(claim).measured
    assert measured["acceptance"].tolist() == [0, 1]
    assert measured["mean_confidence"].tolist() == [0.12, 0.93]
    assert measured["num_nodes"].tolist() == [32, 32]


def test_chains_stand_beside_what_the_formula_makes_of_the_run(tmp_path: Path):
    run = write_bench(tmp_path / "run", [BENCH[0], BENCH[3], BENCH[5]])
    head = "source,target,method,num_draft_tokens,tau_micro,decode_speedup,speedup\n"
    lines = f"a paper,vicuna-7b,eagle_chain,5,,,3\nformula,{OURS},eagle_chain,5,,,\n"
    held = "tolerance: {tau_micro: {relative: 0.1}, decode_speedup: {relative: 0.1}}\n"
    claim = about(tmp_path / "claims", head + lines, "formula", f"target: {OURS}\n{held}")
    with pytest.raises(UserError, match="speculative"):
        add_run(claim, run)
    (truth,) = load_run(run).summary.query("method == 'eagle_chain'").to_dict("records")
    tau = truth["tau_micro"]
    entry = {
        "method": "eagle_chain", "depth": 5, "width": None, "num_nodes": 5, "num_draft_tokens": 5,
        "alpha": 0.5, "acceptance": 0.5, "acceptance_low": 0.4, "acceptance_high": 0.6,
        "tau_micro": tau, "tau_micro_low": tau - 0.1, "tau_micro_high": tau + 0.1,
        "predicted_tau_micro": 1.05 * tau, "decode_speedup": 0.8, "decode_speedup_low": 0.7,
        "decode_speedup_high": 0.9, "predicted_decode_speedup": 0.9,
    }  # fmt: skip
    (run / "summary.json").write_text(json.dumps({"formula": [entry]}), "utf-8")
    assert add_run(claim, run) == 1
    found = compare(again(claim)).set_index("quantity")
    assert found.loc["tau_micro", "expected"] == pytest.approx(1.05 * tau, rel=1e-6)
    assert found.loc["tau_micro", "measured"] == pytest.approx(tau, rel=1e-6)
    assert found.loc["decode_speedup", "measured_low"] == 0.7
    assert found.loc[["tau_micro", "decode_speedup"], "within_tolerance"].tolist() == ["yes", "no"]
    assert found.loc["tau_micro", "source"] == "formula"
    assert found.loc["speedup", "expected"].tolist()[0] == 3  # the paper's stands first
    speedup = found.loc["speedup", "measured"].tolist()[-1]
    assert speedup == pytest.approx(truth["speedup"], rel=1e-6)


def test_a_claim_by_category_has_each_category_and_all_of_them(tmp_path: Path, bench_run: Path):
    lines = "a paper,prompt_lookup,all,1.6\nx,prompt_lookup,coding,\nx,eagle_dynamic,,\n"
    claim = about(tmp_path, "source,method,category,tau\n" + lines, "categories")
    assert add_run(claim, bench_run) == 2 + 9
    measured = again(claim).measured
    lookup = measured[measured["method"] == "prompt_lookup"].set_index("category")
    assert set(lookup.index) == {"all", "coding"}
    run = load_run(bench_run)
    for category, table in (("coding", run.by_category), ("all", run.summary)):
        rows = table[table["method"] == "prompt_lookup"]
        rows = rows[rows["category"] == category] if category != "all" else rows
        assert lookup.loc[category, "tau"] == pytest.approx(rows["tau_macro"].iloc[0], rel=1e-6)
    assert measured["batch_size"].eq(1).all() and measured["temperature"].eq(0).all()


def test_settings_that_a_run_does_not_know_come_from_the_claim(tmp_path: Path, bench_run: Path):
    """As claim.yaml names them for runs/other."""
    expected = "source,method,num_training_tokens,tau\nx,eagle_dynamic,1000,\n"
    claim = about(tmp_path, expected)
    with pytest.raises(UserError, match="trees"):
        add_run(claim, bench_run)
    assert add_run(claim, shutil.copytree(bench_run, tmp_path / "other")) == 1
    assert again(claim).measured["num_training_tokens"].tolist() == [1000]


def test_what_cannot_be_measured_leaves_the_claim_as_it_is(tmp_path: Path, bench_run: Path):
    claim = about(tmp_path, "source,benchmark,method,tau\nx,humaneval,eagle_dynamic,2\n")
    unfinished = write_bench(tmp_path / "unfinished", finished=False)
    for run, named in (
        (bench_run, "bench80.*humaneval"),
        (unfinished, "unfinished"),
        (tmp_path / "nowhere", "nowhere"),
    ):
        with pytest.raises(UserError, match=named):
            add_run(claim, run)
    assert sorted(path.name for path in claim.folder.iterdir()) == ["claim.yaml", "expected.csv"]


@pytest.mark.parametrize(
    ("path", "published"),
    [
        ("/home/me/models/runs/train/drafter", "runs/train/drafter"),
        ("../data/mt_bench.jsonl", "mt_bench.jsonl"),
        ("~/models/tiny", "tiny"),
        ("/usr/bin/python3.11", "python3.11"),
        ("/data/", "data"),
        ("method=[vanilla,hybrid]", "method=[vanilla,hybrid]"),
        ("org/model", "org/model"),
        ("tau>=3/4", "tau>=3/4"),
    ],
)
def test_paths_are_shortened_and_other_text_stays(path: str, published: str):
    assert without_paths(path) == published
    command = "python eval.prompts={} seed=0"
    assert without_paths(command.format(path)) == command.format(published)


def test_what_is_published_of_a_run():
    private = {
        "command": "/home/me/bin/python -m eagle_lab.run drafter.path=/home/me/d method=[/a/b]",
        "machine": {"host": "box", "system": "Linux-6.1", "cpu": "AMD EPYC", "num_cpus": 2},
        "versions": {"torch": "2.13.0"}, "prompts": "/srv/data/mt_bench.jsonl", "seed": 0,
        "resumed": [{"machine": {"host": "box"}, "git_commit": "fba904d", "git_dirty": False}],
        "status": "finished", "user": "me",
    }  # fmt: skip
    assert publishable(private) == {
        "command": "python -m eagle_lab.run drafter.path=d method=[b]",
        "machine": {"cpu": "AMD EPYC", "num_cpus": 2}, "versions": {"torch": "2.13.0"},
        "prompts": "mt_bench.jsonl", "seed": 0, "status": "finished",
        "resumed": [{"git_commit": "fba904d", "git_dirty": False}],
    }  # fmt: skip


def test_what_a_bench_measured_of_a_drafter(tmp_path: Path):
    """The rows that drafted with the weights of this digest, and what the card says of the run."""
    run = write_bench(tmp_path / "run", num_questions=8)
    path = run / "provenance.json"
    drafters = {"drafters": {"runs/train/drafter": "a" * 16, "another": "b" * 16}}
    path.write_text(json.dumps(json.loads(path.read_text()) | drafters), "utf-8")
    found = evaluation_of(run, "a" * 16)
    assert (found["benchmark"], found["temperature"], found["batch_size"]) == ("bench80", 0, 1)
    rows = {row["method"]: row for row in found["rows"]}
    assert set(rows) == {"eagle_chain", "eagle_static", "eagle_dynamic"}
    truth = load_run(run).main.set_index("method")
    for name, row in rows.items():
        assert {key: truth.loc[name, key] for key in ("tau_micro", "speedup_low")}.items() <= (
            row.items()
        )
    assert "width" not in rows["eagle_chain"]  # empty cells are left out
    assert found["provenance"]["command"] and json.dumps(found)
    with pytest.raises(UserError, match="another"):
        evaluation_of(run, "b" * 16)


def test_the_task_measures_shows_and_writes(
    tmp_path: Path, bench_run: Path, capsys: pytest.CaptureFixture[str]
):
    root, out = tmp_path / "claims", tmp_path / "out"
    claim = about(root, TREES)

    def run_report(*overrides: str) -> None:
        config = [f"report.claims={root}", f"output_dir={out}", *overrides]
        report.run(compose(["+experiment=report", *config]))

    for overrides, named in (
        (["report.claim=tree"], "trees"),
        (["report.claim=all", "report.run=x"], "report.run"),
        (["report.claim=trees", "report.run=x"], "x"),
    ):
        with pytest.raises(UserError, match=named):
            run_report(*overrides)
    assert not out.exists()
    run_report("report.claim=trees")
    assert claim.title in capsys.readouterr().out
    assert {path.name for path in out.iterdir()} == {"trees.md", "trees.csv", "trees.tex"}
    assert not (root / "README.md").exists()
    run_report("report.claim=trees", f"report.run={bench_run}")
    assert str(root / "trees" / "measured.csv") in capsys.readouterr().out
    page = (root / "README.md").read_text()
    (root / "README.md").unlink()
    run_report("report.claim=all")
    assert (root / "README.md").read_text() == page
