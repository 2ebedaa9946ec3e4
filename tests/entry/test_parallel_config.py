"""Configs of distributed runs, and the mistakes in them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lightning_ding.config import to_dict
from lightning_ding.distributed.config import ParallelConfig
from lightning_ding.entry.cli import main
from lightning_ding.entry.config_file import check_env, read_config

ROLES = ["parallel", "coordinator", "learner", "collector"]
MISTAKES = {
    "mian: {seed: 1}": "unknown config key 'mian'; did you mean 'main'?",
    "main: {sede: 1}": "unknown config key 'main.sede'; did you mean 'main.seed'?",
    "main: {seed: one}": "config key 'main.seed' must be int, got str: 'one'",
    "main: {env: {collector_env_num: 0}}": "main.env.collector_env_num must be >= 1, got 0",
    "main: {policy: {type: dqm}}": "no policy is registered as 'dqm'; did you mean 'dqn'?",
    "main: {policy: {type: dqn, nsteps: 3}}": "main.policy: unknown config key 'nsteps'; did you mean 'nstep'?",
    "main: {env: {env_id: CartPol-v1}}": "main.env.env_id must be a registered gymnasium id, ",
    "main: {env: {env_id: nowhere.MyEnv}}": "No module named 'nowhere'",
    "main: {env: {wrappers: [FlattenObservation]}}": "did you mean 'gymnasium.wrappers.FlattenObservation'?",
    "main: {env: {import_names: [nowhere]}}": "import_names: cannot import 'nowhere'",
    "main: {policy: {type: bc}}": "trains this one on its data set), got 'bc'",
    "main: {policy: {type: cql}}": "`lightning-ding fit` trains this one on its data set), got 'cql'",
    "main: {policy: {type: sqil}}": "main.demonstrations must be a data set, because 'sqil' learns from demonstrations",
    "main: {demonstrations: no.npz}": "main.demonstrations: dataset must be the path of a file, got 'no.npz'",
    "main: {demonstrations: 3}": "config key 'main.demonstrations' must be",
    "main: {demonstrations: no.npz, demonstration_share: 1}": "main.demonstration_share must be in (0, 1), got 1",
    "main: {imitation_reward: true}": "main.demonstrations must be a data set with demonstration_share or imitation_",
    "main: {demonstrations: no.npz, policy: {type: ppo}}": "main.demonstrations must be None, because 'ppo'",
    "main: {policy: 3}": "config key 'main.policy' must be",
    "system: {transport: flask}": "system.transport must be one of 'flask_fs', 'ray', or a dotted path, got 'flask'",
    "system: {learner: {trainer: {device: 2}}}": "key 'system.learner.trainer.device'; did you mean 'devices'?",
    "system: {learner: {trainer: {callbacks: {}}}}": "system.learner.trainer.callbacks must be a list of dotted paths",
    "system: {learner: {trainer: {callbacks: [lightning_ding.callbacks.Curiculum]}}}": (
        "did you mean 'lightning_ding.callbacks.Curriculum'?"
    ),
    "system: {learner: {trainer: {default_root_dir: x}}}": "'system.learner.trainer.default_root_dir' must be left out",
    "system: {coordinator: {lease: 0}}": "coordinator.lease must be > 0, got 0",
    "system: {collector: {num: 0}}": 'collector.num must be >= 1 or "auto", got 0',
    "system: {collector: {num: many}}": "config key 'system.collector.num' must be",
    "system: {collector: {num: auto}}": "system.collector.num must be a number with the transport 'flask_fs'; ",
    "system: {transport: ray, collector: {num: auto}, coordinator: {commander: {collector_task_space: 3}}}": (
        'collector_task_space must be None with system.collector.num "auto", got 3'
    ),
    "[1, 2]": "must hold a mapping with the keys main and system",
    "main: {": "is not valid YAML",
}


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "run.yaml"


def error_of(*arguments: object, capsys: pytest.CaptureFixture[str]) -> str:
    """Run the command line, and return the one line that it says."""
    with pytest.raises(SystemExit) as end:
        main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    assert (end.value.code, captured.out) == (2, "")
    (line,) = captured.err.strip().splitlines()
    assert line.startswith("error: ")
    return line


@pytest.mark.parametrize("text", MISTAKES)
def test_mistake_in_the_file_ends_in_one_line(text: str, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(text)
    assert MISTAKES[text] in error_of("parallel", "--config", file, capsys=capsys)
    assert list(file.parent.iterdir()) == [file]


@pytest.mark.parametrize("role", ROLES)
def test_every_role_refuses_a_wrong_config(role: str, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text("main: {sede: 1}")
    assert "did you mean 'main.seed'?" in error_of(role, "--config", file, capsys=capsys)


@pytest.mark.parametrize("role", ROLES)
def test_token_is_never_an_option(role: str, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = error_of(role, "--config", file, "--token", "secret", capsys=capsys)
    assert "there is no --token" in line
    assert "LIGHTNING_DING_TOKEN" in line
    assert "secret" not in line


def test_missing_file_is_named(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "cannot read the config file" in error_of("parallel", "--config", file, capsys=capsys)


def test_setting_goes_before_the_file(file: Path) -> None:
    file.write_text("main: {seed: 1, policy: {type: dqn, nstep: 3}}")
    cfg = read_config(file, ["main.seed=2", "main.policy.learn.batch_size=16", "system.learner.num_threads=null"])
    assert (cfg.main.seed, cfg.main.policy["nstep"], cfg.main.policy["learn"]) == (2, 3, {"batch_size": 16})
    assert (cfg.system.learner.num_threads, cfg.system.collector.num_threads) == (None, 1)


@pytest.mark.parametrize("setting", ["main.seed", "=1", "main..seed=1"])
def test_setting_without_a_key_or_a_value_is_refused(setting: str, file: Path) -> None:
    file.write_text("")
    with pytest.raises(ValueError, match="--set takes KEY=VALUE"):
        read_config(file, [setting])


def test_unknown_setting_names_the_nearest(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text("")
    line = error_of("parallel", "--config", file, "--set", "system.collector.nun=3", capsys=capsys)
    assert "unknown config key 'system.collector.nun'; did you mean 'system.collector.num'?" in line


def test_exponent_is_a_number_in_the_file_and_in_a_setting(file: Path) -> None:
    file.write_text("main: {policy: {type: dqn, learn: {learning_rate: 1e-3}}}")
    assert read_config(file).main.policy["learn"] == {"learning_rate": 0.001}
    assert read_config(file, ["system.coordinator.lease=2E+1"]).system.coordinator.lease == 20


def test_empty_file_is_the_defaults(file: Path) -> None:
    file.write_text("")
    assert read_config(file) == ParallelConfig()


def test_config_that_was_written_is_read_as_it_was(file: Path) -> None:
    cfg = read_config(_with(file, "main: {seed: 3, policy: {type: sac, learn: {learning_rate_q: 1e-5}}}"))
    written = file.with_name("config.json")
    written.write_text(json.dumps(to_dict(cfg)))
    assert to_dict(read_config(written)) == to_dict(cfg)


def test_folder_with_a_run_needs_resume_or_another_name(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _with(file, "main: {exp_name: old}")
    Path("old/coordinator").mkdir(parents=True)
    Path("old/coordinator/run.db").touch()
    line = error_of("parallel", "--config", file, capsys=capsys)
    assert "main.exp_name='old' contains a run: --resume continues it, a finished one with a larger limit" in line


def test_folder_with_a_run_that_is_over_needs_another_name(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _with(file, "main: {exp_name: old}")
    Path("old/learner").mkdir(parents=True)
    line = error_of("parallel", "--config", file, capsys=capsys)
    assert "main.exp_name='old' contains a finished run: choose another folder" in line


def test_folder_without_a_run_cannot_be_resumed(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _with(file, "main: {exp_name: new}")
    assert "'new' contains no run to resume" in error_of("parallel", "--config", file, "--resume", capsys=capsys)


def test_coordinator_that_finds_nothing_to_resume_ends_in_one_line_and_writes_nothing(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lightning_ding.entry.coordinate.torch.set_num_threads", lambda number: None)
    _with(file, "main: {exp_name: misspelt}")
    line = error_of("coordinator", "--config", file, "--resume", capsys=capsys)
    assert line == (
        "error: main.exp_name='misspelt' contains no run to resume: start without --resume, or correct main.exp_name"
    )
    assert not Path("misspelt").exists()
    entry = Path("misspelt/coordinator/journal/buffer/000000000001_a_0.safetensors")
    entry.parent.mkdir(parents=True)
    entry.touch()
    for options in ([], ["--resume"]):
        for command in ("coordinator", "parallel"):
            line = error_of(command, "--config", file, *options, capsys=capsys)
            assert (
                f"contains files of a run, such as {entry.relative_to('misspelt')}, but not coordinator/run.db" in line
            )
    assert [one for one in Path("misspelt").rglob("*") if one.is_file()] == [entry]


def test_single_role_over_ray_is_refused(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _with(file, "system: {transport: ray}")
    assert "system.transport 'ray' has no single roles" in error_of("learner", "--config", file, capsys=capsys)


def test_worker_needs_host_and_port_together(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _with(file, "")
    line = error_of("collector", "--config", file, "--host", "127.0.0.1", capsys=capsys)
    assert "host and port must be given together" in line


def test_coordinator_listens_elsewhere_only_with_a_token(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _with(file, "main: {exp_name: new}")
    line = error_of("coordinator", "--config", file, "--host", "0.0.0.0", capsys=capsys)
    assert "loopback address unless there is a token" in line


def test_token_file_that_is_missing_or_short_is_named(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _with(file, "system: {coordinator: {token_file: token}}")
    assert "'token'" in error_of("collector", "--config", file, capsys=capsys)
    Path("token").write_text("short")
    Path("token").chmod(0o600)
    assert "at least 16" in error_of("learner", "--config", file, capsys=capsys)


def _with(file: Path, text: str) -> Path:
    file.write_text(text)
    return file


def test_an_own_env_is_read_from_the_file_and_the_settings(file: Path) -> None:
    path = "gymnasium.envs.classic_control.CartPoleEnv"
    file.write_text(f"main: {{env: {{env_id: {{class_path: {path}, init_args: {{sutton_barto_reward: true}}}}}}}}")
    cfg = read_config(file, ["main.env.wrappers=[gymnasium.wrappers.FlattenObservation]"])
    assert cfg.main.env.env_id == {"class_path": path, "init_args": {"sutton_barto_reward": True}}
    assert cfg.main.env.wrappers == ("gymnasium.wrappers.FlattenObservation",)
    check_env(cfg)
    file.write_text(json.dumps(to_dict(cfg)))
    assert read_config(file) == cfg
