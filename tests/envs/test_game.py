"""Games of PettingZoo seen by one player: rewards and ends of both seats, opponents, seats, seeds and saved states."""

from __future__ import annotations

import re
import sys
import warnings
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from lightning_ding.envs import GameEnv, env_state, load_env_state, make_vector_env
from lightning_ding.envs.game import TEAM_GAMES, Team
from lightning_ding.envs.named import find_env
from lightning_ding.envs.state.memo import NotPlainError
from tests.toys.games import RelayGame
from tests.toys.players import first, perfect, value

Step = tuple[Any, float, bool, bool, dict[str, Any]]


def passes(obs: Any, rng: np.random.Generator) -> int:
    """A player of the relay game, in which all moves are alike."""
    return 0


def scripted(*moves: int) -> Any:
    """Return an opponent that makes these moves in turn."""
    left = list(moves)
    return lambda obs, rng: left.pop(0)


def relay(seat: int, length: int, num_players: int = 2, truncates: bool = False) -> list[tuple[float, bool, bool]]:
    """Return reward and ends of each step of a relay game, in which the t-th move gives t, and -t to all others."""
    made = {"num_players": num_players, "lengths": (length,), "truncates": (truncates,)}
    env = GameEnv(RelayGame, opponent=passes, seat=seat, **made)
    env.reset(seed=0)
    steps = [env.step(0)]
    while not (steps[-1][2] or steps[-1][3]):
        steps.append(env.step(0))
    return [step[1:4] for step in steps]


def play(env: GameEnv, *moves: int) -> list[Step]:
    env.reset(seed=0)
    return [env.step(move) for move in moves]


def test_reward_is_that_of_the_own_move_and_of_all_moves_until_the_next_one() -> None:
    assert relay(seat=0, length=5) == [(1 - 2, False, False), (3 - 4, False, False), (5, True, False)]
    assert relay(seat=1, length=4) == [(2 - 3, False, False), (4, True, False)]


def test_last_step_has_the_reward_of_an_end_by_a_move_of_another_player() -> None:
    assert relay(seat=0, length=4) == [(1 - 2, False, False), (3 - 4, True, False)]
    assert relay(seat=1, length=5) == [(2 - 3, False, False), (4 - 5, True, False)]
    assert relay(seat=1, length=5, truncates=True)[-1] == (4 - 5, False, True)


@pytest.mark.parametrize(("seat", "reward"), [(0, 4 - 5 - 6), (1, 5 - 6), (2, 6)])
def test_moves_of_all_other_players_count(seat: int, reward: int) -> None:
    assert relay(seat, length=6, num_players=3)[-1] == (reward, True, False)


def test_loser_of_tic_tac_toe_gets_its_reward_in_the_step_of_its_last_move() -> None:
    env = GameEnv("tictactoe_v3", opponent=scripted(3, 4, 5), seat=0)
    steps = play(env, 0, 1, 8)
    assert [step[1:4] for step in steps] == [(0, False, False), (0, False, False), (-1, True, False)]
    mine, other = np.moveaxis(steps[-1][0]["observation"].reshape(9, 2), 1, 0)
    assert (mine.tolist(), other.tolist()) == ([1, 1, 0, 0, 0, 0, 0, 0, 1], [0, 0, 0, 1, 1, 1, 0, 0, 0])


@pytest.mark.parametrize(
    ("seat", "others", "moves", "reward"),
    [
        (0, (3, 4), (0, 1, 2), 1),
        (1, (0, 1, 8), (3, 4, 5), 1),
        (1, (0, 1, 2), (3, 4), -1),
        (0, (4, 2, 7, 3), (0, 8, 6, 1, 5), 0),  # a draw by the own last move
        (1, (0, 8, 6, 1, 5), (4, 2, 7, 3), 0),  # a draw by the opponent's
    ],
)
def test_results_of_tic_tac_toe(seat: int, others: tuple[int, ...], moves: tuple[int, ...], reward: int) -> None:
    rewards = [step[1:4] for step in play(GameEnv("tictactoe_v3", scripted(*others), seat), *moves)]
    assert rewards == [(0, False, False)] * (len(moves) - 1) + [(reward, True, False)]


