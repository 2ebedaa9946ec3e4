"""The data sets of DI-engine's configs: HDF5 files, converted pickled files, D4RL's names and scales of rewards."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import h5py
import numpy as np
import pytest

from lightning_ding.datamodules import Dataset, OfflineDataModule
from lightning_ding.datamodules.dataset_files import load_dataset
from lightning_ding.di_engine.configs import Missing
from lightning_ding.di_engine.data_sets import (
    TRAJECTORIES,
    data_of_d4rl,
    env_of_d4rl,
    file_of_d4rl,
    find_data_set,
    pickle_command,
)
from lightning_ding.di_engine.translate import translate
from lightning_ding.envs import make_vector_env
from tests.di_engine.pairs import pair_of

OBS = np.arange(12, dtype=np.float32).reshape(6, 2)
REWARD = np.array([1, 2, 3, 4, 5, 6], np.float32)


def write_hdf5(path: Path, **columns: Any) -> str:
    """Write arrays as an HDF5 file, with one of D4RL's groups next to them."""
    with h5py.File(path, "w") as file:
        for name, value in columns.items():
            file[name] = value
        file["metadata/algorithm"] = "SAC"
    return str(path)


def d4rl_columns() -> dict[str, Any]:
    """Return two episodes in D4RL's form: the first ends with a termination, the second with a time limit."""
    ends = {"terminals": [0, 0, 1, 0, 0, 0], "timeouts": [0, 0, 0, 0, 0, 1]}
    action = np.linspace(-1, 1, 6, dtype=np.float32)[:, None]
    return {"observations": OBS, "actions": action, "rewards": REWARD, "next_observations": OBS + 2, **ends}


def test_hdf5_of_d4rl_is_read(tmp_path: Path) -> None:
    data = load_dataset(write_hdf5(tmp_path / "a.hdf5", **d4rl_columns()))
    assert data.columns["terminated"].tolist() == [False, False, True, False, False, False]
    assert data.columns["truncated"].tolist() == [False] * 5 + [True]
    assert (data.columns["reward"] == REWARD).all()
    assert (data.columns["next_obs"] == OBS + 2).all()
    assert data.bounds().tolist() == [0, 3, 6]


def test_hdf5_of_ding_is_read_as_it_learns_from_it(tmp_path: Path) -> None:
    columns = {"obs": OBS, "action": np.arange(6)[:, None] % 3, "reward": REWARD[:, None], "next_obs": OBS + 2}
    data = load_dataset(write_hdf5(tmp_path / "a.h5", **columns, done=[False, True, False, False, False, True]))
    assert data.columns["action"].tolist() == [0, 1, 2, 0, 1, 2]
    assert data.columns["reward"].tolist() == REWARD.tolist()
    assert data.columns["terminated"].tolist() == [False, True, False, False, False, True]
    assert not data.columns["truncated"].any()


def test_file_that_is_no_hdf5_or_has_no_transitions_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.hdf5").write_text("no")
    with pytest.raises(ValueError, match=r"dataset must be an HDF5 file, got .*a\.hdf5"):
        load_dataset(tmp_path / "a.hdf5")
    with pytest.raises(ValueError, match=r"dataset must be transitions with obs, action, reward, terminated"):
        load_dataset(write_hdf5(tmp_path / "b.hdf5", obs=OBS))
    with pytest.raises(ValueError, match=r"dataset must be the path of a file, got .*gone\.hdf5"):
        load_dataset(tmp_path / "gone.hdf5")


def test_command_converts_a_pickled_file_of_transitions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    steps = [
        {"obs": OBS[row], "action": np.array([row % 2]), "reward": REWARD[row : row + 1], "done": row == 5}
        for row in range(6)
    ]
    Path("demos.pkl").write_bytes(pickle.dumps([{**step, "next_obs": step["obs"] + 2} for step in steps]))
    with pytest.raises(
        Missing, match=r"data_path = 'demos\.pkl' is a pickled file, .*: python -c \"import pickle"
    ) as got:
        find_data_set("data_path", "demos.pkl", "")
    command = str(got.value).partition("environment: ")[2]
    assert command == pickle_command("demos.pkl")
    subprocess.run(command.replace("python", sys.executable, 1), shell=True, check=True, env=os.environ)
    data = load_dataset(find_data_set("data_path", "demos.pkl", ""))
    assert data.columns["action"].tolist() == [0, 1, 0, 1, 0, 1]
    assert (data.columns["reward"] == REWARD).all()
    assert data.columns["terminated"].tolist() == [False] * 5 + [True]


