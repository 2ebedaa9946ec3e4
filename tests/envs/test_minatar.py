"""MinAtar's games: what their boards mean, and that a restored game continues as the saved one does."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from numpy.typing import NDArray

from lightning_ding.envs import MinAtarEnv, env_state, load_env_state, make_vector_env
from lightning_ding.envs.bit_flip import BitFlipEnv
from lightning_ding.envs.minatar import GAMES

NEEDS_MINATAR = pytest.mark.skipif(find_spec("minatar") is None, reason="needs the extra minatar")
LEFT, RIGHT = 1, 2


def play(env: MinAtarEnv, actions: NDArray[Any]) -> list[tuple[bytes, float, bool]]:
    """Return board, reward and end of every step; a new game follows each end."""
    seen = []
    for action in actions:
        board, reward, terminated, truncated, _ = env.step(action)
        assert not truncated
        seen.append((board.tobytes(), reward, terminated))
        if terminated:
            seen.append((env.reset()[0].tobytes(), 0.0, False))
    return seen


def actions_of(env: MinAtarEnv, steps: int, seed: int) -> NDArray[Any]:
    return np.random.default_rng(seed).integers(env.action_space.n, size=steps)


@NEEDS_MINATAR
@pytest.mark.parametrize("game", GAMES)
def test_restored_game_continues_as_the_saved_one_does(game: str) -> None:
    kwargs = {"game": game, "sticky_action_prob": 0.5}
    first, second = (make_vector_env(MinAtarEnv, 2, "sync", seed=seed, env_kwargs=kwargs) for seed in (0, 7))
    draw = np.random.default_rng(0)
    first.reset(seed=0)
    second.reset(seed=7)
    count = int(first.single_action_space.n)  # type: ignore[attr-defined]
    for _ in range(150):
        first.step(draw.integers(count, size=2))
        second.step(draw.integers(count, size=2))
    load_env_state(second, env_state(first))
    for _ in range(300):
        actions = draw.integers(count, size=2)
        for one, other in zip(first.step(actions)[:4], second.step(actions)[:4], strict=True):
            np.testing.assert_array_equal(one, other)
    first.close()
    second.close()


@NEEDS_MINATAR
@pytest.mark.parametrize("game", GAMES)
def test_a_seed_gives_the_same_game_whatever_was_played_before(game: str) -> None:
    used = MinAtarEnv(game, sticky_action_prob=0.5, minimal_actions=False)
    used.reset(seed=1)
    for seed in range(5):
        fresh = MinAtarEnv(game, sticky_action_prob=0.5, minimal_actions=False)
        play(used, np.full(20, 2 + seed % 2))  # a direction that the next game may repeat
        actions = actions_of(fresh, 50, seed)
        assert fresh.reset(seed=seed)[0].tobytes() == used.reset(seed=seed)[0].tobytes()
        assert play(fresh, actions) == play(used, actions)


@NEEDS_MINATAR
def test_paddle_goes_where_it_is_sent_and_a_brick_is_a_point() -> None:
    env = MinAtarEnv("breakout", sticky_action_prob=0.0, render_mode="rgb_array")
    board, _ = env.reset(seed=0)
    assert board.shape == (10, 10, 4)
    assert board.dtype == np.bool_
    assert env.observation_space.contains(board)
    assert board[9, :, 0].argmax() == 4
    assert board[..., 3].sum() == 30
    board = env.step(np.int64(LEFT))[0]
    assert board[9, :, 0].argmax() == 3
    board = env.step(np.int64(RIGHT))[0]
    assert board[9, :, 0].argmax() == 4
    total, terminated = 0.0, False
    while not terminated:  # stays below the ball
        ball = int(board[..., 1].any(axis=0).argmax())
        paddle = int(board[9, :, 0].argmax())
        action = LEFT if ball < paddle else RIGHT if ball > paddle else 0
        board, reward, terminated, _, _ = env.step(np.int64(action))
        total += reward
        if total >= 5:
            break
    assert board[..., 3].sum() == 30 - total


@NEEDS_MINATAR
def test_image_shows_each_object_in_its_colour() -> None:
    env = MinAtarEnv("breakout", render_mode="rgb_array")
    env.reset(seed=0)
    image = env.render()
    assert image is not None
    assert image.shape == (160, 160, 3)
    assert image.dtype == np.uint8
    assert image[159, 4 * 16 + 8].tolist() == [31, 119, 180]  # the paddle
    assert image[1 * 16, 0].tolist() == [214, 39, 40]  # a brick
    assert image[0, 0].tolist() == [0, 0, 0]
    assert MinAtarEnv("breakout").render() is None


@NEEDS_MINATAR
def test_all_six_actions_on_request() -> None:
    assert MinAtarEnv("breakout").action_space.n == 3
    assert MinAtarEnv("breakout", minimal_actions=False).action_space.n == 6


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"game": "pong"}, "game must be one of asterix, breakout, freeway, seaquest, space_invaders, got 'pong'"),
        ({"sticky_action_prob": 1.5}, r"sticky_action_prob must be in \[0, 1\], got 1.5"),
        ({"render_mode": "human"}, "render_mode must be rgb_array or None, got 'human'"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, Any], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        MinAtarEnv(**arguments)


def test_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "minatar", None)
    with pytest.raises(
        ImportError, match=r"MinAtarEnv needs the extra 'minatar': pip install 'lightning_ding\[minatar\]'"
    ):
        MinAtarEnv()


def test_env_keeps_the_rules_of_gymnasium() -> None:
    check_env(BitFlipEnv(4), skip_render_check=True)


def test_start_is_never_at_the_goal() -> None:
    env = BitFlipEnv(1)
    for seed in range(20):
        obs, _ = env.reset(seed=seed)
        assert obs["desired_goal"].tolist() == [1 - obs["achieved_goal"][0]]


def test_flipping_all_wrong_bits_ends_the_episode_with_the_only_reward() -> None:
    env = BitFlipEnv(6)
    obs, _ = env.reset(seed=1)
    wrong = np.flatnonzero(obs["observation"] != obs["desired_goal"])
    assert len(wrong) > 1
    results = [env.step(bit)[1:4] for bit in wrong]
    assert results == [(0.0, False, False)] * (len(wrong) - 1) + [(1.0, True, False)]


def test_episode_is_truncated_after_as_many_steps_as_bits() -> None:
    env = BitFlipEnv(3)
    obs, _ = env.reset(seed=0)
    right = int(np.flatnonzero(np.append(obs["observation"] == obs["desired_goal"], True))[0])
    assert right < 3
    ends = [env.step(np.int64(right))[2:4] for _ in range(3)]  # an odd number of flips of a bit that was right
    assert ends == [(False, False), (False, False), (False, True)]


def test_number_of_bits_is_checked() -> None:
    with pytest.raises(ValueError, match="n_bits must be >= 1, got 0"):
        BitFlipEnv(0)
