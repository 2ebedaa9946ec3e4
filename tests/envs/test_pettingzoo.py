"""PettingZoo's games as a vector env: active players, observations, rewards, seats, seeds and faults."""

from __future__ import annotations

import asyncio
import functools
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from pettingzoo.classic import connect_four_v3, rps_v2, tictactoe_v3

import lightning_ding.envs
from lightning_ding.envs import PettingZooVectorEnv
from tests.toys.games import RelayGame

with pytest.MonkeyPatch.context() as _patch:
    _patch.setattr(sys, "dont_write_bytecode", sys.dont_write_bytecode)  # the game would keep it set for all tests
    from pettingzoo.butterfly import knights_archers_zombies_v11


class Counted:
    """Makes relay games and keeps them; the n-th has the number n."""

    def __init__(self, game: Callable[..., RelayGame] = RelayGame, **kwargs: Any) -> None:
        self.game, self.kwargs = game, kwargs
        self.made: list[RelayGame] = []

    def __call__(self) -> RelayGame:
        self.made.append(self.game(len(self.made), **self.kwargs))
        return self.made[-1]


class OddGame(RelayGame):
    """Its second player has another observation space."""

    def observation_space(self, agent: str) -> spaces.Box:
        return spaces.Box(0.0, np.inf, (4 + (agent == "player_1"),), np.float32)


class FaultyGame(RelayGame):
    """Does something bad at its second move."""

    def __init__(self, number: int, fault: str = "raise", at: str = "step") -> None:
        super().__init__(number)
        self.fault, self.at = fault, at

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        super().reset(seed)
        if self.at == "reset" and seed != 101:
            raise OSError("no display")

    def step(self, action: Any) -> None:
        super().step(action)
        if self.at == "later" and self.episode == 1:
            raise OSError("worn out")
        if self.at == "step" and self.fault == "raise" and len(self.moves) == 2:
            raise OSError("lost the connection")
        if self.at == "step" and self.fault == "cancel" and len(self.moves) == 2:
            raise asyncio.CancelledError("by its server")

    def last(self) -> Any:
        obs, reward, *flags = super().last()
        if self.at == "step" and len(self.moves) == 2:
            obs = obs * np.nan if self.fault == "observation" else obs
            reward = np.inf if self.fault == "reward" else reward
        return obs, reward, *flags


class LeavingGame:
    """A parallel game: player_1 disappears at the second step, without a word; the other is terminated at the third."""

    possible_agents = ("player_0", "player_1")

    def observation_space(self, agent: str) -> spaces.Discrete:
        return spaces.Discrete(10)

    def action_space(self, agent: str) -> spaces.Discrete:
        return spaces.Discrete(2)

    def reset(self, seed: int | None = None) -> tuple[dict[str, int], dict[str, Any]]:
        self.agents, self.steps = list(self.possible_agents), 0
        return dict.fromkeys(self.agents, 0), {}

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, int], dict[str, float], dict[str, bool], Any, Any]:
        self.steps += 1
        self.agents = list(self.possible_agents)[: 2 if self.steps < 2 else 1 if self.steps < 3 else 0]
        seen = self.agents or ["player_0"]
        ended = {"player_0": self.steps == 3}
        return dict.fromkeys(seen, self.steps), dict.fromkeys(seen, 1.0), ended, {}, {}

    def close(self) -> None:
        pass


def actions(env: PettingZooVectorEnv, *values: int) -> Any:
    """Return the actions of the players in turn, one for each env; the others' are senseless."""
    given = np.full(env.action_space.shape or (), 99)
    for env_id, value in enumerate(values):
        given[env_id] = value
    return given


def play(env: PettingZooVectorEnv, *moves: int) -> list[tuple[Any, ...]]:
    """Play moves one by one in a single env and return what came of them."""
    return [env.step(actions(env, move)) for move in moves]


# ------------------------------------------------------------------ turns


