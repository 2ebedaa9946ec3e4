"""The stepper of games starts the chosen games, reports which are over, and rejects non-finite numbers."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv

from lightning_ding.envs import PettingZooVectorEnv, battle_stepper
from lightning_ding.envs.battle_stepper import BattleStepper
from tests.toys.envs import CountingEnv
from tests.toys.games import RelayGame

EVERYWHERE = np.ones(2, bool)


class BadGame(RelayGame):
    """Shows or gives something infinite after its second move."""

    bad = "observation"

    def last(self) -> Any:
        obs, reward, *flags = super().last()
        if len(self.moves) == 2 and self.number == 1:
            return (obs * np.nan, reward, *flags) if self.bad == "observation" else (obs, -np.inf, *flags)
        return obs, reward, *flags


def games(num_envs: int = 2, game: Any = RelayGame, **kwargs: Any) -> PettingZooVectorEnv:
    numbers = iter(range(num_envs))
    return PettingZooVectorEnv(lambda: game(next(numbers), **kwargs), num_envs)


def idle(stepper: BattleStepper) -> Any:
    return np.zeros((stepper.num_envs, stepper.num_players), np.int64)


def test_nothing_is_under_way_until_start() -> None:
    stepper = BattleStepper(games())
    assert not stepper.is_playing.any()

    stepper.start(np.array([False, True]))

    assert stepper.is_playing.tolist() == [False, True]
    assert stepper.obs[1, 1].tolist() == [1, 0, 0, 1]


def test_step_says_which_games_are_over() -> None:
    stepper = BattleStepper(games(lengths=(1, 2)))
    stepper.start(EVERYWHERE)
    stepper.step(idle(stepper))
    stepper.start(np.array([True, False]))  # its second episode, of two moves

    over = [stepper.step(idle(stepper)).over.tolist() for _ in range(3)]

    assert over == [[False, False], [True, False], [False, False]]  # once, and not of what had stopped before


def test_stop_ends_all_games() -> None:
    stepper = BattleStepper(games())
    stepper.start(EVERYWHERE)

    stepper.stop()

    assert not stepper.is_playing.any()


def test_start_hands_on_seeds_and_numbers_of_episodes() -> None:
    env = PettingZooVectorEnv(RelayGame, num_envs=2, rotate_seats=True)
    stepper = BattleStepper(env)

    stepper.start(EVERYWHERE, [5, 6], np.array([3, 2]))

    assert [game.env.seeds for game in env._games] == [[5], [6]]
    assert stepper.seat.tolist() == [[1, 0], [0, 1]]


@pytest.mark.parametrize("bad", ["observation", "reward"])
def test_non_finite_number_raises_with_env_and_player(bad: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BadGame, "bad", bad)
    stepper = BattleStepper(games(game=BadGame))
    stepper.start(EVERYWHERE)
    stepper.step(idle(stepper))

    with pytest.raises(ValueError, match=f"env 1, player 0: the {bad} is not finite: .*(nan|inf)"):
        stepper.step(idle(stepper))
    assert stepper.obs is None


def test_reward_that_would_be_infinite_as_it_is_kept_raises() -> None:
    reward = np.array([[1.0, 2.0], [3.0, 1e39]])
    with pytest.raises(ValueError, match=r"env 1, player 1: the reward is too large for float32, .*: 1e\+39"):
        battle_stepper._check_finite("reward", reward, EVERYWHERE)
    battle_stepper._check_finite("reward", reward, np.array([True, False]))


def test_games_can_be_restarted_after_an_infinite_observation() -> None:
    stepper = BattleStepper(games(game=BadGame))
    stepper.start(EVERYWHERE)
    stepper.step(idle(stepper))
    with pytest.raises(ValueError, match="not finite"):
        stepper.step(idle(stepper))

    stepper.stop()
    stepper.start(np.array([True, False]))

    assert stepper.step(idle(stepper)).obs[0, 1].tolist() == [0, 1, 1, 1]


def test_fault_is_reported_and_is_no_end() -> None:
    def fail(action: Any) -> None:
        raise OSError("gone")

    env = PettingZooVectorEnv(RelayGame, num_envs=2, max_faults=1)
    stepper = BattleStepper(env)
    stepper.start(EVERYWHERE)
    env._games[0].env.step = fail

    step = stepper.step(idle(stepper))

    assert step.abnormal.tolist() == [True, False]
    assert step.over.tolist() == [False, False]
    assert step.fault == ["OSError: gone", None]


def test_game_without_active_players_raises() -> None:
    class EmptyGame(RelayGame):
        def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
            super().reset(seed)
            self.agents = []

    with pytest.raises(RuntimeError, match="env 0 has no active player after a reset"):
        BattleStepper(games(game=EmptyGame)).start(EVERYWHERE)


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match=r"must be AutoresetMode.DISABLED, got <AutoresetMode.NEXT_STEP"):
        BattleStepper(SyncVectorEnv([CountingEnv]))
    env = SyncVectorEnv([CountingEnv])
    env.metadata = PettingZooVectorEnv(functools.partial(RelayGame)).metadata
    with pytest.raises(ValueError, match=r"env.num_players must be >= 2, got 1"):
        BattleStepper(env)