def test_command_converts_a_pickled_file_of_trajectories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    columns = {name: np.asarray(value) for name, value in d4rl_columns().items() if name != "timeouts"}
    Path("a.pkl").write_bytes(
        pickle.dumps([{k: v[:4] for k, v in columns.items()}, {k: v[4:] for k, v in columns.items()}])
    )
    code = pickle_command("a.pkl", TRAJECTORIES).removeprefix('python -c "').removesuffix('"')
    exec(code, {})  # the code of the command
    data = load_dataset("a.npz")
    assert data.trajectories()["return_to_go"].tolist() == [6, 5, 3, 4, 11, 6]
    assert data.columns["truncated"].tolist() == [False, False, False, True, False, True]


@pytest.mark.parametrize(
    ("name", "env", "file"),
    [
        ("halfcheetah-medium-v2", "HalfCheetah-v5", "halfcheetah_medium-v2.hdf5"),
        ("hopper-medium-replay-v0", "Hopper-v5", "hopper_mixed.hdf5"),
        ("walker2d-medium-expert-v2", "Walker2d-v5", "walker2d_medium_expert-v2.hdf5"),
        ("pen-human-v0", "gymnasium_robotics:AdroitHandPen-v1", "pen-v0_demos_clipped.hdf5"),
        ("pen-human-v1", "gymnasium_robotics:AdroitHandPen-v1", "pen-v1_demos_clipped.hdf5"),
    ],
)
def test_names_of_d4rl(name: str, env: str, file: str) -> None:
    assert (env_of_d4rl(name), file_of_d4rl(name)) == (env, file)


