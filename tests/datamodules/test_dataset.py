"""Data sets: what belongs together, statistics, files, and errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from lightning_ding.datamodules import Dataset, load_dataset, save_dataset
from lightning_ding.worker import create_buffer
from tests.toys.datasets import counting_steps

Columns = dict[str, Any]


def without(data: Columns, *names: str) -> Columns:
    return {name: value for name, value in data.items() if name not in names}


def test_episodes_start_after_termination_and_truncation() -> None:
    data = Dataset(counting_steps())
    assert data.bounds().tolist() == [0, 3, 5, 9]
    assert data.whole_episodes().tolist() == [True, True, True]
    assert data.returns().tolist() == [6.0, 3.0, 10.0]


def test_final_observation_of_a_truncated_episode_is_kept() -> None:
    columns = Dataset(counting_steps()).columns
    assert columns["next_obs"][:, 0].tolist() == [1, 2, 3, 11, 12, 21, 22, 23, 24]


def test_without_next_obs_the_last_step_of_an_episode_that_did_not_terminate_is_left_out() -> None:
    columns = Dataset(without(counting_steps(), "next_obs")).columns
    assert columns["obs"][:, 0].tolist() == [0, 1, 2, 10, 20, 21, 22]
    assert columns["next_obs"][:, 0].tolist() == [1, 2, 2, 11, 21, 22, 23]  # the third has no value
    assert columns["episode_id"].tolist() == [0, 0, 0, 1, 2, 2, 2]


def test_without_next_obs_an_episode_that_was_truncated_counts_as_whole() -> None:
    data = Dataset(without(counting_steps(), "next_obs"))
    assert data.whole_episodes().tolist() == [True, True, True]
    assert data.columns["truncated"].nonzero()[0].tolist() == [3, 6]  # the last steps whose next observation is known


def test_without_next_obs_the_reward_of_a_step_that_is_left_out_counts_in_the_return() -> None:
    data = Dataset(without({**counting_steps(), "reward": np.arange(9.0)}, "next_obs"))
    whole = Dataset({**counting_steps(), "reward": np.arange(9.0)})
    assert data.returns().tolist() == whole.returns().tolist() == [3.0, 7.0, 26.0]
    assert data.statistics().return_mean == whole.statistics().return_mean
    assert data.trajectories()["return_to_go"][:5].tolist() == [3.0, 3.0, 2.0, 7.0, 26.0]


def test_without_next_obs_a_truncated_episode_of_one_step_is_left_out() -> None:
    data = Dataset(without(counting_steps((2, 1, 2), (False, False, True)), "next_obs"))
    assert data.columns["obs"][:, 0].tolist() == [0, 20, 21]
    assert data.columns["truncated"].tolist() == [True, False, False]


@pytest.mark.parametrize("dtype", [np.bool_, np.uint8, np.int32])
def test_whole_actions_are_int64(dtype: Any) -> None:
    steps = counting_steps()
    data = Dataset({**steps, "action": (steps["action"] > 0).astype(dtype)})
    assert data.columns["action"].dtype == np.int64
    assert data.action_space == spaces.Discrete(2)


def test_without_truncated_an_episode_ends_where_the_next_observation_is_another() -> None:
    data = Dataset(without(counting_steps(), "truncated"))
    assert data.bounds().tolist() == [0, 3, 5, 9]
    assert data.whole_episodes().tolist() == [True, False, False]
    assert data.statistics().return_max == 6.0  # of the whole episode


def test_rows_of_several_envs_in_turns_are_sorted_into_episodes() -> None:
    data = counting_steps((3, 3), (False, False))
    turns = np.array([0, 3, 1, 4, 2, 5])
    mixed = {name: value[turns] for name, value in data.items()}
    for names in ({"env_id": np.array([0, 1, 0, 1, 0, 1])}, {"episode_id": np.array([7, 9, 7, 9, 7, 9])}):
        found = Dataset({**mixed, **names}).columns
        assert found["obs"].tolist() == data["obs"].tolist()
        assert found["episode_id"].tolist() == [0, 0, 0, 1, 1, 1]


def test_names_of_d4rl_are_known() -> None:
    data = without(counting_steps(), "next_obs")
    names = {"obs": "observations", "action": "actions", "reward": "rewards", "terminated": "terminals"}
    renamed = {{**names, "truncated": "timeouts"}[name]: value for name, value in data.items()}
    assert len(Dataset(renamed)) == 7


def test_actions_below_zero_start_the_space_that_is_made_from_them() -> None:
    ends = {"reward": np.ones(3), "terminated": np.array([False, True, True]), "truncated": np.zeros(3, bool)}
    steps = {"obs": np.zeros((3, 2)), **ends}
    assert Dataset({**steps, "action": np.array([-1, 1, 0])}).action_space == spaces.Discrete(3, start=-1)
    joint = Dataset({**steps, "action": np.array([[-2, 1], [0, 2], [1, 0]])}).action_space
    assert joint == spaces.MultiDiscrete([4, 3], start=[-2, 0])


def test_spaces_are_made_from_the_data() -> None:
    data = Dataset(counting_steps())
    assert data.action_space == spaces.Discrete(2)
    assert data.observation_space == spaces.Box(-np.inf, np.inf, (2,), np.float32)
    steps = counting_steps()
    rows = np.linspace(-0.5, 2.0, 9, dtype=np.float64)[:, None]
    box = Dataset({**steps, "action": rows}).action_space
    assert isinstance(box, spaces.Box)
    assert (float(box.low[0]), float(box.high[0])) == (-0.5, 2.0)


def test_nested_observations_are_kept() -> None:
    steps = counting_steps()
    image = np.arange(9, dtype=np.uint8)[:, None, None] * np.ones((1, 2, 2), np.uint8)
    nested_steps = {**steps, "obs": {"a": steps["obs"], "b": image}, "next_obs": {"a": steps["next_obs"], "b": image}}
    data = Dataset(nested_steps)
    assert data.columns["obs"]["b"].shape == (9, 2, 2)
    assert data.observation_space["b"].dtype == np.uint8  # type: ignore[index]


def test_statistics_are_those_of_numpy() -> None:
    steps = counting_steps()
    found = Dataset(steps).statistics()
    np.testing.assert_allclose(found.obs_mean, steps["obs"].mean(0), rtol=1e-6)
    np.testing.assert_allclose(found.obs_std, steps["obs"].std(0), rtol=1e-6)
    assert (found.transitions, found.episodes) == (9, 3)
    assert (found.return_min, found.return_mean, found.return_max) == (3.0, 19 / 3, 10.0)
    assert (int(found.action_low), int(found.action_high)) == (0, 1)
    assert found.reward_mean == pytest.approx(19 / 9)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rewards_of_all": np.zeros(9)}, "entries among"),
        ({"reward": np.zeros(8)}, "8 long"),
        ({"reward": np.full(9, np.nan)}, "finite"),
        ({"reward": np.zeros((9, 1))}, r"of shape \(9,\)"),
        ({"action": np.array(["a"] * 9)}, "numbers"),
        ({"next_obs": np.zeros((9, 3))}, "shapes of obs"),
        ({"action": None}, "none of"),
        ({"truncated": None, "next_obs": None}, "tell episodes apart"),
    ],
)
def test_data_that_are_not_valid_are_refused(change: Columns, message: str) -> None:
    data = {name: value for name, value in {**counting_steps(), **change}.items() if value is not None}
    with pytest.raises(ValueError, match=message):
        Dataset(data)


@pytest.mark.parametrize(
    ("observation_space", "action_space", "message"),
    [
        (spaces.Box(-1, 1, (3,)), spaces.Discrete(2), "obs must be numbers for Box"),
        (spaces.Box(-1, 1, (2,)), spaces.Discrete(1), "action must be in Discrete"),
        (spaces.Box(-1, 1, (2,)), spaces.Discrete(2, start=1), "action must be in Discrete"),
        (spaces.Box(-1, 1, (2,)), spaces.Box(-1, 1, (1,)), "action must be numbers for Box"),
        (spaces.Dict({"a": spaces.Box(-1, 1, (2,))}), spaces.Discrete(2), "obs must be"),
    ],
)
def test_data_that_do_not_fit_an_env_are_refused(observation_space: Any, action_space: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Dataset(counting_steps()).check(observation_space, action_space)


# ---------------------------------------------------------------------- files


class Played:
    """What the writer of a data set reads of an env."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space: Any = spaces.Discrete(2, start=3)
    spec = None


