from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import VectorEnv

from lightning_ding.datamodules import ReplayDataModule
from lightning_ding.distributed.config import EnvConfig
from lightning_ding.envs import EnvStepper, NotPlainError, env_state, load_env_state, make_vector_env
from lightning_ding.envs.named import find_wrappers
from lightning_ding.envs.wrapper_names import BY_NAME, for_evaluation, wrap_by_name


class Picture(gym.Env[Any, Any]):
    """Shows a picture whose red channel is the number of the step, and rewards each step with -3."""

    observation_space = gym.spaces.Box(0, 255, (8, 8, 3), np.uint8)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.count = 0
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        self.count += 1
        return self._obs(), -3.0, self.count == 4, False, {}

    def _obs(self) -> Any:
        picture = np.zeros((8, 8, 3), np.uint8)
        picture[..., 0] = 10 * self.count
        return picture


CASES: list[tuple[Any, tuple[int, ...]]] = [
    ("flatten", (192,)),
    ("grayscale", (8, 8)),
    ({"grayscale": {"keep_dim": True}}, (8, 8, 1)),
    ({"resize": {"shape": [4, 2]}}, (4, 2, 3)),
    ({"frame_stack": {"stack_size": 3}}, (3, 8, 8, 3)),
    ({"reshape": {"shape": [64, 3]}}, (64, 3)),
]


@pytest.mark.parametrize(("wrapper", "shape"), CASES, ids=str)
def test_wrapper_is_made_by_its_name_with_its_arguments(wrapper: Any, shape: tuple[int, ...]) -> None:
    pytest.importorskip("cv2")
    envs = make_vector_env(Picture, 2, wrappers=[wrapper], check_api=True)
    assert envs.single_observation_space.shape == shape
    assert envs.reset(seed=0)[0].shape == (2, *shape)
    envs.close()


def test_max_and_skip_takes_several_frames_for_each_action() -> None:
    envs = make_vector_env(Picture, 1, wrappers=[{"max_and_skip": {"skip": 2}}])
    envs.reset(seed=0)
    obs, reward, _, _, _ = envs.step(np.zeros(1, np.int64))
    assert obs.max() == 20
    assert reward.tolist() == [-6.0]
    envs.close()


def test_time_limit_truncates() -> None:
    envs = make_vector_env("CartPole-v1", 1, wrappers=[{"time_limit": {"max_episode_steps": 1}}])
    envs.reset(seed=0)
    assert envs.step(np.zeros(1, np.int64))[3].tolist() == [True]
    envs.close()


class OneAction(gym.ActionWrapper[Any, Any, Any]):
    """Keeps the last action that reached it."""

    def action(self, action: Any) -> Any:
        self.last = float(action[0])
        return action


def test_clip_action_bounds_what_reaches_the_env() -> None:
    envs = make_vector_env("Pendulum-v1", 1, wrappers=[OneAction, "clip_action"])
    envs.reset(seed=0)
    envs.step(np.full((1, 1), 9.0, np.float32))
    assert envs.get_attr("last") == (2.0,)  # type: ignore[attr-defined]
    envs.close()


REWARDS: list[tuple[Any, float]] = [
    ("clip_reward", -1.0),
    ({"clip_reward": {"min_reward": -2.0}}, -2.0),
    ("sign_reward", -1.0),
    ({"scale_reward": {"scale": 0.5}}, -1.5),
]


def stepped(envs: VectorEnv[Any, Any, Any], steps: int) -> Any:
    """Return the rewards and raw rewards of steps in all envs."""
    stepper = EnvStepper(envs)
    stepper.reset([0] * envs.num_envs)
    found = []
    for _ in range(steps):
        timestep = stepper.step(np.zeros(envs.num_envs, np.int64))
        found.append((timestep.reward.tolist(), timestep.raw_reward().tolist(), timestep.valid.tolist()))
    envs.close()
    return found


