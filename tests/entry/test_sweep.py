"""The command sweep: which runs it starts, what it continues, and how it ends."""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import pytest
import yaml
from jsonargparse import Namespace as UntypedNamespace

from lightning_ding.callbacks.shared_folder import lock_file
from lightning_ding.entry import cli, lightning_cli, sweep
from lightning_ding.entry.lightning_cli import SWEEP, keep_in_own_folder
from lightning_ding.entry.sweep import Sweep, main, seeds_of
from tests.entry.test_compare import write_csv
from tests.processes import start
from tests.tune.test_study import RUN


class Runs:
    """The commands that a sweep has started, in place of the runs themselves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, failing: Sequence[int] = ()) -> None:
        self.commands: dict[int, list[str]] = {}
        self.failing = set(failing)
        monkeypatch.setattr(Sweep, "_wait_for", self._run)

    def _run(self, command: Sequence[str], output: BinaryIO) -> int:
        seed = int(next(one for one in command if one.startswith("--seed_everything=")).partition("=")[2])
        self.commands[seed] = list(command)[3:]
        if seed in self.failing:
            return 1
        write_csv(Path(output.name).parent / "lightning_logs" / "version_0", {100: float(seed)})
        return 0


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


Namespace: Any = UntypedNamespace
OPTIONS = ["--config", "dqn.yaml", "--model.cfg.nstep", "3"]


@pytest.mark.parametrize("command", ["sweep", "fit"])
def test_each_seed_has_a_run_of_its_own(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = Runs(monkeypatch)
    cli.main([command, *OPTIONS, "--seeds", "3"])
    assert sorted(runs.commands) == [0, 1, 2]
    own = ["--seed_everything=1", "--data.seed=1", "--trainer.default_root_dir=runs/sweep/dqn/seed_1"]
    assert runs.commands[1] == ["fit", *OPTIONS, *own]
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.split()[:3] == ["dqn", "3", "1.000"]


def test_only_what_has_not_ended_is_run_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first = Runs(monkeypatch, failing=[1])
    with pytest.raises(SystemExit) as code:
        main(["sweep", *OPTIONS, "--seeds", "0,1", "--folder", "here"])
    assert code.value.code == 1
    assert sorted(first.commands) == [0, 1]
    assert "seed 1: failed with exit code 1, see here/seed_1/output.txt" in capsys.readouterr().out
    second = Runs(monkeypatch)
    monkeypatch.setattr(sweep, "last_checkpoint", lambda folder: Path(folder) if str(folder).endswith("1") else None)
    main(["sweep", *OPTIONS, "--seeds", "0,1,2", "--folder", "here"])
    assert sorted(second.commands) == [1, 2]
    assert second.commands[1][-1] == "--ckpt_path=last"
    assert second.commands[2][-1] == "--trainer.default_root_dir=here/seed_2"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--seeds", "0"], "seeds must be a number of seeds >= 1, or different seeds >= 0 such as 0,3,7, got '0'"),
        (["--seeds", "1,1"], "seeds must be"),
        (["--seeds", "many"], "seeds must be"),
        (["--seeds", "2", "--jobs", "0"], "jobs must be >= 1, got 0"),
        (["--seeds", "2", "--data.seed", "1"], "which each run of a sweep has for itself, got '--data.seed'"),
        (["--seeds", "2", "--ckpt_path=last"], "which each run of a sweep has for itself, got '--ckpt_path=last'"),
        ([], "the following arguments are required: --seeds"),
    ],
)
def test_mistake_ends_in_one_line(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as code:
        main(["sweep", *OPTIONS, *arguments])
    assert code.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert not Path("runs").exists()


def test_folder_of_other_options_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Runs(monkeypatch)
    main(["sweep", *OPTIONS, "--seeds", "1"])
    with pytest.raises(SystemExit):
        main(["sweep", *OPTIONS, "--trainer.logger=false", "--seeds", "1"])
    assert "of a sweep with --config dqn.yaml --model.cfg.nstep 3" in capsys.readouterr().err


def test_folder_of_a_changed_config_file_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = Runs(monkeypatch)
    Path("dqn.yaml").write_text("policy: dqn")
    main(["sweep", *OPTIONS, "--seeds", "1"])
    main(["sweep", *OPTIONS, "--seeds", "2"])
    Path("dqn.yaml").write_text("policy: c51")
    with pytest.raises(SystemExit):
        main(["sweep", *OPTIONS, "--seeds", "3"])
    message = "folder must be a new folder, because dqn.yaml has changed since the sweep began, got 'runs/sweep/dqn'"
    assert message in capsys.readouterr().err
    assert sorted(runs.commands) == [0, 1]


def test_seeds_without_logs_are_not_compared(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Sweep, "_wait_for", lambda *_: 0)
    main(["sweep", *OPTIONS, "--seeds", "1"])
    assert capsys.readouterr().out.splitlines()[-1].startswith("the seeds are not compared: metric must be")


def test_seed_that_another_process_trains_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = Runs(monkeypatch)
    Path("here/seed_0").mkdir(parents=True)
    other = Path("here/seed_0/output.txt").open("ab")  # noqa: SIM115 - open while the sweep runs
    assert lock_file(other)
    with pytest.raises(SystemExit) as code:
        main(["sweep", *OPTIONS, "--seeds", "2", "--folder", "here"])
    other.close()
    assert code.value.code == 1
    assert list(runs.commands) == [1]
    assert "seed 0: another process trains it, wait for its end" in capsys.readouterr().out


def test_run_that_starts_while_the_sweep_is_stopped_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[bool] = []

    class Starting:
        def __init__(self, *_: Any, **__: Any) -> None:
            made._stop()

        def terminate(self) -> None:
            ended.append(True)

        def wait(self) -> int:
            return 143

    made = Sweep(OPTIONS, Path("here"), [0, 1], jobs=1)
    monkeypatch.setattr("lightning_ding.entry.sweep.subprocess.Popen", Starting)
    with pytest.raises(KeyboardInterrupt):
        made.run()
    assert ended == [True]


def test_loggers_of_a_run_of_a_sweep_write_to_its_folder() -> None:
    loggers = [
        Namespace(init_args=Namespace(save_dir="runs", name="dqn")),
        Namespace(init_args=Namespace(name="other")),
    ]
    for given in (loggers, loggers[0], True, False, None):
        keep_in_own_folder(Namespace(logger=given, callbacks=None, default_root_dir="seed_0"))
    assert loggers[0].init_args == Namespace(save_dir="seed_0", name="dqn")
    assert loggers[1].init_args == Namespace(name="other")
    saves = [Namespace(init_args=Namespace(dirpath=folder)) for folder in (None, "best")]
    with pytest.raises(ValueError, match=r"trainer\.callbacks must be callbacks without dirpath in a sweep, .* 'best'"):
        keep_in_own_folder(Namespace(logger=True, callbacks=saves, default_root_dir="seed_0"))


def test_run_of_a_sweep_leaves_the_folder_of_its_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWEEP, "1")
    logger = {"class_path": "lightning.pytorch.loggers.CSVLogger", "init_args": {"save_dir": "runs", "name": "dqn"}}
    Path("run.yaml").write_text(yaml.safe_dump({**RUN, "trainer": {"accelerator": "cpu", "logger": logger}}))
    lightning_cli.main(["fit", "--config", "run.yaml", "--data.max_env_step=1", "--trainer.default_root_dir=seed_0"])
    assert Path("seed_0/dqn/version_0/checkpoints/last.ckpt").exists()
    assert not Path("runs").exists()


def test_list_of_seeds() -> None:
    assert (seeds_of("1"), seeds_of("2"), seeds_of("7,0")) == ([0], [0, 1], [7, 0])


@pytest.mark.slow
def test_interrupted_sweep_continues_and_gives_what_one_without_a_break_gives(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("run.yaml").write_text(yaml.safe_dump({**RUN, "trainer": {"accelerator": "cpu"}}))
    options = ["sweep", "--config", "run.yaml", "--data.max_env_step", "1500", "--seeds", "2"]
    process = start(["-m", "lightning_ding", *options, "--folder", "broken"], folder=tmp_path)
    while len(list(tmp_path.glob("broken/seed_*/**/run.ckpt"))) < 2:
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 130
    for name in ("broken", "whole"):
        main([*options, "--folder", name])
    shown = capsys.readouterr().out.splitlines()
    tables = [line.split()[1:] for line in shown if line.startswith(("broken", "whole"))]
    assert tables[0] == tables[1]
