from __future__ import annotations

import signal
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from lightning_ding.entry import tune
from lightning_ding.entry.tune import main
from lightning_ding.tune.shared_trials import SharedTrials
from tests.processes import start
from tests.tune.test_study import RUN


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    section = {"trials": 1, "candidates": 0, "spaces": {"nstep": "choice(1,2)"}}
    Path("run.yaml").write_text(yaml.safe_dump({**RUN, "tune": section}))
    return "run.yaml"


def test_spaces_of_the_command_line_replace_those_of_the_section(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["tune", "-c", file, "--space", "discount_factor", "--space", "nstep=int(1,4)", "--list_spaces"])
    assert capsys.readouterr().out.splitlines() == [
        "discount_factor: choice(0.9, 0.95, 0.98, 0.99, 0.995, 0.999)",
        "nstep: int(1, 4)",
    ]


def test_command_searches_and_prints_the_summary(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["tune", "--config", file, "--data.max_env_step", "24", "--metric", "best"])
    shown = capsys.readouterr().out
    assert "best trials (best mean return)" in shown
    assert "searched:\n  nstep: choice(1, 2)\nbest" in shown  # of the section
    assert "train with it: lightning-ding fit --config runs/tune/run/best.yaml" in shown
    assert yaml.safe_load(Path("runs/tune/run/best.yaml").read_text())["data"]["max_env_step"] == 24


@pytest.mark.slow
def test_killed_command_continues_its_study(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["tune", "--config", file, "--folder", "study", "--trials", "4", "--data.max_env_step", "2000"]
    killed = start(["-m", "lightning_ding", *options], folder=tmp_path)
    while len(list(tmp_path.glob("study/trials/*/trial.yaml"))) < 2:  # until the second trial runs
        assert killed.poll() is None
        time.sleep(0.02)
    killed.kill()
    assert killed.wait() == -signal.SIGKILL
    monkeypatch.setattr(SharedTrials, "heartbeat_seconds", 1)
    monkeypatch.setattr(SharedTrials, "grace_seconds", 2)  # instead of a minute
    main(options)
    with closing(sqlite3.connect(tmp_path / "study" / "study.sqlite3")) as connection:
        states = [state for (state,) in connection.execute("SELECT state FROM trials ORDER BY number")]
    assert sorted(states) == ["COMPLETE"] * 4 + ["FAIL"]
    assert states[:2] == ["COMPLETE", "FAIL"]
    assert "trials: 4 complete" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--space", "learn.lr=log(1e-5,1e-2)"], "error: unknown config key 'learn.lr'; did you mean"),
        (["--trials", "0"], "error: tune.trials must be >= 1, got 0"),
        (["--data.max_env_stp", "5"], "error: unknown option 'data.max_env_stp'; did you mean 'data.max_env_step'?"),
    ],
)
def test_mistake_is_an_error_of_one_line(
    file: str, options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["tune", "--config", file, *options])
    assert ended.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith(message)


def test_sigterm_ends_the_other_processes_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[str] = []
    helper = SimpleNamespace(terminate=lambda: ended.append("helper"))
    monkeypatch.setattr("lightning_ding.entry.tune.subprocess.Popen", lambda *_, **__: helper)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as code, tune._helpers(2, ["tune"], tmp_path):  # noqa: PT012
        assert signal.getsignal(signal.SIGTERM) is not before
        signal.raise_signal(signal.SIGTERM)
    assert (code.value.code, ended) == (143, ["helper"] * 2)
    assert signal.getsignal(signal.SIGTERM) == before