def test_illegal_moves_are_refused() -> None:
    message = r"must be one of the legal moves \[1, 2, 3, 4, 5, 6, 7, 8\], got 0"
    with pytest.raises(ValueError, match=f"the opponent's move {message}"):
        play(GameEnv("tictactoe_v3", opponent=passes, seat=0), 0)
    with pytest.raises(ValueError, match=f"action {message}"):
        play(GameEnv("tictactoe_v3", opponent=first, seat=1), 0)


def test_perfect_player_never_loses_and_beats_the_first_legal_move() -> None:
    env = GameEnv("tictactoe_v3", opponent=perfect)
    rng, returns = np.random.default_rng(0), []
    for game in range(30):
        obs, _ = env.reset(seed=game)
        ended = False
        while not ended:
            obs, reward, ended, _, _ = env.step(rng.choice(np.flatnonzero(obs["action_mask"])))
        returns.append(reward)
    assert value((0,) * 9) == 0
    assert set(returns) == {-1.0, 0.0}


def test_seat_is_drawn_for_each_game_unless_it_is_given() -> None:
    env = GameEnv("tictactoe_v3", seat=None)
    seats = [env.reset(seed=None if game else 0)[1]["seat"] for game in range(40)]
    assert 10 < sum(seats) < 30
    assert {GameEnv("tictactoe_v3", seat=1).reset(seed=game)[1]["seat"] for game in range(5)} == {1}


def test_random_opponent_depends_on_the_seed_alone() -> None:
    def game(seed: int) -> list[list[int]]:
        env = GameEnv("connect_four_v3", seat=0)
        boards = [env.reset(seed=seed)[0]]
        boards += [env.step(move)[0] for move in (0, 0, 1, 1)]
        return [board["observation"].ravel().tolist() for board in boards]

    assert game(3) == game(3)
    assert game(3) != game(4)


class Numbered:
    """Opponents with the numbers 0, 1, 2 in turn, None after them; each makes the first legal move."""

    def __init__(self) -> None:
        self.left = [0, 1, 2]
        self.asked: list[int] = []

    def draw(self, rng: np.random.Generator) -> int | None:
        return self.left.pop(0) if self.left else None

    def move(self, number: int, obs: Any, rng: np.random.Generator) -> int:
        self.asked.append(number)
        return first(obs, rng)


def test_an_opponent_is_drawn_for_each_game_and_the_own_one_takes_the_others() -> None:
    env = GameEnv("tictactoe_v3", opponent=scripted(6, 7), seat=0)
    env.opponents = opponents = Numbered()
    for _ in range(3):
        play(env, 8)
    assert opponents.asked == [0, 1, 2]
    steps = play(env, 8, 0)
    assert np.flatnonzero(steps[-1][0]["observation"][..., 1].ravel()).tolist() == [6, 7]


def test_saved_state_continues_the_game_in_another_env() -> None:
    def make() -> Any:
        return make_vector_env("pettingzoo:tictactoe_v3", num_envs=3, autoreset="same_step")

    def go_on(env: Any, obs: Any, steps: int) -> list[Any]:
        seen = []
        for _ in range(steps):
            obs, reward, *_ = env.step(obs["action_mask"].argmax(1))
            seen.append((obs["observation"].tolist(), reward.tolist()))
        return [*seen, obs]

    one, other = make(), make()
    obs, _ = one.reset(seed=5)
    obs = go_on(one, obs, 4)[-1]
    other.reset(seed=9)
    load_env_state(other, env_state(one))
    assert go_on(one, obs, 12)[:-1] == go_on(other, obs, 12)[:-1]


def test_env_is_found_by_its_name_and_by_a_path() -> None:
    found: Any = find_env("pettingzoo:connect_four_v3")
    assert found(seat=0).action_space == spaces.Discrete(7)
    own: Any = find_env("pettingzoo:tests.toys.games:RelayGame")
    assert own(opponent="tests.envs.test_game.passes", lengths=(3,)).action_space == spaces.Discrete(4)


def test_env_with_processes_plays_the_same_games() -> None:
    def rewards(mode: Any) -> list[Any]:
        env = make_vector_env("pettingzoo:tictactoe_v3", 2, mode, seed=0)
        obs, _ = env.reset()
        seen = []
        for _ in range(6):
            obs, reward, *_ = env.step(obs["action_mask"].argmax(1))
            seen.append(reward.tolist())
        env.close()
        return seen

    assert rewards("sync") == rewards("async")