def episodes() -> list[Columns]:
    steps = counting_steps()
    steps["action"] = steps["action"] + 3
    return [{name: value[part] for name, value in steps.items()} for part in (slice(0, 3), slice(3, 5), slice(5, 9))]


def test_npz_file_returns_what_was_written(tmp_path: Path) -> None:
    file = tmp_path / "folder" / "steps.npz"
    save_dataset(episodes(), str(file), Played, "dqn")
    found = load_dataset(file)
    for name, value in counting_steps().items():
        np.testing.assert_array_equal(found.columns[name], value + 3 if name == "action" else value)
    assert found.action_space == spaces.Discrete(2, start=3)


def test_mistakes_are_named(tmp_path: Path) -> None:
    steps = {**counting_steps(), "action": np.linspace(-3, 2, 9)[:, None]}
    with pytest.raises(ValueError, match=r"action must be in Box\(-2.0, 2.0, .*from \[-3.0\] to \[2.0\]"):
        Dataset(steps, action_space=spaces.Box(-2, 2, (1,)))
    file = str(tmp_path / "steps.npz")
    save_dataset(episodes(), file, Played, "dqn")
    with pytest.raises(ValueError, match="out must be a path that does not exist yet"):
        save_dataset(episodes(), file, Played, "dqn")


def test_npz_file_keeps_the_bounds_of_a_box(tmp_path: Path) -> None:
    class Torque(Played):
        action_space = spaces.Box(-2, 2, (1,))

    steps = {**counting_steps((2,), (True,)), "action": np.zeros((2, 1), np.float32)}
    save_dataset([steps], str(tmp_path / "steps.npz"), Torque, "sac")
    assert load_dataset(str(tmp_path / "steps.npz")).action_space == Torque.action_space