def test_game_played_by_hand_gives_everybody_turn_reward_and_end() -> None:
    env = PettingZooVectorEnv(tictactoe_v3.env)
    _, info = env.reset()
    assert info["active"].tolist() == [[True, False]]

    steps = play(env, 0, 3, 1, 4, 2)  # the first player fills a line

    assert [step[4]["active"][0].tolist() for step in steps] == [[False, True], [True, False]] * 2 + [[False, False]]
    assert [step[1][0].tolist() for step in steps] == [[0, 0]] * 4 + [[1, -1]]
    assert [step[2][0].tolist() for step in steps] == [[False, False]] * 4 + [[True, True]]
    assert not any(step[3].any() for step in steps)


def test_everybody_sees_the_board_with_own_eyes_in_turn_or_not() -> None:
    env = PettingZooVectorEnv(tictactoe_v3.env)
    env.reset()

    obs = play(env, 4)[0][0]

    mine_and_theirs = obs["observation"][0, :, 1, 1]  # the square in the middle, for both players
    assert mine_and_theirs.tolist() == [[1, 0], [0, 1]]
    assert obs["observation"].sum(axis=(2, 3, 4)).tolist() == [[1, 1]]
    assert obs["action_mask"][0].tolist() == [[0] * 9, [1, 1, 1, 1, 0, 1, 1, 1, 1]]
    assert env.observation_space.contains(obs)


def test_final_observation_shows_the_end_of_the_game() -> None:
    env = PettingZooVectorEnv(tictactoe_v3.env)
    env.reset()

    final = play(env, 0, 3, 1, 4, 2)[-1][0]["observation"][0]

    assert final[0, :, :, 0].sum() == 3
    assert final[1, :, :, 1].sum() == 3


def test_illegal_move_loses_and_nothing_crashes() -> None:
    env = PettingZooVectorEnv(tictactoe_v3.env)
    env.reset()

    first, second = play(env, 0, 0)

    assert first[1].tolist() == [[0, 0]]
    assert second[1].tolist() == [[0, -1]]
    assert second[2].tolist() == [[True, True]]
    assert second[4]["active"].tolist() == [[False, False]]


def test_three_players_take_turns_and_reward_comes_when_in_turn_again() -> None:
    env = PettingZooVectorEnv(functools.partial(RelayGame, num_players=3, lengths=(4,), truncates=(True,)))
    env.reset()

    steps = play(env, 0, 1, 2, 3)

    turns = [step[4]["active"][0].tolist() for step in steps]
    assert turns == [[False, True, False], [False, False, True], [True, False, False], [False] * 3]
    # moves 1 to 4 by players 0, 1, 2, 0: player 1 gets 2 - 3 - 4 at the end, having had -1 before its turn
    rewards = [step[1][0].tolist() for step in steps]
    assert rewards == [[0, -1, 0], [0, 0, -1 - 2], [1 - 2 - 3, 0, 0], [4, 2 - 3 - 4, 3 - 4]]
    assert steps[-1][3].tolist() == [[True, True, True]]
    assert not steps[-1][2].any()


@pytest.mark.parametrize("module", [tictactoe_v3, connect_four_v3], ids=["tictactoe", "connect_four"])
@pytest.mark.parametrize("seed", range(3))
def test_random_game_is_the_one_that_pettingzoo_plays_itself(module: Any, seed: int) -> None:
    rng, game, env = np.random.default_rng(seed), module.env(), PettingZooVectorEnv(module.env)
    game.reset()
    obs, info = env.reset()
    reward = np.zeros((1, 2))
    total = dict.fromkeys(env.agents, 0.0)
    for agent in game.agent_iter():
        seen, gained, terminated, truncated, _ = game.last()
        player = env.agents.index(agent)
        total[agent] += gained
        np.testing.assert_array_equal(obs["observation"][0, player], seen["observation"])
        np.testing.assert_array_equal(obs["action_mask"][0, player], seen["action_mask"])
        if terminated or truncated:
            assert not info["active"].any()
            game.step(None)
            continue
        assert info["active"][0].tolist() == [agent == other for other in env.agents]
        move = rng.choice(np.flatnonzero(seen["action_mask"]))
        game.step(move)
        obs, gained, _, _, info = env.step(actions(env, move))
        reward += gained

    assert reward[0].tolist() == list(total.values())
    assert set(map(abs, total.values())) <= {0.0, 1.0}


