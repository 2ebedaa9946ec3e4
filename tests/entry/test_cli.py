"""The console script: quick answers, and errors that are one line."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from lightning_ding import __version__
from lightning_ding.checkpoints.files import UnwritableFolderError
from lightning_ding.entry import lightning_cli
from lightning_ding.entry.cli import COMMANDS, LIGHTNING, main, policy_names
from lightning_ding.entry.lightning_cli import is_refusal, line_of
from lightning_ding.policy import DQNPolicy
from lightning_ding.registry import POLICY_REGISTRY
from tests.processes import start


def test_help_names_every_command_and_every_policy(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--help"])
    shown = capsys.readouterr().out
    of_lightning = {name for name, (_, home) in COMMANDS.items() if home == LIGHTNING}
    assert of_lightning == {*lightning_cli.COMMANDS}
    assert [name for name in COMMANDS if not re.search(rf"^  {name} ", shown, re.MULTILINE)] == []
    built_in = [one for one in POLICY_REGISTRY if POLICY_REGISTRY.get(one).__module__.startswith("lightning_ding.")]
    assert sorted(built_in) == policy_names()
    assert ", ".join(built_in) in shown
    assert "--version" in shown


def test_only_the_parser_of_the_chosen_command_is_built(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["validate", "--model.cfg.nstepp", "3"])
    program, command = lightning_cli.DingParser.made
    assert (program.prog, command.prog) == ("lightning-ding", "lightning-ding [options] validate")
    assert "did you mean 'model.cfg.nstep'?" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["--seed_everythin", "3"])
    assert len(lightning_cli.DingParser.made) == 1 + len(lightning_cli.COMMANDS)


def test_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--version"])
    assert capsys.readouterr().out == f"lightning-ding {__version__}\n"
    (script,) = (
        one for one in importlib.metadata.entry_points(group="console_scripts") if one.name == "lightning-ding"
    )
    assert script.value.startswith("lightning_ding.entry.")


@pytest.mark.parametrize(("command", "hint"), [("fitt", "did you mean 'fit'?"), ("paralel", "'parallel'?")])
def test_command_that_does_not_exist_names_those_that_do(
    command: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main([command])
    (line,) = capsys.readouterr().err.splitlines()
    assert end.value.code == 2
    assert line.startswith("error: unknown subcommand")
    assert hint in line
    assert all(name in line for name in COMMANDS)


def test_no_command_shows_the_usage_with_those_that_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main([])
    usage, *lines = capsys.readouterr().err.splitlines()
    assert end.value.code == 2
    assert usage == "usage: lightning-ding COMMAND [options]"
    assert [name for name in COMMANDS if not any(line.startswith(f"  {name} ") for line in lines)] == []
    assert lines[-1] == "error: no command given; see lightning-ding --help"


def test_python_m_equals_the_console_script() -> None:
    command = [sys.executable, "-m", "lightning_ding"]
    shown = subprocess.run([*command, "--version"], capture_output=True, text=True)
    refused = subprocess.run(command, capture_output=True, text=True)
    assert (shown.stdout, shown.returncode) == (f"lightning-ding {__version__}\n", 0)
    assert (refused.stderr.splitlines()[0], refused.returncode) == ("usage: lightning-ding COMMAND [options]", 2)


def test_help_of_a_command_names_the_program(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["/packages/lightning_ding/__main__.py"])
    with pytest.raises(SystemExit):
        main(["fit", "--policy", "dqn", "--help"])
    assert capsys.readouterr().out.startswith("usage: lightning-ding [options] fit ")


def test_console_script_causes_no_warning_of_lightning(
    monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["lightning-ding", "fit", "--policy", "dqn", "--print_config"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 0
    assert "policy: dqn" in capsys.readouterr().out
    assert [str(one.message) for one in recwarn if "args parameter" in str(one.message)] == []


def caught(call: Callable[[], Any]) -> BaseException:
    try:
        call()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


def of_package(error: BaseException) -> BaseException:
    """Return an error without the frames of this test, as the command line would see it."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_globals["__name__"].startswith("tests."):
        trace = trace.tb_next
    return error.with_traceback(trace)


def test_an_error_of_a_check_is_a_refusal_and_one_of_the_users_code_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = of_package(caught(lambda: DQNPolicy({"learning_rate": 1e-3})))
    assert is_refusal(refused)
    assert line_of(refused) == "unknown config key 'learning_rate'; did you mean 'learn.learning_rate'?"
    assert not is_refusal(caught(lambda: int("x")))
    assert is_refusal(UnwritableFolderError("the checkpoints of this run cannot be written"))
    monkeypatch.setenv("LIGHTNING_DING_DEBUG", "1")
    assert not is_refusal(refused)


def test_a_type_error_in_the_code_of_a_registered_env_is_no_refusal() -> None:
    gym.register("CannotBeMade-v0", lambda **kwargs: len(5))  # type: ignore[arg-type]
    try:
        assert not is_refusal(of_package(caught(lambda: gym.make("CannotBeMade-v0"))))
        assert is_refusal(of_package(caught(lambda: gym.make("CartPole-v1", size=5))))
    finally:
        del gym.registry["CannotBeMade-v0"]


START = ["-c", "from lightning_ding.entry.cli import main; main()", "fit"]
USERS_ENV = """
import gymnasium as gym
class Texts(gym.Env):
    observation_space, action_space = gym.spaces.Box(-1, 1, (2,)), gym.spaces.Text(3)
    def reset(self, *, seed=None, options=None):
        return None
"""


def test_refused_env_of_the_user_gives_one_error_line_of_a_process(tmp_path: Path) -> None:
    (tmp_path / "users.py").write_text(USERS_ENV)
    command = [*START, "--trainer.accelerator=cpu", "--trainer.logger=false", "--data.env_id=users.Texts"]
    with start(command, folder=tmp_path) as process:
        output, _ = process.communicate(timeout=100)
    *greetings, line = output.splitlines()
    assert process.returncode == 2, output
    assert line.startswith("error: the env Texts violates gymnasium's API: reset() must return")
    assert not any("Error" in greeting or "Traceback" in greeting for greeting in greetings)