@pytest.mark.parametrize("kind", ["naive", "advanced"])
def test_file_of_a_replay_buffer_is_read(kind: str, tmp_path: Path) -> None:
    buffer = create_buffer({"type": kind, "replay_buffer_size": 8}, seed=0)
    steps, turns = counting_steps((5, 5), (True, False)), np.array([0, 5, 1, 6, 2, 7, 3, 8, 4, 9])
    env_id = np.array([0, 1] * 5)
    buffer.push({**{name: value[turns] for name, value in steps.items()}, "env_id": env_id, "episode_id": env_id})
    buffer.save_data(tmp_path / "buffer.safetensors")
    found = load_dataset(tmp_path / "buffer.safetensors")
    assert found.columns["obs"][:, 0].tolist() == [1, 2, 3, 4, 11, 12, 13, 14]  # the oldest two are overwritten
    assert found.columns["next_obs"][:, 0].tolist() == [2, 3, 4, 5, 12, 13, 14, 15]
    assert found.starts_at_zero


@pytest.fixture
def minari_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    return tmp_path


def test_minari_data_set_returns_what_was_written(minari_folder: Path) -> None:
    save_dataset(episodes(), "toy/counting-v0", Played, "dqn")
    found = load_dataset("toy/counting-v0")
    for name, value in counting_steps().items():
        np.testing.assert_array_equal(found.columns[name], value + 3 if name == "action" else value)
    assert found.action_space == Played.action_space
    with pytest.raises(ValueError, match="no data set on this machine"):
        save_dataset(episodes(), "toy/counting-v0", Played, "dqn")


def test_data_set_of_minaris_own_collector_is_read(minari_folder: Path) -> None:
    pytest.importorskip("jax", reason="Minari's collector needs it")
    import gymnasium as gym
    import minari

    collector = minari.DataCollector(gym.make("CartPole-v1", max_episode_steps=4))
    for seed in range(2):
        collector.reset(seed=seed)
        over = False
        while not over:
            _, _, terminated, truncated, _ = collector.step(seed)
            over = terminated or truncated
    collector.create_dataset("toy/cartpole-v0", requirements=[])
    found = load_dataset("minari:toy/cartpole-v0")
    assert found.bounds().tolist() == [0, 4, 8]
    assert found.columns["truncated"].nonzero()[0].tolist() == [3, 7]
    assert found.columns["action"].tolist() == [0] * 4 + [1] * 4


@pytest.mark.parametrize("name", ["missing.npz", "missing.safetensors", "no data set", 7])
def test_data_set_that_is_not_there_is_refused(name: Any) -> None:
    with pytest.raises(ValueError, match="dataset must be"):
        load_dataset(name)


def test_file_that_is_no_npz_file_or_needs_pickle_is_refused(tmp_path: Path) -> None:
    objects = np.array([{}, {}], dtype=object)
    np.savez(tmp_path / "objects.npz", obs=objects)
    (tmp_path / "text.npz").write_bytes(b"hello")
    (tmp_path / "empty.npz").write_bytes(b"")
    with (tmp_path / "array.npz").open("wb") as file:
        np.save(file, np.zeros(3))
    for name in ("objects", "text", "empty", "array"):
        with pytest.raises(ValueError, match=r"dataset must be an \.npz file"):
            load_dataset(tmp_path / f"{name}.npz")


def test_minari_data_set_that_is_not_there_is_refused(minari_folder: Path) -> None:
    with pytest.raises(ValueError, match="minari download toy/missing-v0"):
        load_dataset("toy/missing-v0")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"reward": 1.0}, r"dataset's reward must be of shape \(N,\), one number for each .*, got \(\)"),
        ({"reward": np.full(9, np.nan)}, "dataset's reward must be finite"),
        ({"obs": np.full((9, 2), np.inf)}, "dataset's obs must be finite"),
        ({"next_obs": np.full((9, 2), np.nan)}, "dataset's next_obs must be finite"),
        ({"action": np.full((9, 2), np.nan)}, "dataset's action must be finite"),
        (
            {"terminated": np.full(9, 0.5)},
            r"dataset's terminated must be of booleans, or 0 and 1, got \[0.5, ",
        ),
        ({"truncated": np.full(9, 2)}, "dataset's truncated must be of booleans, or 0 and 1"),
    ],
)
def test_values_that_have_no_meaning_are_refused_with_the_entry_and_the_file(
    changes: Columns, message: str, tmp_path: Path
) -> None:
    steps = {**counting_steps(), **changes}
    with pytest.raises(ValueError, match=message):
        Dataset(steps)
    np.savez(tmp_path / "steps.npz", **steps)
    with pytest.raises(ValueError, match=rf"{message}.* \(in .*steps\.npz\)"):
        load_dataset(tmp_path / "steps.npz")


def test_ends_as_numbers_are_taken() -> None:
    steps = counting_steps()
    data = Dataset({**steps, "terminated": steps["terminated"].astype(np.float32)})
    assert data.columns["terminated"].dtype == bool