# ------------------------------------------------------------------ parallel games


def test_parallel_game_played_by_hand() -> None:
    env = PettingZooVectorEnv(functools.partial(rps_v2.parallel_env, max_cycles=2))
    obs, info = env.reset()
    assert obs.tolist() == [[3, 3]]  # nothing was shown yet
    assert info["active"].tolist() == [[True, True]]

    first = env.step(np.array([[0, 1]]))  # rock, paper
    last = env.step(np.array([[0, 2]]))  # rock, scissors

    assert first[0].tolist() == [[1, 0]]  # what the other one showed
    assert (first[1].tolist(), last[1].tolist()) == ([[-1, 1]], [[1, -1]])
    assert (first[3].tolist(), last[3].tolist()) == ([[False, False]], [[True, True]])
    assert (first[4]["active"].tolist(), last[4]["active"].tolist()) == ([[True, True]], [[False, False]])


def test_players_that_die_early_leave_and_the_others_play_on() -> None:
    make = knights_archers_zombies_v11.parallel_env
    game, env = make(), PettingZooVectorEnv(make)
    game.reset(seed=5)
    obs, info = env.reset(seed=5)
    ends: list[int] = []
    alone = 0  # steps in which somebody had left already
    while game.agents:
        alone += len(game.agents) < 4
        acting = [env.agents.index(agent) for agent in game.agents]
        assert np.flatnonzero(info["active"][0]).tolist() == acting
        before = obs
        seen, gained, terminated, truncated, _ = game.step(dict.fromkeys(game.agents, 5))
        obs, reward, ended, cut, info = env.step(actions(env, 5))
        for player, agent in enumerate(env.agents):
            if player not in acting:
                np.testing.assert_array_equal(obs[0, player], before[0, player])
                assert (reward[0, player], ended[0, player], cut[0, player]) == (0, False, False)
                continue
            np.testing.assert_array_equal(obs[0, player], seen[agent])
            flags = (terminated[agent], truncated[agent])
            assert (reward[0, player], ended[0, player], cut[0, player]) == (gained[agent], *flags)
            ends += [player] * any(flags)

    assert alone > 10
    assert sorted(ends) == [0, 1, 2, 3]
    assert not info["active"].any()


def test_player_that_disappears_without_a_word_is_truncated() -> None:
    class VanishingGame(RelayGame):
        def step(self, action: Any) -> None:
            super().step(action)
            self.agents = ["player_1"]

    env = PettingZooVectorEnv(VanishingGame)
    env.reset()
    (step,) = play(env, 0)

    assert step[3].tolist() == [[True, False]]
    assert step[4]["active"].tolist() == [[False, True]]


def test_player_of_a_parallel_game_that_disappears_without_a_word_is_truncated() -> None:
    env = PettingZooVectorEnv(LeavingGame)
    env.reset()

    steps = [env.step(np.zeros((1, 2), np.int64)) for _ in range(3)]

    assert [step[0][0].tolist() for step in steps] == [[1, 1], [2, 1], [3, 1]]
    assert [step[1][0].tolist() for step in steps] == [[1, 1], [1, 0], [1, 0]]
    assert [step[2][0].tolist() for step in steps] == [[False, False], [False, False], [True, False]]
    assert [step[3][0].tolist() for step in steps] == [[False, False], [False, True], [False, False]]


# ------------------------------------------------------------------ several envs