class Parallel:
    """A parallel game."""

    possible_agents = ("player_0", "player_1")


class NoEnd(RelayGame):
    """Ends without a last turn of the first player."""

    def step(self, action: Any) -> None:
        super().step(action)
        if self._has_ended():
            self.agents = []


class Boxed(RelayGame):
    """Has continuous actions."""

    def action_space(self, agent: str) -> Any:
        return spaces.Box(-1, 1, (2,), np.float32)


def test_mistakes_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"must be one of .*got 'tictactoe_v9'; did you mean 'tictactoe_v3'\?"):
        find_env("pettingzoo:tictactoe_v9")
    with pytest.raises(ValueError, match=r"game must be the dotted path .* got 'tests\.toys\.games\.Nothing'"):
        GameEnv("tests.toys.games.Nothing")
    with pytest.raises(ValueError, match=r"got 'no_module\.game': No module named 'no_module'"):
        GameEnv("no_module.game")
    with pytest.raises(TypeError, match=r"turn-based .* got Parallel; ParallelTeam takes parallel games"):
        GameEnv(Parallel)
    with pytest.raises(TypeError, match=r"Discrete actions, got Box"):
        GameEnv(Boxed)
    with pytest.raises(ValueError, match=re.escape("seat must be None, or in [0, 2), got 2")):
        GameEnv("tictactoe_v3", seat=2)
    with pytest.raises(ValueError, match=re.escape("opponent must be 'random', a function (obs, rng) -> move")):
        GameEnv("tictactoe_v3", opponent="perfect")
    monkeypatch.setitem(sys.modules, "pettingzoo.classic", None)
    with pytest.raises(ImportError, match=r"pip install 'lightning_ding\[pettingzoo\]'"):
        find_env("pettingzoo:tictactoe_v3")


def test_other_mistakes_are_named() -> None:
    one, other = (make_vector_env(f"pettingzoo:{name}") for name in ("tictactoe_v3", "connect_four_v3"))
    one.reset(seed=0)
    other.reset(seed=0)
    with pytest.raises(NotPlainError, match="was made with"):
        load_env_state(other, env_state(one))
    env = GameEnv(NoEnd, opponent=passes, seat=0, lengths=(2,))
    env.reset()
    with pytest.raises(RuntimeError, match="without a last observation and reward of player_0"):
        env.step(0)
    env = GameEnv(RelayGame, opponent=passes, seat=1, lengths=(1,))
    with pytest.raises(RuntimeError, match="ended before the first move of player_1"):
        env.reset()


class Together(RelayGame):
    """A relay game whose moves earn 1 for every player."""

    def step(self, action: Any) -> None:
        super().step(action)
        self.rewards = dict.fromkeys(self.possible_agents, 1.0)


@pytest.mark.parametrize(
    ("game", "opponent", "warns"), [(Together, "random", True), (Together, passes, False), (RelayGame, "random", False)]
)
def test_game_of_a_team_with_random_players_says_so_once(game: Any, opponent: Any, warns: bool) -> None:
    env = GameEnv(game, opponent=opponent, seat=0)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for number in range(TEAM_GAMES + 2):
            play(env, 0, 0, 0)
            assert len(said) == (warns and number + 1 >= TEAM_GAMES)
    assert not warns or "the other players move at random" in str(said[0].message)


def test_a_team_wins_and_loses_together() -> None:
    def found(*games: list[dict[str, float]]) -> list[bool | None]:
        team, ends = Team(), []
        for moves in games:
            team.begin()
            for rewards in moves:
                team.add(rewards)
            ends.append(team.end_of_game())
        return ends

    both, draw, one = {"a": -1.0, "b": -2.0}, {"a": 0.0, "b": 0.0}, {"a": 1.0, "b": 0.0}
    assert found([both], [draw], [both, both], [one], [both]) == [None, None, None, None, True]
    assert found([both], [{"a": 1.0, "b": -1.0}]) == [None, False]
    assert found([{"a": 1.0, "b": -1.0}, {"a": -3.0, "b": 4.0}]) == [False]
