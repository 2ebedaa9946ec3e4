"""Parallel games of PettingZoo as envs of a team: spaces, padding, masks, ends, rewards, names, states and faults."""

from __future__ import annotations

import functools
import pickle
import re
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from lightning_ding.envs import NormaliseReward, env_state, load_env_state, make_vector_env
from lightning_ding.envs.checks import EnvMaker
from lightning_ding.envs.game import GameEnv
from lightning_ding.envs.named import find_env
from lightning_ding.envs.state.codec import from_plain
from lightning_ding.envs.state.memo import NotPlainError
from lightning_ding.envs.teams import ParallelTeam
from tests.toys.parallel_games import Camp

CAMP = "tests.toys.parallel_games.Camp"


def team(**arguments: Any) -> ParallelTeam:
    return ParallelTeam(Camp, **arguments)


def places(env: ParallelTeam) -> float:
    return float(env.game.token.place)


# ---------------------------------------------------------------------------------------------------- spaces


def test_observations_of_different_sizes_are_filled_up_with_zeros() -> None:
    env = team()
    obs, info = env.reset(seed=0)
    seen = np.float32(1 + places(env))
    assert obs["agent_state"].tolist() == [[seen, seen, 0], [seen, seen, seen], [seen, 0, 0]]
    assert env.observation_space.contains(obs)
    assert env.observation_space["agent_state"].low.tolist() == [[-9, -9, 0], [-9, -9, -9], [-9, 0, 0]]
    assert (obs["alive"].tolist(), obs["agent_reward"].tolist(), info) == ([1, 1, 1], [0, 0, 0], {})
    assert obs["global_state"].tolist() == pytest.approx([0, places(env)])


def test_numbers_of_actions_may_differ_and_each_agent_gets_one_of_its_own_space() -> None:
    env = team()
    env.reset(seed=0)
    assert env.action_space == spaces.MultiDiscrete([2, 3, 4])
    env.step(np.array([1, 2, 3]))
    assert env.game.actions == [{"a": 3, "b": 5, "c": 7}]  # the first actions of their spaces are 2, 3 and 4


def test_boxes_of_different_sizes_are_filled_up_and_the_rest_is_ignored() -> None:
    env = team(box=True, masks="none")
    obs, _ = env.reset(seed=0)
    assert env.action_space.shape == (3, 4)
    assert env.action_space.high.tolist() == [[2, 2, 1, 1], [2, 2, 2, 1], [2, 2, 2, 2]]
    assert "action_mask" not in obs
    env.step(np.arange(12, dtype=np.float32).reshape(3, 4) / 12)
    (moves,) = env.game.actions
    assert [moves[one].tolist() for one in "abc"] == [
        pytest.approx([0, 1 / 12]),
        pytest.approx([4 / 12, 5 / 12, 6 / 12]),
        pytest.approx([8 / 12, 9 / 12, 10 / 12, 11 / 12]),
    ]


@pytest.mark.parametrize("where", ["info", "obs"])
def test_masks_of_both_conventions_are_side_by_side(where: str) -> None:
    env = team(masks=where)
    obs, _ = env.reset(seed=0)
    assert obs["action_mask"].tolist() == [1] * 9
    obs, *_ = env.step(np.array([0, 0, 0]))
    assert obs["action_mask"].tolist() == [0, 1, 0, 1, 1, 0, 1, 1, 1]
    assert obs["agent_state"].shape == (3, 3)


def test_agents_with_actions_of_different_kinds_are_refused() -> None:
    class Mixed(Camp):
        def action_space(self, agent: str) -> spaces.Space[Any]:
            return spaces.Discrete(2) if agent == "a" else spaces.Box(-1, 1, (2,))

    with pytest.raises(TypeError, match="all agents of a team must have Discrete actions, or all a Box"):
        ParallelTeam(Mixed)


# ---------------------------------------------------------------------------------------------------- options


def test_reward_of_the_team_is_the_sum_or_the_mean_and_agents_have_their_own() -> None:
    for how, total in (("sum", 6), ("mean", 2)):
        env = team(team_reward=how)
        env.reset(seed=0)
        obs, reward, *_ = env.step(np.array([1, 2, 3]))
        place = places(env)
        assert reward == pytest.approx(total + place * (3 if how == "sum" else 1))
        assert obs["agent_reward"].tolist() == pytest.approx([1 + place, 2 + place, 3 + place])
    assert "agent_reward" not in team(individual_rewards=False).reset(seed=0)[0]