def test_step_has_no_effect_on_an_env_without_players_until_it_is_reset() -> None:
    env = PettingZooVectorEnv(Counted(lengths=(1, 3)), num_envs=2)
    env.reset()
    env.reset(options={"reset_mask": np.array([False, True])})  # env 1 is in its second episode
    ended = env.step(np.zeros((2, 2), np.int64))
    assert ended[2].tolist() == [[True, True], [False, False]]

    after = env.step(np.zeros((2, 2), np.int64))

    np.testing.assert_array_equal(after[0][0], ended[0][0])
    assert after[0][1, 0].tolist() == [1, 1, 2, 0]  # the other one plays on
    assert after[1][0].tolist() == [0, 0]
    assert not after[2][0].any()
    assert after[4]["active"].tolist() == [[False, False], [True, False]]

    obs, info = env.reset(options={"reset_mask": np.array([True, False])})

    assert obs[:, 0].tolist() == [[0, 1, 0, 0], [1, 1, 2, 0]]
    assert info["active"].tolist() == [[True, False], [True, False]]


def test_env_can_be_stopped_in_the_middle_of_an_episode() -> None:
    env = PettingZooVectorEnv(Counted(), num_envs=2)
    env.reset()

    nothing, first = np.zeros(2, bool), np.array([True, False])
    _, info = env.reset(options={"reset_mask": nothing, "stop_mask": first})

    assert info["active"].tolist() == [[False, False], [True, False]]
    assert env.step(np.zeros((2, 2), np.int64))[0][:, 0, 2].tolist() == [0, 1]


def test_what_was_returned_does_not_change_any_more() -> None:
    env = PettingZooVectorEnv(RelayGame)
    obs, info = env.reset()
    kept, turns = obs.copy(), info["active"].copy()

    play(env, 0, 1)

    np.testing.assert_array_equal(obs, kept)
    np.testing.assert_array_equal(info["active"], turns)


def test_spaces_are_those_of_one_player_and_of_all() -> None:
    env: Any = PettingZooVectorEnv(tictactoe_v3.env, num_envs=3)

    assert env.single_action_space == spaces.Discrete(9)
    assert env.single_observation_space["observation"].shape == (3, 3, 2)
    assert env.observation_space["observation"].shape == (3, 2, 3, 3, 2)
    assert env.action_space.shape == (3, 2)
    assert env.num_players == 2
    assert env.metadata["autoreset_mode"] is AutoresetMode.DISABLED


# ------------------------------------------------------------------ seats


def test_seats_stay_without_rotation() -> None:
    env = PettingZooVectorEnv(RelayGame, num_envs=2)
    seats = [env.reset()[1]["seat"].tolist() for _ in range(2)]

    assert seats == [[[0, 1], [0, 1]]] * 2


def test_player_p_takes_seat_p_plus_k_in_episode_k_counted_on_from_the_number_of_the_env() -> None:
    env = PettingZooVectorEnv(functools.partial(RelayGame, num_players=3), num_envs=2, rotate_seats=True)
    resets = [env.reset() for _ in range(3)]

    for k, (obs, info) in enumerate(resets):
        expected = [[(player + env_id + k) % 3 for player in range(3)] for env_id in range(2)]
        assert info["seat"].tolist() == expected
        assert obs[:, :, 3].tolist() == expected  # the seat is what a player of this game sees
        assert info["active"].tolist() == [[seat == 0 for seat in seats] for seats in expected]


def test_number_of_the_episode_may_be_given_and_decides_the_seats() -> None:
    env = PettingZooVectorEnv(RelayGame, num_envs=2, rotate_seats=True)
    everywhere = np.ones(2, bool)

    _, given = env.reset(options={"reset_mask": everywhere, "episode": np.array([7, 4])})
    _, counted = env.reset()

    assert given["seat"].tolist() == [[1, 0], [0, 1]]
    assert counted["seat"].tolist() == [[0, 1], [1, 0]]  # episodes 8 and 5


def test_rotated_player_acts_and_gains_in_its_seat() -> None:
    env = PettingZooVectorEnv(tictactoe_v3.env, rotate_seats=True)
    env.reset(options={"episode": np.array([1])})

    steps = [env.step(np.array([[8, move], [move, 8]][turn % 2])[None]) for turn, move in enumerate((0, 3, 1, 4, 2))]

    assert steps[-1][1].tolist() == [[-1, 1]]  # player 1 moved first


# ------------------------------------------------------------------ seeds


