"""The command line: one clear line for every mistake, the right exit code, nothing littered."""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from omegaconf import DictConfig

from eagle_lab import catalog, run
from eagle_lab.config import compose
from eagle_lab.runs.folder import RunFolder

Main = Callable[..., int]


class FakeTask(ModuleType):
    """A task that notes the configurations it was given and then does `act`."""

    def __init__(self) -> None:
        super().__init__("fake_task")
        self.configs: list[DictConfig] = []
        self.act: Callable[[DictConfig], Any] = lambda config: None

    def run(self, config: DictConfig) -> None:
        self.configs.append(config)
        self.act(config)


@pytest.fixture
def task(monkeypatch: pytest.MonkeyPatch) -> FakeTask:
    fake = FakeTask()
    monkeypatch.setitem(sys.modules, "fake_task", fake)
    monkeypatch.setitem(run.TASKS, "fake", "fake_task")
    return fake


@pytest.fixture
def main(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, task: FakeTask) -> Main:
    """`main(*arguments)` in an empty folder, with a folder of own experiments beside it."""
    own = tmp_path / "own"
    write(
        own / "experiment/own.yaml",
        "# @package _global_\n# An experiment of one's own\ntask: fake\n",
    )
    write(own / "experiment/misspelt.yaml", "# @package _global_\ntask: fake\ntree:\n  dpeth: 3\n")
    write(
        own / "experiment/mistyped.yaml", "# @package _global_\ntask: fake\neval:\n  turns: six\n"
    )
    write(own / "experiment/broken.yaml", "# @package _global_\ntask: [fake\ntree: {\n")
    write(own / "experiment/unknown_task.yaml", "# @package _global_\ntask: fakke\n")
    write(
        own / "sweep/own_grid.yaml",
        "# @package _global_\nhydra:\n  mode: MULTIRUN\n  sweeper:\n    params:\n"
        "      tree.depth: 1,2\n      tree.width: 3,4\n",
    )
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("HYDRA_FULL_ERROR", "0")

    def call(*arguments: str) -> int:
        monkeypatch.setattr(sys, "argv", ["run", "--config-dir", str(own), *arguments])
        return run.main()

    return call


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


# What follows +experiment=own, and what the one line must name
BAD_COMMANDS = {
    "target=smolm2_135m": ["smolm2_135m", "tiny_random", "smollm2_135m"],
    "drafter=eagle9": ["eagle9", "eagle1"],
    "method=[no_such_method]": ["no_such_method"],
    "tree.dpeth=3": ["tree.dpeth", "tree.width", "'tree.depth'"],
    "+tree.dpeth=3": ["tree.dpeth", "'tree.depth'"],
    "++tree.dpeth=3": ["tree.dpeth", "'tree.depth'"],
    "+sede=3": ["sede", "'seed'"],
    "evall.turns=3": ["evall", "'eval'"],
    "method.vanila.x=3": ["method.vanila"],
    "method.suffix.x=3": ["method.suffix", "method=["],
    "tree.depth=six": ["tree.depth=six"],
    "tree.depth=1.5": ["tree.depth=1.5"],
    "eval.top_p=high": ["eval.top_p=high"],
    "eval.timing=maybe": ["eval.timing=maybe"],
    "tree.depth=null": ["tree.depth", "null"],
    "tree.depth=[1,": ["tree.depth=[1,", "key=value"],
    "tree.depth=1,2": ["tree.depth=1,2", "--multirun"],
    "tree=4": ["groups", "target"],
    "target=hf": ["target.name"],
    "seed=-1": ["seed=-1"],
    f"seed={10**22}": [f"seed={10**22}", str(2**63 - 1)],
    "threads=0": ["threads=0"],
    "output_dir=${tre.depth}": ["tre.depth"],
    "~nothing": ["nothing"],
    "+experiment=misspelt": ["experiment", "misspelt"],
    "+sweep=own_gird": ["own_gird", "'own_grid'"],
    "--multi-run": ["--multi-run", "'--multirun'"],
    "-m output_dir=grid eval.turns=1,six": ["eval.turns=six"],
}
BAD_EXPERIMENTS = {
    "+experiment=ownn": ["ownn", "'own'"],
    "experiment=own": ["+experiment=own"],
    "own": ["own", "key=value"],
    "+experiment=misspelt": ["tree.dpeth", "tree.depth", "experiment/misspelt.yaml"],
    "+experiment=mistyped": ["six", "experiment/mistyped.yaml"],
    "+experiment=broken": ["broken.yaml", "line 3"],
    "+experiment=unknown_task": ["fakke", "'fake'"],
    "--config-dir nowhere +experiment=own": ["nowhere"],
}
COMMANDS = BAD_EXPERIMENTS | {f"+experiment=own {one}": line for one, line in BAD_COMMANDS.items()}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_mistake_is_one_line_that_names_the_way_out(
    main: Main, task: FakeTask, capfd: pytest.CaptureFixture[str], command: str
) -> None:
    assert main(*command.split()) == 1
    printed = capfd.readouterr()
    assert len(printed.err.splitlines()) == 1, printed.err
    assert all(word in printed.err for word in COMMANDS[command]), printed.err
    assert "Traceback" not in printed.err + printed.out
    assert task.configs == []


