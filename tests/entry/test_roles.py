"""Single roles, and questions to the coordinator: real processes, a real server."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from lightning_ding.entry.cli import main
from tests import processes
from tests.entry import runs

PROGRAM = ["-m", "lightning_ding.entry.roles"]
TOKEN = "0123456789abcdef"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return where a coordinator works that has a token and listens at all addresses."""
    folder = tmp_path_factory.mktemp("roles")
    file = runs.write_config(folder)
    (folder / "run").mkdir()
    write_token(folder / "run" / "token", TOKEN)
    with processes.start([*PROGRAM, "coordinator", "--config", file, "--host", "0.0.0.0"]) as process:
        try:
            runs.wait_until((folder / "run" / "coordinator.json").exists, process)
            yield folder
        finally:
            process.terminate()
            assert process.wait(60) == 128 + signal.SIGTERM


def write_token(file: Path, token: str) -> Path:
    file.write_text(token)
    file.chmod(0o600)
    return file


def be(role: str, folder: Path, *options: object) -> tuple[int, list[str]]:
    """Start a role, and return its exit code and the lines that it writes to stderr."""
    command = [*PROGRAM, role, "--config", folder / "run.yaml", *options]
    with processes.start(command) as process:
        try:
            output, _ = process.communicate(timeout=100)
        finally:
            process.kill()
    return process.wait(), output.splitlines()


def address(folder: Path) -> list[str]:
    said = json.loads((folder / "run" / "coordinator.json").read_text())
    return ["--host", "127.0.0.1", "--port", str(said["port"])]


@pytest.mark.parametrize("role", ["collector", pytest.param("learner", marks=pytest.mark.slow)])
def test_worker_with_another_folder_ends_with_one_line(role: str, folder: Path) -> None:
    other = folder / "other"
    token = f"system.coordinator.token_file={folder / 'run' / 'token'}"
    code, lines = be(role, folder, *address(folder), "--set", f"main.exp_name={other}", "--set", token)
    (line,) = lines
    assert code == 2, lines
    assert line.startswith(f"error: the coordinator refuses this {role}: 403: main.exp_name='{other}'")
    assert not other.exists()


@pytest.mark.parametrize(
    ("setting", "reason"),
    [
        ("token_file={}/wrong", "401: missing or wrong token"),
        pytest.param("channel=3", "403: the channel must be 0, got '3'", marks=pytest.mark.slow),
    ],
)
def test_worker_that_is_not_wanted_ends_with_one_line(setting: str, reason: str, folder: Path) -> None:
    write_token(folder / "wrong", "f" * 16)
    code, lines = be("collector", folder, "--set", f"system.coordinator.{setting.format(folder)}")
    assert (code, lines) == (2, [f"error: the coordinator refuses this collector: {reason}"])


def ask(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, object]:
    main(["ask", *map(str, arguments)])
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def test_coordinator_answers_what_it_is_asked(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = ["--config", folder / "run.yaml"]
    status = ask(capsys, "status", *config)
    assert (status["env_step"], status["is_over"]) == (0, False)
    assert ask(capsys, "increase_collector", '{"n": 2}', *config, *address(folder)) == {"collector_task_space": 4}
    assert ask(capsys, "decrease_collector", *config) == {"collector_task_space": 3}
    assert ask(capsys, "set_collectors", '{"n": 2}', *config) == {"collector_task_space": 2}


@pytest.mark.parametrize(
    ("arguments", "code", "reason"),
    [
        (["increase_collector", '{"n": 0}'], 1, "400: n must be an integer >= 1, got"),
        (["increase_collector", "{n: 1}"], 2, "is not valid JSON"),
        (["increase_collector", "3"], 2, "must be a JSON object"),
        (["connect"], 2, "invalid choice: 'connect'"),
        (["status", "--set", "main.exp_name=nowhere", "--set", "system.reconnect_timeout=0.3"], 1, "no answer to 'st"),
        (["status", "--set", "system.transport=ray"], 2, "cannot reach a coordinator of system.transport 'ray'"),
    ],
)
def test_question_without_a_good_answer_ends_in_one_line(
    arguments: list[str], code: int, reason: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        ask(capsys, *arguments, "--config", folder / "run.yaml")
    (line,) = capsys.readouterr().err.splitlines()
    assert end.value.code == code
    assert line.startswith("error: ")
    assert reason in line
    assert not Path("nowhere").exists()


def test_run_ends_when_it_is_asked_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = runs.write_config(tmp_path)
    with processes.start([*PROGRAM, "coordinator", "--config", file]) as process:
        try:
            runs.wait_until((tmp_path / "run" / "coordinator.json").exists, process)
            assert ask(capsys, "shutdown", "--config", file) == {}
            assert process.wait(60) == 0
        finally:
            process.kill()
    assert runs.result_of(tmp_path)["error"] is None