@pytest.mark.parametrize(("wrapper", "changed"), REWARDS, ids=str)
@pytest.mark.parametrize("autoreset", ["same_step", "next_step", "disabled"])
def test_changed_rewards_come_with_the_raw_ones_also_in_the_last_step_of_an_episode(
    wrapper: Any, changed: float, autoreset: Any
) -> None:
    for reward, raw, valid in stepped(make_vector_env(Picture, 2, wrappers=[wrapper], autoreset=autoreset), 6):
        expected = ([changed] * 2, [-3.0] * 2) if all(valid) else ([0.0] * 2, [0.0] * 2)
        assert (reward, raw) == expected


@pytest.mark.parametrize(("wrapper", "changed"), REWARDS, ids=str)
def test_vector_env_gets_the_vector_version_of_a_wrapper(wrapper: Any, changed: float) -> None:
    (wrap,) = find_wrappers([wrapper])
    for reward, raw, _ in stepped(wrap(make_vector_env(Picture, 2)), 5):
        assert (reward, raw) == ([changed] * 2, [-3.0] * 2)


def test_raw_reward_is_the_innermost_one() -> None:
    wrappers: Any = [{"scale_reward": {"scale": 0.5}}, "clip_reward"]
    assert stepped(make_vector_env(Picture, 1, wrappers=wrappers), 1)[0][:2] == ([-1.0], [-3.0])


def test_wrapper_without_a_vector_version_is_refused_for_a_vector_env() -> None:
    envs = make_vector_env("CartPole-v1", 1)
    wanted = "wrappers must be one with a version for vector envs, with mode='native', got 'frame_stack'"
    with pytest.raises(ValueError, match=wanted):
        wrap_by_name(envs, "frame_stack", {"stack_size": 2})
    envs.close()


def test_evaluations_leave_out_what_changes_returns_in_every_form() -> None:
    stack = {"frame_stack": {"stack_size": 4}}
    kept: list[Any] = ["grayscale", stack, "gymnasium.wrappers.FlattenObservation", Picture]
    left_out: list[Any] = ["clip_reward", {"scale_reward": {"scale": 2.0}}, "sign_reward", "episodic_life"]
    mixed = [one for pair in zip(kept, left_out, strict=True) for one in pair]
    assert for_evaluation(mixed) == tuple(kept)
    assert len(for_evaluation(find_wrappers(mixed))) == 4
    assert for_evaluation("clip_reward") == ()
    assert EnvConfig(wrappers=tuple(mixed)).evaluating[2] == tuple(kept)
    assert EnvConfig(wrappers=tuple(mixed)).collecting[2] == tuple(mixed)


WRONG: list[tuple[Any, type[Exception], str]] = [
    ("frame_stak", ValueError, "got 'frame_stak'; did you mean 'frame_stack'?"),
    ({"frame_stak": {}}, ValueError, "did you mean 'frame_stack'?"),
    ("frame_stack", TypeError, "wrappers: frame_stack missing a required argument: 'stack_size'; its arguments are"),
    ({"frame_stack": {"size": 4}}, TypeError, "unexpected keyword argument 'size'; its arguments are stack_size"),
    ({"frame_stack": 4}, TypeError, "the arguments of frame_stack must be a mapping (stack_size, padding_type), got 4"),
    (["clip_reward", "max_and_skip"], ValueError, "in an order with 'max_and_skip' before 'clip_reward'"),
]


@pytest.mark.parametrize(("wrappers", "kind", "message"), WRONG, ids=str)
def test_wrong_wrapper_is_one_clear_error(wrappers: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind) as error:
        find_wrappers(wrappers if isinstance(wrappers, list) else [wrappers])
    assert message in str(error.value)


def test_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise gym.error.DependencyNotInstalled("opencv (cv2) is not installed")

    monkeypatch.setitem(BY_NAME, "resize", BY_NAME["resize"]._replace(single=fail))
    with pytest.raises(ImportError, match=r"'resize' needs the extra 'atari': pip install 'lightning_ding\[atari\]'"):
        wrap_by_name(gym.make("CartPole-v1"), "resize", {"shape": (2, 2)})


STATES: list[list[Any]] = [
    ["clip_reward"],
    [{"scale_reward": {"scale": 0.1}}],
    ["sign_reward", {"frame_stack": {"stack_size": 3}}],
    ["max_and_skip", "time_aware"],
    [{"time_limit": {"max_episode_steps": 5}}, {"sticky_action": {"repeat_action_probability": 0.2}}],
]


