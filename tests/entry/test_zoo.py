"""The policies that come with the package: their files, the command zoo, and ``zoo:NAME`` as a path."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file

from lightning_ding import load_policy, zoo
from lightning_ding.entry import cli

MAX_BYTES = 30_000_000
NAMES = sorted(zoo.policies())


def test_there_is_a_policy_for_each_kind_of_action() -> None:
    assert {"dqn_cartpole", "sac_pendulum"} <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_policy_loads_and_acts_in_the_space_of_its_env(name: str) -> None:
    found = zoo.find(name)
    policy = load_policy(f"zoo:{name}")
    assert policy.progress.env_step == found.env_step
    assert policy.env_spaces is not None
    observation_space, action_space = policy.env_spaces
    observation_space.seed(0)
    actor = policy.actor()
    actor.reset()
    assert action_space.contains(actor(observation_space.sample()))


def test_all_files_are_listed_and_small() -> None:
    files = list(zoo.FOLDER.glob("*.safetensors"))
    assert sorted(file.stem for file in files) == NAMES
    assert sum(file.stat().st_size for file in files) <= MAX_BYTES


def test_zoo_list_has_each_policy(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["zoo", "list"])
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split()[:3] == ["name", "policy", "env"]
    assert [row.split()[0] for row in rows] == NAMES
    cli.main(["zoo", "list", "--json"])
    assert sorted(json.loads(capsys.readouterr().out)) == NAMES


def test_zoo_get_copies_a_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    cli.main(["zoo", "get", "dqn_cartpole"])
    cli.main(["zoo", "get", "zoo:dqn_cartpole", "--output", "own.safetensors"])
    for file in ("dqn_cartpole.safetensors", "own.safetensors"):
        assert load_file(file).keys() == load_file(zoo.find("dqn_cartpole").file).keys()


def test_zoo_enjoy_and_evaluate_play_the_env_of_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pygame")
    monkeypatch.chdir(tmp_path)
    cli.main(["zoo", "enjoy", "sac_pendulum", "--video", "film.gif"])
    assert "episode 0: return" in capsys.readouterr().out
    assert Path("film.gif").read_bytes()[:3] == b"GIF"
    cli.main(["evaluate", "zoo:dqn_cartpole", "--episodes", "10", "--json"])
    assert json.loads(capsys.readouterr().out)["mean"] >= 400


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["zoo", "get", "dqn_cartpol"], "name must be that of a policy in the zoo (did you mean 'dqn_cartpole'?), got"),
        (["enjoy", "zoo:nothing"], "name must be that of a policy in the zoo ("),
        (["evaluate", "nowhere"], "ckpt must be the path of a checkpoint, or zoo:NAME, got 'nowhere'"),
    ],
)
def test_unknown_policy_ends_in_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as code:
        cli.main(arguments)
    assert code.value.code == 2
    assert message in capsys.readouterr().err


def test_file_that_has_changed_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(zoo.FOLDER, tmp_path / "zoo")
    monkeypatch.setattr(zoo, "FOLDER", tmp_path / "zoo")
    file = tmp_path / "zoo" / "dqn_cartpole.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with pytest.raises(ValueError, match=r"the file of the policy must be as index\.json describes it"):
        zoo.find("dqn_cartpole")