def test_every_env_starts_with_its_own_seed_and_continues_its_stream() -> None:
    seeds = []
    for seed in (5, 5, 6):
        make = Counted()
        env = PettingZooVectorEnv(make, num_envs=3, seed=seed)
        env.reset(options={"reset_mask": np.array([True, False, True])})
        env.reset()
        seeds.append([game.seeds for game in make.made])

    assert seeds[0] == seeds[1]
    first = [of_env[0] for of_env in seeds[0]]
    assert len({*first, *(of_env[0] for of_env in seeds[2])}) == 6
    assert seeds[0] == [[first[0], None], [first[1]], [first[2], None]]


def test_reset_takes_one_seed_for_all_or_one_for_each() -> None:
    make = Counted()
    env = PettingZooVectorEnv(make, num_envs=2)
    env.reset(seed=10)
    env.reset(seed=[3, None])

    assert [game.seeds for game in make.made] == [[10, 3], [11, None]]


def test_same_seed_gives_the_same_game() -> None:
    make = functools.partial(knights_archers_zombies_v11.parallel_env, spawn_delay=2)
    finals = []
    for seed in (1, 1, 2):
        env = PettingZooVectorEnv(make, seed=seed)
        env.reset()
        for _ in range(40):
            obs = env.step(actions(env, 5))[0]
        finals.append(obs)

    np.testing.assert_array_equal(finals[0], finals[1])
    assert not np.array_equal(finals[0], finals[2])


# ------------------------------------------------------------------ faults


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("raise", "OSError: lost the connection"),
        ("cancel", "CancelledError: by its server"),
        ("observation", "FloatingPointError: the observation is not finite"),
        ("reward", "FloatingPointError: the reward is not finite"),
    ],
)
def test_fault_ends_the_episode_and_the_env_is_created_again(fault: str, says: str) -> None:
    games = iter([FaultyGame(0, fault), RelayGame(1), RelayGame(2)])
    env = PettingZooVectorEnv(lambda: next(games), num_envs=2, max_faults=1)
    env.reset()
    env.step(np.zeros((2, 2), np.int64))

    obs, reward, terminated, truncated, info = env.step(np.zeros((2, 2), np.int64))

    assert info["abnormal"].tolist() == [True, False]
    assert info["fault"][0].startswith(says)
    assert info["fault"][1] is None
    assert np.isfinite(obs).all()
    assert reward[0].tolist() == [0, 0]
    assert not terminated.any()
    assert truncated.tolist() == [[True, True], [False, False]]
    assert info["active"].tolist() == [[False, False], [True, False]]
    obs, info = env.reset(options={"reset_mask": np.array([True, False])})
    assert obs[:, 0].tolist() == [[2, 0, 0, 0], [1, 0, 2, 0]]
    assert "abnormal" not in env.step(np.zeros((2, 2), np.int64))[4]


def test_fault_of_one_player_takes_back_what_the_other_was_given() -> None:
    class HalfGame(LeavingGame):
        def step(self, actions: dict[str, Any]) -> Any:
            return super().step(actions)[0], {"player_0": 1.0, "player_1": np.nan}, {}, {}, {}

    env = PettingZooVectorEnv(HalfGame, max_faults=1)
    env.reset()

    _, reward, _, truncated, info = env.step(np.zeros((1, 2), np.int64))

    assert info["abnormal"].tolist() == [True]
    assert reward.tolist() == [[0, 0]]
    assert truncated.tolist() == [[True, True]]


def test_fault_without_a_budget_is_raised_with_the_number_of_the_env_and_its_cause() -> None:
    games = iter([RelayGame(0), FaultyGame(1)])
    env = PettingZooVectorEnv(lambda: next(games), num_envs=2)
    env.reset()
    env.step(np.zeros((2, 2), np.int64))

    with pytest.raises(RuntimeError, match=r"env 1 failed.*OSError: lost the connection") as caught:
        env.step(np.zeros((2, 2), np.int64))
    assert isinstance(caught.value.__cause__, OSError)