@pytest.mark.parametrize("wrappers", STATES, ids=str)
def test_state_of_named_wrappers_is_saved_exactly(wrappers: list[Any]) -> None:
    def step(envs: Any) -> list[Any]:
        results = [envs.step(np.array([0, 1])) for _ in range(9)]
        return [[*obs.ravel().tolist(), *reward.tolist()] for obs, reward, *_ in results]

    first = make_vector_env("CartPole-v1", 2, seed=0, wrappers=wrappers)
    step(first)
    state = env_state(first)
    second = make_vector_env("CartPole-v1", 2, seed=1, wrappers=wrappers)
    load_env_state(second, state)
    assert step(first) == step(second)


def test_state_of_a_wrapper_with_other_arguments_is_refused() -> None:
    def make(steps: int) -> VectorEnv[Any, Any, Any]:
        return make_vector_env("CartPole-v1", 1, seed=0, wrappers=[{"time_limit": {"max_episode_steps": steps}}])

    with pytest.raises(NotPlainError, match=r"max_episode_steps: 5.* now with .*max_episode_steps: 6"):
        load_env_state(make(6), env_state(make(5)))


class SamePicture(Picture):
    """Returns the same array in every step, with the next picture in it."""

    def __init__(self) -> None:
        self.picture = np.zeros((8, 8, 3), np.uint8)

    def _obs(self) -> Any:
        self.picture[..., 0] = 10 * self.count
        return self.picture


def test_stacked_frames_of_an_env_that_returns_the_same_array_are_those_of_the_steps() -> None:
    env = find_wrappers([{"frame_stack": {"stack_size": 3}}])[0](SamePicture())
    assert env.reset()[0][:, 0, 0, 0].tolist() == [0, 0, 0]
    stacks = [env.step(0)[0][:, 0, 0, 0].tolist() for _ in range(3)]
    assert stacks == [[0, 0, 10], [0, 10, 20], [10, 20, 30]]
    assert env.reset()[0][:, 0, 0, 0].tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("wrapper", "option"),
    [
        (gym.wrappers.NormalizeObservation, "norm_obs"),
        ("gymnasium.wrappers.NormalizeReward", "norm_reward"),
        (lambda env: gym.wrappers.TimeLimit(gym.wrappers.NormalizeReward(env), 5), "norm_reward"),
    ],
)
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_wrapper_with_running_statistics_is_refused_with_the_option_to_use(
    mode: Any, wrapper: Any, option: str
) -> None:
    with pytest.raises(ValueError, match=f"wrappers must not have Normalize.*use {option}=True of the datamodule"):
        make_vector_env("CartPole-v1", 2, mode, wrappers=[wrapper])


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match="'max_and_skip' before 'clip_reward'"):
        ReplayDataModule("CartPole-v1", wrappers=["clip_reward"], train_wrappers=["max_and_skip"])
    with pytest.raises(ValueError, match="use norm_obs=True"):
        make_vector_env("CartPole-v1", 2, "native", wrappers=[gym.wrappers.vector.NormalizeObservation])


@pytest.mark.parametrize("wrapper", [gym.wrappers.ClipReward, "gymnasium.wrappers.ClipReward"])
def test_wrapper_that_changes_the_returns_of_evaluations_is_warned_of(wrapper: Any) -> None:
    given = {"class_path": wrapper, "init_args": {"max_reward": 1}} if isinstance(wrapper, str) else wrapper
    with pytest.warns(UserWarning, match="wrappers: ClipReward changes the rewards that evaluations measure too"):
        ReplayDataModule("CartPole-v1", wrappers=[given])


def test_wrappers_of_training_alone_are_not_warned_of(recwarn: pytest.WarningsRecorder) -> None:
    ReplayDataModule("CartPole-v1", wrappers=["clip_reward"], train_wrappers=[gym.wrappers.ClipReward])
    assert [one for one in recwarn if "rewards that evaluations" in str(one.message)] == []
