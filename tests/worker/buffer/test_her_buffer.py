"""Hindsight replay: goals, rewards and ends on numbers worked out by hand, and against a slow search of each episode.

In the episode worked out by hand an env is at 0 and moves to 1, 2 and 3; its goal is 9. A step is rewarded with 0 at
the goal and with -1 elsewhere.

* ``final``: every new goal is 3, so the rewards of the three steps are -1, -1, 0.
* ``future``: the goals of the steps are in {1, 2, 3}, {2, 3} and {3}.
* ``episode``: each goal is in {1, 2, 3}.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from lightning_ding.datamodules.dataset_files import load_dataset
from lightning_ding.worker import HERReplayBuffer, create_buffer

GOAL = 9.0
STRATEGIES = ("future", "final", "episode")


class Judge(gym.Env[Any, Any]):
    """Computes rewards, and counts how often it is asked."""

    def __init__(self) -> None:
        self.calls = 0

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Mapping[str, Any]) -> NDArray[np.float32]:
        self.calls += 1
        assert info == {}
        return np.asarray(-(achieved_goal != desired_goal).any(-1).astype(np.float32))


class EndingJudge(Judge):
    """An episode ends at the goal."""

    def compute_terminated(self, achieved_goal: Any, desired_goal: Any, info: Mapping[str, Any]) -> NDArray[np.bool_]:
        return np.asarray((achieved_goal == desired_goal).all(-1))


def make_buffer(env: Any = None, seed: int = 0, **config: Any) -> HERReplayBuffer:
    buffer = create_buffer({"type": "her", **config}, seed=seed)
    assert isinstance(buffer, HERReplayBuffer)
    buffer.use_env(env or Judge())
    return buffer


def obs_of(place: float) -> dict[str, NDArray[np.float32]]:
    here = np.array([place], dtype=np.float32)
    return {"observation": here * 10, "achieved_goal": here, "desired_goal": np.array([GOAL], dtype=np.float32)}


def step(before: float, after: float, env_id: int = 0, episode_id: int = 0) -> dict[str, Any]:
    own = {"obs": obs_of(before), "next_obs": obs_of(after), "action": 1, "reward": np.float32(-(after != GOAL))}
    return {**own, "terminated": False, "truncated": False, "env_id": env_id, "episode_id": episode_id}


def by_hand(buffer: HERReplayBuffer) -> None:
    buffer.push([step(place, place + 1) for place in range(3)])


def goals_of_steps(buffer: HERReplayBuffer, draws: int = 60) -> dict[float, set[tuple[float, float, bool]]]:
    """Return the goals, rewards and ends that the steps were drawn with, by the place after them."""
    found: dict[float, set[tuple[float, float, bool]]] = {}
    batch = buffer.sample(3, num_batches=draws)
    columns = [batch["next_obs"]["achieved_goal"], batch["next_obs"]["desired_goal"], batch["reward"]]
    for after, goal, reward, end in zip(
        *(x.reshape(-1).tolist() for x in (*columns, batch["terminated"])), strict=True
    ):
        found.setdefault(after, set()).add((goal, reward, end))
    return found


# ---------------------------------------------------------------------------------------------------- by hand


def test_final_goal_is_the_last_state_of_the_episode() -> None:
    buffer = make_buffer(her_strategy="final", her_replay_k=10**9)  # every draw gets a new goal
    by_hand(buffer)
    assert goals_of_steps(buffer) == {1.0: {(3.0, -1.0, False)}, 2.0: {(3.0, -1.0, False)}, 3.0: {(3.0, 0.0, False)}}


def test_future_goals_are_states_after_the_step() -> None:
    buffer = make_buffer(her_strategy="future", her_replay_k=10**9)
    by_hand(buffer)
    assert goals_of_steps(buffer) == {
        1.0: {(1.0, 0.0, False), (2.0, -1.0, False), (3.0, -1.0, False)},
        2.0: {(2.0, 0.0, False), (3.0, -1.0, False)},
        3.0: {(3.0, 0.0, False)},
    }


def test_episode_goals_are_all_states_after_steps_of_the_episode() -> None:
    buffer = make_buffer(her_strategy="episode", her_replay_k=10**9)
    by_hand(buffer)
    goals = {after: {goal for goal, _, _ in of_step} for after, of_step in goals_of_steps(buffer).items()}
    assert goals == {after: {1.0, 2.0, 3.0} for after in (1.0, 2.0, 3.0)}


def test_step_to_a_new_goal_terminates_if_the_env_says_so() -> None:
    buffer = make_buffer(EndingJudge(), her_strategy="final", her_replay_k=10**9)
    by_hand(buffer)
    assert goals_of_steps(buffer) == {1.0: {(3.0, -1.0, False)}, 2.0: {(3.0, -1.0, False)}, 3.0: {(3.0, 0.0, True)}}


@pytest.mark.parametrize(("k", "relabelled"), [(0, 0), (1, 5), (4, 8), (9, 9)])
def test_share_of_new_goals_is_k_of_k_plus_one(k: int, relabelled: int) -> None:
    buffer = make_buffer(her_replay_k=k)
    for episode_id, first in enumerate((20, 50)):
        buffer.push([step(place, place + 1, episode_id=episode_id) for place in range(first, first + 20)])
    batch = buffer.sample(10)
    assert (batch["obs"]["desired_goal"][:relabelled] != GOAL).all()
    assert (batch["obs"]["desired_goal"][relabelled:] == GOAL).all()
    assert (batch["reward"][relabelled:] == -1).all()


def test_observation_before_and_after_a_step_get_the_same_goal_and_nothing_else_changes() -> None:
    buffer = make_buffer()
    by_hand(buffer)
    batch = buffer.sample(3, num_batches=4)
    assert torch.equal(batch["obs"]["desired_goal"], batch["next_obs"]["desired_goal"])
    assert torch.equal(batch["obs"]["achieved_goal"] + 1, batch["next_obs"]["achieved_goal"])
    assert torch.equal(batch["obs"]["observation"], 10 * batch["obs"]["achieved_goal"])
    stored = buffer.transitions()
    assert (stored["obs"]["desired_goal"] == GOAL).all()
    assert (stored["reward"] == -1).all()


def test_env_is_asked_once_for_all_minibatches() -> None:
    judge = Judge()
    buffer = make_buffer(judge)
    buffer.push([step(place, place + 1) for place in (6, 7, 8)])
    buffer.sample(3, num_batches=50)
    assert judge.calls == 2  # for the rewards of the env too, which are -1, -1 and 0
    buffer.sample(3, num_batches=50)
    assert judge.calls == 3


# ---------------------------------------------------------------------------------------------------- slow oracle


def allowed_goals(pushed: list[dict[str, Any]], capacity: int, strategy: str) -> dict[float, set[float]]:
    """Return the goals of each stored transition, by the place after it, by searching all stored transitions."""
    kept = pushed[-capacity:]
    found: dict[float, set[float]] = {}
    for number, one in enumerate(kept):
        mine = [other for other in kept if other["episode_id"] == one["episode_id"]]
        later = [other for other in kept[number:] if other["episode_id"] == one["episode_id"]]
        among = {"future": later, "final": later[-1:], "episode": mine}[strategy]
        found[place_of(one)] = {place_of(other) for other in among}
    return found


def place_of(transition: dict[str, Any]) -> float:
    return float(transition["next_obs"]["achieved_goal"][0])


def random_history(rng: np.random.Generator, pushes: int) -> list[list[dict[str, Any]]]:
    """Return pushes of steps of three envs in irregular turns, with episodes of one to nine steps."""
    left, episode, where, newest = [0, 0, 0], [0, 0, 0], [0, 0, 0], -1
    history = []
    for _ in range(pushes):
        part = []
        for env_id in rng.integers(3, size=rng.integers(1, 14)).tolist():
            if left[env_id] == 0:
                newest += 1
                left[env_id], episode[env_id], where[env_id] = int(rng.integers(1, 10)), newest, 1000 * newest
            part.append(step(where[env_id], where[env_id] + 1, env_id, episode[env_id]))
            left[env_id] -= 1
            where[env_id] += 1
        history.append(part)
    return history


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("capacity", [7, 40, 1000])
def test_new_goals_are_those_that_a_search_of_the_episode_finds(strategy: str, capacity: int) -> None:
    rng, pushed = np.random.default_rng(capacity), list[dict[str, Any]]()
    buffer = make_buffer(her_strategy=strategy, her_replay_k=10**9, replay_buffer_size=capacity)
    for number, part in enumerate(random_history(rng, 40)):
        buffer.push(part)
        pushed += part
        if number % 4 == 3:
            batch = buffer.sample(buffer.count(), num_batches=80)
            places, goals = (batch["next_obs"][name].reshape(-1).tolist() for name in ("achieved_goal", "desired_goal"))
            drawn: dict[float, set[float]] = {}
            for place, goal in zip(places, goals, strict=True):
                drawn.setdefault(place, set()).add(goal)
            assert drawn == allowed_goals(pushed, capacity, strategy)


# ---------------------------------------------------------------------------------------------------- state


def test_restored_buffer_draws_the_same_minibatches() -> None:
    buffer, other = make_buffer(replay_buffer_size=40), make_buffer(seed=5, replay_buffer_size=40)
    history = random_history(np.random.default_rng(1), 30)
    for part in history[:20]:
        buffer.push(part)
    other.load_state_dict(buffer.state_dict())
    for part in history[20:]:
        buffer.push(part)
        other.push(part)
        one, same = (of.sample(9, num_batches=3) for of in (buffer, other))
        assert torch.equal(one["obs"]["desired_goal"], same["obs"]["desired_goal"])
        assert torch.equal(one["reward"], same["reward"])
        assert one["obs"]["desired_goal"].unique().numel() > 1


def test_merged_buffers_keep_their_episodes_apart(tmp_path: Path) -> None:
    files = [tmp_path / f"{rank}.safetensors" for rank in range(2)]
    for rank, file in enumerate(files):
        one = make_buffer(replay_buffer_size=40)
        one.push([step(100 * rank + place, 100 * rank + place + 1) for place in range(5)])
        one.save_data(file)
    merged = make_buffer(her_strategy="final", her_replay_k=10**9, replay_buffer_size=40)
    assert merged.load_files(files, np.random.SeedSequence(0)) == 2
    batch = merged.sample(10)
    ends = torch.where(batch["next_obs"]["achieved_goal"] > 50, 105.0, 5.0)
    assert torch.equal(batch["obs"]["desired_goal"], ends)


def test_cleared_buffer_forgets_its_episodes() -> None:
    buffer = make_buffer(her_strategy="final", her_replay_k=10**9)
    by_hand(buffer)
    buffer.clear()
    buffer.push([step(50, 51), step(51, 52)])
    assert buffer.sample(2)["obs"]["desired_goal"].unique().tolist() == [52.0]


def test_saved_buffer_is_a_data_set(tmp_path: Path) -> None:
    buffer = make_buffer()
    by_hand(buffer)
    buffer.save_data(tmp_path / "buffer.safetensors")
    data = load_dataset(tmp_path / "buffer.safetensors")
    assert data.columns["obs"]["achieved_goal"].reshape(-1).tolist() == [0.0, 1.0, 2.0]


# ---------------------------------------------------------------------------------------------------- errors


class SingleJudge(Judge):
    """Computes the reward of one goal only."""

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Mapping[str, Any]) -> Any:
        return -float((achieved_goal != desired_goal).any())


def test_mistakes_are_named() -> None:
    buffer = make_buffer()
    by_hand(buffer)
    with pytest.raises(ValueError, match=r"nstep must be 1 with the buffer 'her'.*got 3"):
        buffer.sample(2, n_step=3)
    buffer = make_buffer()
    by_hand(buffer)
    with pytest.raises(ValueError, match="first_step must be False with the buffer 'her'"):
        buffer.sample(2, first_step=True)
    buffer = create_buffer({"type": "her"})
    buffer.push([step(0, 1)])
    with pytest.raises(ValueError, match="needs an env for its rewards"):
        buffer.sample(1)
    with pytest.raises(ValueError, match="env must be one with compute_reward"):
        make_buffer(gym.make("CartPole-v1"))
    plain = {**step(0, 1), "obs": np.zeros(2), "next_obs": np.zeros(2)}
    with pytest.raises(ValueError, match="obs must be a dict with observation, achieved_goal, desired_goal"):
        make_buffer().push([plain])
    some = {name: value for name, value in step(0, 1).items() if name != "episode_id"}
    with pytest.raises(ValueError, match=r"data must be transitions with env_id and episode_id.*episode_id"):
        make_buffer().push([some])
    buffer = make_buffer(SingleJudge())
    by_hand(buffer)
    with pytest.raises(ValueError, match=r"compute_reward of the env must be a function of arrays.*\(3,\)"):
        buffer.sample(3)


@pytest.mark.parametrize(("place", "stored", "computed"), [(0, -2.0, "-1.0"), (8, 3.0, "-?0.0")])
def test_rewards_that_the_env_does_not_compute_are_refused(place: int, stored: float, computed: str) -> None:
    buffer = make_buffer()
    buffer.push([step(40 + before, 41 + before) for before in range(3)])
    buffer.sample(3)  # all of these rewards are equal, so the next draw is compared too
    buffer.push([{**step(place, place + 1, episode_id=1), "reward": np.float32(stored)}])
    message = f"compute_reward of the env must .* wrappers .*got '{computed} for a step with the reward {stored}'"
    with pytest.raises(ValueError, match=message):
        buffer.sample(4)


@pytest.mark.parametrize("key", ["episode_size", "sample_per_episode"])
def test_keys_of_whole_episodes_name_their_replacement(key: str) -> None:
    with pytest.raises(ValueError, match=f"{key}.*set learn.batch_size"):
        create_buffer({"type": "her", key: 4})


def test_wrong_options_are_refused() -> None:
    with pytest.raises(ValueError, match="her_replay_k must be >= 0, got -1"):
        create_buffer({"type": "her", "her_replay_k": -1})
    with pytest.raises(TypeError, match=r"her_strategy.*'future', 'final', 'episode'"):
        create_buffer({"type": "her", "her_strategy": "random"})