def test_budget_of_faults_is_for_those_without_a_finished_episode_between() -> None:
    games = iter([FaultyGame(0), FaultyGame(1, at="later"), RelayGame(2)])
    env = PettingZooVectorEnv(lambda: next(games), max_faults=1)
    faults = []
    for _ in range(3):
        env.reset()
        faults.append([step[4].get("fault", [None])[0] for step in play(env, 0, 0, 0, 0, 0)])

    assert faults[0] == [None, "OSError: lost the connection", None, None, None]
    assert faults[1] == [None] * 5  # a whole episode
    assert faults[2] == ["OSError: worn out", None, None, None, None]


def test_env_that_only_fails_uses_its_budget_up() -> None:
    env = PettingZooVectorEnv(lambda: FaultyGame(0), max_faults=2)
    for _ in range(2):
        env.reset()
        play(env, 0, 0)
    env.reset()

    with pytest.raises(RuntimeError, match=r"env 0 failed 3 times"):
        play(env, 0, 0)


def test_reset_that_fails_is_tried_again_with_the_next_seed() -> None:
    env = PettingZooVectorEnv(lambda: FaultyGame(0, at="reset"), max_faults=2)

    obs, _ = env.reset(seed=99)

    assert obs[0, 0].tolist() == [0, 0, 0, 0]
    with pytest.raises(RuntimeError, match="OSError: no display"):
        env.reset(seed=97)


# ------------------------------------------------------------------ what it refuses, and the end


def test_unequal_spaces_are_refused_by_name_and_nothing_is_left_open() -> None:
    make = Counted(OddGame)

    with pytest.raises(ValueError, match=r"equal observation spaces, got player_0: Box.*\(4,\).*player_1: Box.*\(5,\)"):
        PettingZooVectorEnv(make, num_envs=2)
    assert [game.is_closed for game in make.made] == [True, True]


@pytest.mark.parametrize("kind", ["observation", "action"])
def test_space_without_the_form_of_an_array_is_refused(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RelayGame, f"{kind}_space", lambda self, agent: spaces.Text(3))

    with pytest.raises(TypeError, match=rf"the {kind} space must be Box, .* or MultiBinary, got Text"):
        PettingZooVectorEnv(RelayGame)


def test_dict_of_actions_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RelayGame, "action_space", lambda self, agent: spaces.Dict({"a": spaces.Discrete(2)}))

    with pytest.raises(TypeError, match=r"the action space must be Box, .* or MultiBinary, got Dict"):
        PettingZooVectorEnv(RelayGame)


@pytest.mark.parametrize(("name", "value"), [("num_envs", 0), ("max_faults", -1)])
def test_number_out_of_range_is_refused(name: str, value: int) -> None:
    with pytest.raises(ValueError, match=f"{name} must be >= .*, got {value}"):
        PettingZooVectorEnv(RelayGame, **{name: value})  # type: ignore[arg-type]


def test_mistakes_are_named() -> None:
    with pytest.raises(TypeError, match=r"possible_agents, got TimeLimit"):
        PettingZooVectorEnv(lambda: gym.make("CartPole-v1"))
    game = RelayGame()
    with pytest.raises(ValueError, match="make must be a function that returns a new env at each call"):
        PettingZooVectorEnv(lambda: game, num_envs=2)
    env = PettingZooVectorEnv(RelayGame, num_envs=2)
    env.reset()
    with pytest.raises(ValueError, match=r"actions must be of \(2, 2\), got \(2,\)"):
        env.step(np.zeros(2, np.int64))


def test_close_closes_all_games_once() -> None:
    make = Counted()
    env = PettingZooVectorEnv(make, num_envs=2)
    env.close()
    env.close()

    assert [game.is_closed for game in make.made] == [True, True]


def test_adapter_does_not_import_pettingzoo() -> None:
    folder = Path(lightning_ding.envs.__file__).parent
    texts = [(folder / name).read_text() for name in ("pettingzoo.py", "battle_stepper.py")]

    assert not any(re.search(r"^\s*(from|import) pettingzoo", text.split('"""')[-1], re.MULTILINE) for text in texts)
