"""Opening folders: every kind, finished or not, and the errors for what is none."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from eagle_lab.errors import UserError
from eagle_lab.reports import load_run, load_sweep
from eagle_lab.reports.frames import label_rows, main_rows, tidy, with_labels
from eagle_lab.reports.load import is_sweep
from tests.reports.fake_run import BENCH, write_bench, write_config, write_sweep


def rows(**columns: list) -> pd.DataFrame:
    return tidy(pd.DataFrame(columns))


def test_labels_name_what_tells_rows_apart():
    frame = label_rows(
        rows(method=["vanilla", "eagle", "eagle"], batch_size=[1, 1, 1], depth=[None, 4, 6])
    )
    assert frame["label"].tolist() == ["vanilla", "eagle, depth 4", "eagle, depth 6"]
    frame = label_rows(rows(method=["a", "a"], temperature=[0.0, 0.7], drafter=["x/one", "x/two"]))
    assert frame["label"].tolist() == ["a, one, T = 0", "a, two, T = 0.7"]
    settings = ['{"depth": 4, "stop": 0.1}', '{"depth": 4, "stop": 0.2}']
    frame = label_rows(rows(method=["a", "a"], depth=[4, 4], settings=settings))
    assert frame["label"].tolist() == ["a, stop 0.1", "a, stop 0.2"]


def test_rows_of_several_jobs_that_nothing_else_tells_apart():
    frame = label_rows(rows(method=["a", "a"], job=["0", "1"]))
    assert frame["label"].tolist() == ["a, job 0", "a, job 1"]


def test_every_column_is_there_and_numbers_are_numbers():
    frame = rows(method=["a", "b"], status=["ok", "infeasible"], tau_micro=["2.5", ""])
    assert frame["infeasible"].tolist() == [False, True]
    assert frame["tau_micro"].isna().tolist() == [False, True]
    assert frame["speedup"].isna().all()


def test_main_rows_are_feasible_and_of_the_smallest_batch():
    frame = rows(method=["a", "a", "b"], batch_size=[4, 1, 1], status=["ok", "ok", "infeasible"])
    assert main_rows(frame)["label"].tolist() == ["a"]
    assert main_rows(frame)["batch_size"].tolist() == [1]


def test_generations_get_the_label_of_their_setting():
    summary = label_rows(rows(method=["a", "a"], depth=[2, 4]))
    generations = pd.DataFrame({"method": ["a", "a", "other"], "depth": [4.0, 2.0, 2.0]})
    assert with_labels(generations, summary)["label"].tolist() == ["a, depth 2", "a, depth 4"]


def test_a_run_holds_what_the_bench_wrote(bench_run: Path):
    run = load_run(bench_run)
    assert run.finished
    assert run.timed
    assert run.summary["method"].tolist() == [method.name for method in BENCH]
    assert len(run.generations) == len(BENCH) * 16 * 2
    assert set(run.by_category["category"]) >= {"writing", "coding"}
    assert run.divergences[["verdict", "logit_gap"]].to_numpy().tolist() == [["tie", 0.00021]]
    assert run.config["target"]["name"] == "smollm2_135m"
    assert run.provenance["seed"] == 0
    assert run.training.empty


def test_an_unfinished_run_opens_with_what_is_there(tmp_path: Path):
    """Its last line is torn; tau follows from the rows before it, intervals do not."""
    whole = load_run(write_bench(tmp_path / "whole"))
    run = load_run(write_bench(tmp_path / "part", finished=False))
    assert not run.finished
    assert len(run.generations) == len(whole.generations)
    for name in ("tau_micro", "tau_macro", "num_tokens", "num_cycles"):
        assert run.summary[name].tolist() == pytest.approx(whole.summary[name].tolist())
    assert run.summary["tau_macro_low"].isna().all()


def test_a_broken_line_in_the_middle_is_named(tmp_path: Path):
    folder = write_bench(tmp_path / "run")
    path = folder / "generations.jsonl"
    lines = path.read_text().splitlines()
    lines[4] = lines[4][:20]
    path.write_text("\n".join(lines))
    with pytest.raises(UserError, match=r"generations\.jsonl, line 5\b"):
        load_run(folder)


def test_a_sweep_is_one_table(sweep_root: Path):
    sweep = load_sweep(sweep_root)
    assert is_sweep(sweep_root)
    assert sweep.finished
    assert len(sweep.table) == 2 * 27
    assert int(sweep.table["infeasible"].sum()) == 7
    assert sweep.table["job"].nunique() == 27


def test_jobs_without_a_summary_are_named(tmp_path: Path):
    root = write_sweep(tmp_path / "root", grid=[(2, 4, 8), (4, 4, 8)])
    (root / "1" / "summary.csv").unlink()
    sweep = load_sweep(root)
    assert sweep.missing == ["1"]
    assert not sweep.finished


def test_a_sweep_whose_jobs_are_still_to_come_is_unfinished(tmp_path: Path):
    root = write_sweep(tmp_path / "root", grid=[(2, 4, 8)])
    write_config(root, "multirun", finished=False)
    assert not load_sweep(root).finished


def test_a_sweep_of_trainings_is_no_table_of_methods(tmp_path: Path):
    (tmp_path / "0").mkdir()
    write_config(tmp_path / "0", "train", finished=True)
    (tmp_path / "0" / "summary.csv").write_text("step,val_tau,val_acceptance_1\n100,1.2,0.2\n")
    with pytest.raises(UserError):
        load_sweep(tmp_path)


def test_a_folder_that_is_none(tmp_path: Path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text("task: bench\n")
    for folder in (tmp_path / "nope", tmp_path):  # the error names the runs that are there
        with pytest.raises(UserError, match=r"runs in .*: run$"):
            load_run(folder)
    for folder in (tmp_path / "nope" / "deeper", tmp_path / "run"):
        with pytest.raises(UserError):
            load_run(folder)


def test_a_damaged_provenance_is_named(tmp_path: Path):
    folder = write_bench(tmp_path / "run")
    (folder / "provenance.json").write_text('{"seed": ')
    with pytest.raises(UserError, match=r"provenance\.json"):
        load_run(folder)