def test_data_of_d4rl_are_its_file_or_those_of_minari(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("D4RL_DATASET_DIR", str(tmp_path))
    with pytest.raises(
        Missing, match=r"hopper-medium-v2 is not on this machine: .*minari download mujoco/hopper/medium-v0"
    ):
        data_of_d4rl("hopper-medium-v2")
    with pytest.raises(Missing, match=r"put D4RL's file hopper_random-v2\.hdf5 into"):
        data_of_d4rl("hopper-random-v2")
    monkeypatch.setattr("lightning_ding.di_engine.data_sets._is_local", lambda name: True)
    assert data_of_d4rl("hopper-medium-v2") == "mujoco/hopper/medium-v0"
    file = write_hdf5(tmp_path / "hopper_medium-v2.hdf5", **d4rl_columns())
    assert data_of_d4rl("hopper-medium-v2") == file


def halfcheetah(kind: str, **env: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a pair of the dizoo on D4RL's data, without a path."""
    policy = {"learn": {"train_epoch": 2, "batch_size": 4}, "collect": {"data_type": "d4rl", "data_path": None}}
    main, create = pair_of(kind, policy, env_id="hopper-medium-v2", use_act_scale=True, **env)
    create["env"] = {"type": "d4rl", "import_names": ["dizoo.d4rl.envs.d4rl_env"]}
    return main, create


def test_config_on_d4rl_learns_from_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("D4RL_DATASET_DIR", str(tmp_path))
    norm = {"use_norm": True, "offline_stats": {"use_offline_stats": True}}
    with pytest.raises(Missing, match="the data set hopper-medium-v2 is not on this machine"):
        translate(halfcheetah("td3_bc"))
    file = write_hdf5(tmp_path / "hopper_medium-v2.hdf5", **d4rl_columns())
    run = translate(halfcheetah("td3_bc", norm_obs=norm))
    assert (run.datamodule_class, run.data["dataset"]) == (OfflineDataModule, file)
    assert (run.data["env_id"], run.data["norm_obs"], run.data["max_train_iter"]) == ("Hopper-v5", True, 2 * 2)
    with pytest.raises(
        ValueError, match=r"env\.norm_obs\.offline_stats\.use_offline_stats must be True with a data set"
    ):
        translate(halfcheetah("td3_bc", norm_obs={"use_norm": True}))


def pendulum(kind: str, path: str, **env: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a pair of the dizoo for the pendulum, whose actions are in [-1, 1] there."""
    main, create = pair_of(kind, {"collect": {"data_type": "hdf5", "data_path": path}}, **env)
    create["env"] = {"type": "pendulum"}
    return main, create


STATES = np.random.default_rng(0).normal([1, 0, 2], [0.5, 1, 3], (6, 3)).astype(np.float32)
ACTIONS = np.array([-1, 1, 0.5, 0, -0.25, 0.75], dtype=np.float32)[:, None]


def pendulum_columns(**more: Any) -> dict[str, Any]:
    return {"obs": STATES, "action": ACTIONS, "reward": REWARD[:, None], "next_obs": STATES + 1} | more


@pytest.mark.parametrize("kind", ["td3_bc", "cql", "edac", "iql"])
def test_actions_of_dings_data_have_the_range_of_its_env(kind: str, tmp_path: Path) -> None:
    path = write_hdf5(tmp_path / "a.hdf5", **pendulum_columns(done=[False] * 5 + [True]))
    run = translate(pendulum(kind, path, act_scale=True))
    assert any("the envs take actions in [-1, 1]" in line for line in run.translated)
    envs = make_vector_env("Pendulum-v1", num_envs=1, mode="sync", wrappers=run.data["wrappers"])
    raw = gymnasium.make("Pendulum-v1")
    for env in (envs, raw):
        env.reset(seed=3)
    assert envs.single_action_space == gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    assert envs.step(np.array([[0.75]], np.float32))[0][0].tolist() == raw.step(np.array([1.5], np.float32))[0].tolist()
    unscaled = translate(pendulum(kind, path, act_scale=False)).data["wrappers"]
    assert [one.rpartition(".")[2] for one in unscaled] == ["UnitActions"]


def test_actions_in_the_range_of_the_env_are_left(tmp_path: Path) -> None:
    columns = {**pendulum_columns(), "action": 2 * ACTIONS, "reward": REWARD, "terminated": [False] * 6}
    path = write_hdf5(tmp_path / "a.hdf5", **columns, truncated=[False] * 5 + [True])
    assert "wrappers" not in translate(pendulum("td3_bc", path, act_scale=True)).data


def test_demonstrations_in_dings_form_have_the_range_of_its_env(tmp_path: Path) -> None:
    path = write_hdf5(tmp_path / "a.hdf5", **pendulum_columns(done=[False] * 5 + [True]))
    run = translate(pendulum("sqil_sac", path, act_scale=True))
    assert run.data["demonstrations"] == path
    assert [one["class_path"] for one in run.data["wrappers"]] == ["gymnasium.wrappers.RescaleAction"]


def test_statistics_of_the_data_normalize_any_env(tmp_path: Path) -> None:
    path = write_hdf5(tmp_path / "a.hdf5", **pendulum_columns(done=[False] * 5 + [True]))
    norm = {"use_norm": True, "offline_stats": {"use_offline_stats": True}}
    run = translate(pendulum("td3_bc", path, act_scale=True, norm_obs=norm))
    assert run.data["norm_obs"] is True
    assert not any("norm_obs" in line for line in run.warnings)
    online = translate(pendulum("sac", "", act_scale=True, norm_obs=norm))
    assert any("env.norm_obs has no effect" in line for line in online.warnings)
    assert "norm_obs" not in translate(pendulum("td3_bc", path, act_scale=True, norm_obs={"use_norm": True})).data


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("iql_locomotion", 1000 / (15 - 6) * REWARD),  # the episodes' returns are 6 and 15
        ("normalize", (REWARD - REWARD.mean()) / REWARD.std()),
        ("iql_antmaze", REWARD - 1),
        ("cql_antmaze", (REWARD - 0.5) * 4),
        ("antmaze", (REWARD - 0.25) * 2),
    ],
)
def test_rewards_of_the_data_set_are_scaled_as_in_ding(
    kind: str, expected: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("D4RL_DATASET_DIR", str(tmp_path))
    write_hdf5(tmp_path / "hopper_medium-v2.hdf5", **d4rl_columns())
    data = OfflineDataModule(**translate(halfcheetah("iql", reward_norm=kind)).data)
    np.testing.assert_allclose(data.dataset.columns["reward"], expected, rtol=1e-5)
    assert data.dataset.checksum != load_dataset(tmp_path / "hopper_medium-v2.hdf5").checksum


def test_scaled_rewards_leave_the_data_set_as_it_was() -> None:
    ends = {"terminated": np.arange(6) == 5, "truncated": np.zeros(6, bool)}
    data = Dataset({"obs": OBS, "action": np.arange(6) % 2, "reward": REWARD, **ends})
    assert data.with_rewards(1.0, 0.0) is data
    assert data.with_rewards(2.0, -1.0).statistics().return_mean == 2 * (21 - 6)
    assert data.statistics().return_mean == 21
    with pytest.raises(ValueError, match="reward_scale must be > 0, got 0"):
        OfflineDataModule(data, reward_scale=0)