def test_global_state_is_that_of_the_env_or_all_observations_or_none() -> None:
    joined, _ = team(global_state="joined").reset(seed=0)
    assert joined["global_state"].tolist() == joined["agent_state"].reshape(-1).tolist()
    assert "global_state" not in team(global_state="none").reset(seed=0)[0]
    assert "global_state" not in team(has_state=False).reset(seed=0)[0]
    with pytest.raises(ValueError, match="global_state must be another than 'env': it has no state"):
        team(has_state=False, global_state="env")


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"team_reward": "max"}, 'team_reward must be "sum" or "mean", got \'max\''),
        ({"lone_truncation": "cut"}, 'lone_truncation must be "error" or "leave", got \'cut\''),
        ({"global_state": "own"}, 'global_state must be "env", "joined", "none" or None, got \'own\''),
    ],
)
def test_other_options_are_refused(option: Any, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        team(**option)


def test_making_an_env_leaves_the_global_random_numbers_as_they_are() -> None:
    class Draws(Camp):
        def reset(self, seed: int | None = None, options: Any = None) -> Any:
            np.random.uniform()
            return super().reset(seed, options)

    before = np.random.get_state()[2]  # type: ignore[index]
    ParallelTeam(Draws)
    assert np.random.get_state()[2] == before  # type: ignore[index]


# ---------------------------------------------------------------------------------------------------- ends


def play(env: ParallelTeam, steps: int) -> list[Any]:
    env.reset(seed=0)
    return [env.step(np.array([1, 1, 1])) for _ in range(steps)]


def test_agent_that_terminates_is_not_alive_sees_zeros_and_does_not_act() -> None:
    env = team(leaves={"b": 2})
    first, second, third, last = play(env, 4)
    assert [step[0]["alive"].tolist() for step in (first, second, third)] == [[1, 1, 1], [1, 0, 1], [1, 0, 1]]
    assert second[0]["agent_state"][1].tolist() == [0, 0, 0]
    assert second[0]["agent_reward"][1] > 0  # of the step in which it left
    assert third[0]["agent_reward"][1] == 0
    assert second[0]["action_mask"].tolist() == [1, 1, 1, 0, 0, 1, 1, 1, 1]
    assert [sorted(moves) for moves in env.game.actions] == [["a", "b", "c"]] * 2 + [["a", "c"]] * 2
    assert [step[2:4] for step in (first, second, third, last)] == [(False, False)] * 3 + [(False, True)]


def test_all_agents_truncated_is_a_truncation_in_which_they_are_alive() -> None:
    *_, last = play(team(), 4)
    assert last[2:4] == (False, True)
    assert last[0]["alive"].tolist() == [1, 1, 1]
    assert (last[0]["agent_state"][:, 0] > 0).all()


def test_termination_of_all_is_that_of_the_team_whose_last_agents_see_their_last_observations() -> None:
    *_, last = play(team(leaves={"a": 3, "b": 2, "c": 3}), 3)
    assert last[2:4] == (True, False)
    assert last[0]["alive"].tolist() == [1, 0, 1]  # so that learn.ignore_done can bootstrap
    assert (last[0]["agent_state"][:, 0] > 0).tolist() == [True, False, True]


def test_agents_that_terminate_in_the_step_that_truncates_others_have_no_value() -> None:
    *_, last = play(team(leaves={"a": 4}), 4)  # a is truncated too
    assert last[2:4] == (False, True)
    assert last[0]["alive"].tolist() == [0, 1, 1]


def test_agent_that_is_truncated_alone_is_an_error_or_leaves() -> None:
    cuts = {"b": 2, "a": 4, "c": 4}
    with pytest.raises(ValueError, match=r"b was truncated while other agents continue.*lone_truncation"):
        play(team(cuts=cuts), 2)
    _, second, _, last = play(team(cuts=cuts, lone_truncation="leave"), 4)
    assert (second[0]["alive"].tolist(), second[2:4]) == ([1, 0, 1], (False, False))
    assert (last[0]["alive"].tolist(), last[2:4]) == ([1, 0, 1], (False, True))


def test_info_of_each_step_has_the_return_of_each_agent_so_far() -> None:
    steps = play(team(leaves={"c": 1}), 4)
    rewards = np.cumsum([step[0]["agent_reward"].astype(np.float64) for step in steps], 0)
    for so_far, step in zip(rewards, steps, strict=True):
        assert [step[4][f"return_{one}"] for one in "abc"] == pytest.approx(so_far.tolist())
    assert sum(steps[-1][4].values()) == pytest.approx(sum(step[1] for step in steps))


# ---------------------------------------------------------------------------------------------------- names


@pytest.mark.parametrize(
    "env_id",
    [
        "pettingzoo:tests.toys.parallel_games",  # a module with parallel_env
        "pettingzoo:tests.toys.parallel_games.parallel_env",
        {"class_path": "lightning_ding.envs.teams.ParallelTeam", "init_args": {"game": CAMP}},
        CAMP,
        Camp,
        lambda **kwargs: Camp(**kwargs),
    ],
)
def test_env_by_name_class_or_function(env_id: Any) -> None:
    pytest.importorskip("pettingzoo")
    env = make_vector_env(env_id, 2, env_kwargs={"masks": "none"}, wrappers=[{"time_limit": {"max_episode_steps": 2}}])
    obs, _ = env.reset(seed=0)
    assert obs["agent_state"].shape == (2, 3, 3)
    env.step(env.action_space.sample())
    assert env.step(env.action_space.sample())[3].all()
    env.close()


def test_options_of_the_team_stand_beside_the_arguments_of_the_game() -> None:
    pytest.importorskip("pettingzoo")
    find = find_env("pettingzoo:tests.toys.parallel_games")
    env = EnvMaker(find, (), {"team_reward": "mean", "global_state": "joined", "masks": "none"})()
    assert env.reset(seed=0)[0]["global_state"].shape == (9,)


def test_turn_based_games_are_those_of_one_player() -> None:
    pytest.importorskip("pettingzoo")
    for name in ("pettingzoo:tictactoe_v3", "pettingzoo:tests.toys.games.RelayGame"):
        found: Any = find_env(name)
        assert found.func is GameEnv
    with pytest.raises(TypeError, match="game must be a parallel env of PettingZoo, got RelayGame"):
        ParallelTeam("tests.toys.games.RelayGame")
    with pytest.raises(TypeError, match="got Camp; ParallelTeam takes parallel games"):
        GameEnv(Camp)
    with pytest.raises(ValueError, match=r"got 'tests\.toys\.parallel_gamse': .* and no module with parallel_env"):
        find_env("pettingzoo:tests.toys.parallel_gamse")


def test_env_renders_and_closes_the_game() -> None:
    env = team(render_mode="rgb_array")
    env.reset(seed=0)
    assert (env.render_mode, env.render().shape, env.metadata["render_fps"]) == ("rgb_array", (16, 16, 3), 5)
    env.close()
    assert env.game.closed


# ---------------------------------------------------------------------------------------------------- vector envs


def rollout(env: Any, steps: int, seed: int) -> list[Any]:
    """Take random actions that depend on the seed alone."""
    env.action_space.seed(seed)
    return [env.step(env.action_space.sample())[:4] for _ in range(steps)]


def are_equal(one: list[Any], other: list[Any]) -> bool:
    pairs = zip(one, other, strict=True)
    same = [
        {name: a[0][name].tolist() for name in a[0]} == {name: b[0][name].tolist() for name in b[0]} for a, b in pairs
    ]
    rest = [
        all(np.array_equal(x, y) for x, y in zip(a[1:], b[1:], strict=True)) for a, b in zip(one, other, strict=True)
    ]
    return all(same) and all(rest)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_saved_state_continues_to_the_last_bit_in_other_envs(mode: Any) -> None:
    arguments: Any = {"num_envs": 2, "mode": mode, "env_kwargs": {"leaves": {"b": 2}}}
    arguments |= {"num_workers": 2} if mode == "async" else {}
    env, other = (make_vector_env(CAMP, seed=seed, **arguments) for seed in (1, 2))
    try:
        rollout(env, 7, seed=3)  # in the middle of an episode
        state = env_state(env)
        expected = rollout(env, 9, seed=4)
        assert not are_equal(rollout(other, 9, seed=4), expected)
        load_env_state(other, state)
        assert are_equal(rollout(other, 9, seed=4), expected)
    finally:
        env.close()
        other.close()


def test_restored_objects_refer_to_the_game_that_was_there() -> None:
    env, other = team(), team()
    env.reset(seed=0)
    other.reset(seed=1)
    game = other.game
    other.load_state_dict(env.state_dict())
    assert other.game is game
    assert game.token.game is game
    assert places(env) == places(other)


@pytest.mark.parametrize("name", [["pickle", "Pickler"], ["subprocess", "Popen"], ["tests.toys.games", "RelayGame"]])
def test_state_may_name_no_class_of_another_package(name: list[str]) -> None:
    pickle.dumps(0)
    with pytest.raises(NotPlainError, match="was an object of another package, which is not expected here"):
        from_plain({"kind": "instance", "class": name, "parts": {}})
    env = team()
    env.reset(seed=0)
    state = env.state_dict()
    state["game"]["parts"]["token"] = {"kind": "instance", "class": name, "parts": {}}
    if name[0] != "tests.toys.games":  # a class of the game's own package is allowed
        with pytest.raises(NotPlainError, match=re.escape(f"game.token was a {'.'.join(name)}, which is not imported")):
            env.load_state_dict(state)


def test_fault_of_one_env_in_a_process_ends_its_episode_alone() -> None:
    pytest.importorskip("pettingzoo")
    makers = [functools.partial(Camp, breaks=breaks) for breaks in (2, 0)]
    from lightning_ding.envs.process.vector_env import ProcessVectorEnv

    env = ProcessVectorEnv([functools.partial(ParallelTeam, one) for one in makers], on_env_error="restart")
    try:
        env.reset(seed=[0, 1])
        env.step(np.ones((2, 3), np.int64))
        *_, truncated, info = env.step(np.ones((2, 3), np.int64))
        assert truncated.tolist() == [True, False]
        assert "it broke" in str(info["final_info"]["fault"][0] if "final_info" in info else info["fault"][0])
        assert env.step(np.ones((2, 3), np.int64))[0]["alive"].tolist() == [[1, 1, 1], [1, 1, 1]]
    finally:
        env.close()


# ---------------------------------------------------------------------------------------------------- wrappers


@pytest.mark.parametrize(
    ("mode", "wrapper"),
    [
        ("sync", "clip_reward"),
        ("async", "sign_reward"),
        ("sync", lambda env: gym.wrappers.TimeLimit(gym.wrappers.TransformReward(env, lambda x: -float(x)), 5)),
    ],
)
def test_wrappers_that_change_the_reward_of_the_team_alone_are_refused(mode: Any, wrapper: Any) -> None:
    with pytest.raises(ValueError, match="reward of the team, and not those of its agents in 'agent_reward'"):
        make_vector_env(CAMP, 2, mode, wrappers=[wrapper])


def test_team_without_rewards_of_agents_takes_these_wrappers() -> None:
    half: dict[str, Any] = {"wrappers": [{"scale_reward": {"scale": 0.5}}], "env_kwargs": {"individual_rewards": False}}
    halved, raw = make_vector_env(CAMP, 1, seed=0, **half), make_vector_env(CAMP, 1, seed=0)
    rewards = []
    for env in (halved, raw):
        env.reset()
        rewards.append(float(env.step(np.zeros((1, 3), np.int64))[1][0]))
        env.close()
    assert rewards[0] == 0.5 * rewards[1] != 0


def test_normalised_rewards_outside_of_a_datamodule_need_a_team_without_rewards_of_agents() -> None:
    with pytest.raises(ValueError, match=r"must not be that of a team for NormaliseReward.*individual_rewards"):
        NormaliseReward(make_vector_env(CAMP, 2), 0.99)
    env = NormaliseReward(make_vector_env(CAMP, 2, env_kwargs={"individual_rewards": False}), 0.99)
    env.close()