def test_without_an_experiment_all_of_them_are_listed(
    main: Main, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main() == 1
    error = capfd.readouterr().err
    assert all(name in error for name in catalog.options("experiment"))


def test_no_argument_at_all_lists_them_too(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["eagle-lab"])
    assert run.main() == 1
    assert "quickstart" in capfd.readouterr().err


def test_help_lists_experiments_methods_and_targets_with_their_lines(
    main: Main, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main("--help") == 0
    printed = capfd.readouterr().out
    assert "An experiment of one's own" in printed
    for group in ("experiment", "method", "target", "sweep"):
        for name, line in catalog.options(group).items():
            assert name in printed
            assert line in printed


def test_an_own_experiment_runs_and_leaves_nothing_behind(main: Main, task: FakeTask) -> None:
    assert main("+experiment=own", "tree.depth=4") == 0
    assert [config.tree.depth for config in task.configs] == [4]
    assert task.configs[0].output_dir.startswith("runs/fake/20")
    assert "hydra" not in task.configs[0]
    assert list(Path.cwd().iterdir()) == []


def test_a_job_can_compose_the_defaults_too(main: Main, task: FakeTask) -> None:
    """As a run's folder does to tell which keys the package has gained since."""
    composed: list[DictConfig] = []
    task.act = lambda config: composed.append(compose(["method=[suffix]"]))
    assert main("+experiment=own", "tree.depth=4") == 0
    assert [config.tree.depth for config in (*task.configs, *composed)] == [4, "auto"]
    assert list(composed[0].method) == ["suffix"]


def open_and_finish(config: DictConfig) -> None:
    with RunFolder.open(config, task="fake") as folder:
        folder.finish()


def test_a_sweep_numbers_its_jobs_and_a_failing_one_leaves_the_others_running(
    main: Main, task: FakeTask, capfd: pytest.CaptureFixture[str]
) -> None:
    def act(config: DictConfig) -> None:
        if config.tree.depth == 1 and config.tree.width == 4:
            raise ValueError("this one cannot be")
        open_and_finish(config)

    task.act = act
    assert main("+experiment=own", "+sweep=own_grid", "output_dir=grid") == 1
    sizes = [(config.tree.depth, config.tree.width) for config in task.configs]
    assert sizes == [(1, 3), (1, 4), (2, 3), (2, 4)]
    assert [config.output_dir for config in task.configs] == [f"grid/{i}" for i in range(4)]
    error = capfd.readouterr().err
    assert "job 1" in error and "this one cannot be" in error
    assert len(error.splitlines()) == 1
    assert provenance("grid")["status"] == "running"
    assert provenance("grid/3")["status"] == "finished"
    assert sorted(p.name for p in Path.cwd().iterdir()) == ["grid"]

    task.act = open_and_finish
    assert main("+experiment=own", "+sweep=own_grid", "output_dir=grid") == 0
    assert provenance("grid")["status"] == "finished"
    assert provenance("grid/1")["status"] == "finished"


def provenance(folder: str) -> dict[str, Any]:
    return json.loads((Path(folder) / "provenance.json").read_text())


def test_another_grid_in_the_same_root_is_refused_before_any_job(
    main: Main, task: FakeTask, capfd: pytest.CaptureFixture[str]
) -> None:
    task.act = open_and_finish
    command = ["+experiment=own", "-m", "output_dir=grid"]
    assert main(*command, "tree.depth=1,2,3") == 0
    with pytest.raises(SystemExit) as stop:
        main(*command, "tree.depth=4,5")
    assert stop.value.code == 1
    error = capfd.readouterr().err
    assert len(error.splitlines()) == 1
    assert all(word in error for word in ("sweep.tree.depth", "1,2,3", "4,5"))
    assert len(task.configs) == 3
    assert main(*command, "tree.depth=4,5", "overwrite=true") == 0
    assert sorted(p.name for p in Path("grid").iterdir() if p.is_dir()) == ["0", "1"]


def test_each_job_of_a_sweep_draws_the_same_numbers(main: Main, task: FakeTask) -> None:
    drawn = []
    task.act = lambda config: drawn.append(
        (random.random(), float(np.random.random()), torch.rand(1).item())
    )
    assert main("+experiment=own", "+sweep=own_grid", "output_dir=grid") == 0
    assert len(drawn) == 4
    assert len(set(drawn)) == 1


def test_a_full_disk_is_one_line(
    main: Main, task: FakeTask, capfd: pytest.CaptureFixture[str]
) -> None:
    def act(config: DictConfig) -> None:
        try:
            raise OSError(errno.ENOSPC, "No space left on device", "features.safetensors")
        except OSError as error:
            raise RuntimeError("could not save") from error

    task.act = act
    assert main("+experiment=own") == 1
    error = capfd.readouterr().err
    assert len(error.splitlines()) == 1
    assert "disk" in error and "features.safetensors" in error


def test_an_unforeseen_error_is_one_line_with_its_place(
    main: Main, task: FakeTask, capfd: pytest.CaptureFixture[str]
) -> None:
    def act(config: DictConfig) -> None:
        raise RuntimeError("two\nlines")

    task.act = act
    assert main("+experiment=own") == 1
    error = capfd.readouterr().err
    assert len(error.splitlines()) == 1
    assert "RuntimeError: two lines" in error and "eagle_lab/run.py:" in error
    assert "HYDRA_FULL_ERROR=1" in error


def test_ctrl_c_is_one_line_and_exit_code_130(
    main: Main, task: FakeTask, capfd: pytest.CaptureFixture[str]
) -> None:
    def act(config: DictConfig) -> None:
        with RunFolder.open(config, task="fake") as folder:
            folder.append_jsonl("rows.jsonl", {"row": 1})
            raise KeyboardInterrupt

    task.act = act
    assert main("+experiment=own", "output_dir=results") == 130
    error = capfd.readouterr().err.strip()
    assert len(error.splitlines()) == 1 and "output_dir=results" in error
    assert Path("results/rows.jsonl.partial").read_text() == '{"row": 1}\n'


PROGRAM = """
import sys
from eagle_lab import run
run.TASKS["fake"] = "fake_task"
sys.exit(run.main())
"""


def start(folder: Path, task: str, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    """A process of its own whose task `fake` has the body `task`."""
    write(folder / "fake_task.py", f"import sys, time\ndef run(config):\n    {task}\n")
    write(folder / "experiment/own.yaml", "# @package _global_\ntask: fake\n")
    command = ["--config-dir", str(folder), "+experiment=own", *arguments]
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *command],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize(
    ("arguments", "goes_on"), [([], False), (["-m", "seed=1,2"], True)], ids=["run", "multirun"]
)
def test_a_real_interrupt_ends_the_program_with_130(
    tmp_path: Path, arguments: list[str], goes_on: bool
) -> None:
    process = start(
        tmp_path, 'open("started", "w").close(); time.sleep(60)', "output_dir=results", *arguments
    )
    while not (tmp_path / "started").exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert len(error.strip().splitlines()) == 1
    assert ("output_dir=results" in error) == goes_on  # a folder was made


def test_a_warning_of_the_package_is_one_line(
    main: Main, task: FakeTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)  # put back at the end
    assert main("+experiment=own") == 0
    ours = warnings.formatwarning("another target", UserWarning, run.__file__, 3)
    theirs = warnings.formatwarning("old", UserWarning, "/lib/other.py", 3)
    assert ours == "warning: another target\n"
    assert "/lib/other.py:3: UserWarning: old" in theirs


def test_the_traceback_is_behind_an_environment_variable(tmp_path: Path) -> None:
    process = start(tmp_path, 'raise ValueError("odd")', HYDRA_FULL_ERROR="1")
    _, error = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "Traceback" in error
    assert "ValueError: odd" in error


def test_the_module_is_a_program(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "eagle_lab.run", "+experiment=no_such_thing"],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "no_such_thing" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_reader_that_leaves_early_is_no_error_message() -> None:
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "eagle_lab.run", "--help"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    with process.stderr as stderr:
        assert stderr.read() == b""
    assert process.wait() == 1
