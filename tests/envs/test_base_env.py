"""Envs with DI-engine's interface, as gymnasium envs, in one process and in several."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from lightning_ding.datamodules import ReplayDataModule
from lightning_ding.envs import BaseEnv, BaseEnvAdapter, BaseEnvTimestep, make_base_env, make_vector_env
from lightning_ding.policy import DQNPolicy
from lightning_ding.registry import ENV_REGISTRY
from tests.toys.base_envs import Walk


class FourTuple(Walk):
    """Returns a plain tuple, as envs of gym do, and takes no ``dynamic_seed``."""

    def step(self, action: Any) -> Any:
        return tuple(super().step(action))

    def seed(self, seed: int) -> None:  # type: ignore[override]
        self.seeds.append((seed, True))


class FiveTuple(Walk):
    """Returns a plain tuple, as envs of gymnasium do."""

    def step(self, action: Any) -> Any:
        obs, reward, done, info = super().step(action)
        return obs, reward, False, done, info

    def reset(self) -> Any:
        return super().reset(), {"fresh": True}


def walk(**cfg: Any) -> Walk:
    return Walk(cfg)


def play(env: gym.Env[Any, Any]) -> list[Any]:
    """Return rewards and ends of an episode."""
    env.reset(seed=0)
    results: list[Any] = []
    while not results or not (results[-1][1] or results[-1][2]):
        results.append(env.step(1)[1:4])
    return results


def test_done_is_a_termination() -> None:
    assert play(BaseEnvAdapter(walk(length=2))) == [(0.5, False, False), (0.5, True, False)]


def test_done_at_a_time_limit_is_a_truncation() -> None:
    assert play(BaseEnvAdapter(walk(length=2, truncated=True))) == [(0.5, False, False), (0.5, False, True)]


def test_a_tuple_of_four_is_a_timestep() -> None:
    assert play(make_base_env(FourTuple, {"length": 1})) == [(0.5, True, False)]
    assert play(make_base_env(FourTuple, {"length": 1, "truncated": True})) == [(0.5, False, True)]


def test_a_tuple_of_five_is_a_step_of_gymnasium() -> None:
    env = make_base_env(FiveTuple, {"length": 1})
    assert env.reset()[1] == {"fresh": True}
    assert play(env) == [(0.5, False, True)]


def test_the_return_that_an_env_reports_is_in_the_info() -> None:
    env = BaseEnvAdapter(walk(length=1))
    env.reset(seed=0)
    assert env.step(1)[4]["eval_episode_return"].tolist() == [10.0]


def test_the_return_of_an_evaluation_is_the_one_that_the_env_reports() -> None:
    # three steps of reward 0.5; the env reports 30, so the last reward is 30 - 2 * 0.5 = 29
    rewards = [reward for reward, _, _ in play(BaseEnvAdapter(walk(length=3), evaluation=True))]
    assert rewards == [0.5, 0.5, 29.0]


def test_an_observation_has_the_type_of_its_space() -> None:
    env = BaseEnvAdapter(walk())
    obs, _ = env.reset(seed=0)
    assert obs.dtype == np.float32
    assert env.observation_space.contains(obs)
    assert env.step(1)[0].dtype == np.float32


def test_a_discrete_action_arrives_as_an_array_of_one_integer() -> None:
    env = make_base_env(Walk, {"length": 5})
    env.reset()
    env.step(np.int64(1))
    env.step(0)
    first, second = env.base_env.actions  # type: ignore[attr-defined]
    assert (first.shape, first.dtype, first[0], int(first), first.squeeze().item()) == ((1,), np.int64, 1, 1, 1)
    assert int(second) == 0


def test_a_seed_of_training_is_dynamic_and_one_of_an_evaluation_is_not() -> None:
    for evaluation in (False, True):
        env = BaseEnvAdapter(walk(), evaluation)
        env.reset(seed=7)
        env.reset()
        assert env.base_env.seeds == [(7, not evaluation)]


def test_episodes_of_training_start_differently_and_those_of_an_evaluation_alike() -> None:
    starts = {}
    for evaluation in (False, True):
        env = BaseEnvAdapter(walk(), evaluation)
        starts[evaluation] = [env.reset(seed=7)[0][1], env.reset()[0][1], env.reset()[0][1]]
    assert len(set(starts[False])) == 3
    assert len(set(starts[True])) == 1


def test_a_seed_method_without_dynamic_seed_is_called_with_the_seed_alone() -> None:
    env = make_base_env(FourTuple, {})
    env.reset(seed=2**31 + 5)
    assert env.base_env.seeds == [(5, True)]  # type: ignore[attr-defined]


def test_an_env_does_not_change_the_random_numbers_of_others() -> None:
    env = BaseEnvAdapter(walk())
    np.random.seed(3)
    env.reset(seed=0)
    after = np.random.rand()
    np.random.seed(3)
    assert after == np.random.rand()


def test_others_do_not_change_the_random_numbers_of_an_env() -> None:
    def second_start(draws: int) -> float:
        env = BaseEnvAdapter(walk())
        env.reset(seed=0)
        np.random.rand(draws)
        return float(env.reset()[0][1])

    assert second_start(0) == second_start(5)


def test_an_env_that_draws_without_seeding_repeats_itself_after_the_same_seed() -> None:
    class Draws(FourTuple):
        def reset(self) -> Any:
            return super().reset() * 0 + np.random.rand()

    env = BaseEnvAdapter(Draws({}))
    starts = [env.reset(seed=seed)[0][0] for seed in (4, 5, 4)]
    assert starts[0] == starts[2] != starts[1]


def test_options_of_a_reset_are_arguments_of_the_env() -> None:
    class WithLevel(Walk):
        def reset(self, level: int = 0) -> Any:
            obs = super().reset()
            return np.array([level, obs[1]])

    assert BaseEnvAdapter(WithLevel({})).reset(options={"level": 4})[0][0] == 4


def test_close_and_enable_save_replay_reach_the_env() -> None:
    env = make_base_env(Walk, {}, replay_path="videos")
    assert env.base_env.videos == ["videos"]  # type: ignore[attr-defined]
    env.close()
    assert env.base_env.is_closed  # type: ignore[attr-defined]


def test_an_env_without_videos_says_so() -> None:
    class Plain(FiveTuple):
        enable_save_replay = BaseEnv.enable_save_replay

    with pytest.raises(NotImplementedError, match="Plain has no method enable_save_replay"):
        make_base_env(Plain, {}, replay_path="videos")


def test_random_action_has_the_form_that_step_takes() -> None:
    env = walk()
    env.reset()
    assert env.random_action().shape == (1,)


def test_a_subclass_must_have_the_methods_of_the_interface() -> None:
    class Half(BaseEnv):
        def reset(self) -> Any:
            return 0

    with pytest.raises(TypeError, match="abstract method"):
        Half({})  # type: ignore[abstract]


def test_a_reward_of_several_numbers_is_refused() -> None:
    class Two(Walk):
        def step(self, action: Any) -> Any:
            return super().step(action)._replace(reward=np.zeros(2))

    env = BaseEnvAdapter(Two({}))
    env.reset()
    with pytest.raises(TypeError, match=r"reward of Two.step\(\) must be one number or an array of shape \(1,\)"):
        env.step(0)


def test_a_step_of_three_values_is_refused() -> None:
    class Three(Walk):
        def step(self, action: Any) -> Any:
            return 1, 2, 3

    env = BaseEnvAdapter(Three({}))
    env.reset()
    with pytest.raises(TypeError, match=r"Three.step\(\) must return .* 4 or 5 values, got a tuple of 3"):
        env.step(0)


# ---------------------------------------------------------------------- names


@pytest.fixture
def registered() -> Iterator[str]:
    ENV_REGISTRY.register("walk_of_a_test")(Walk)
    yield "walk_of_a_test"
    del ENV_REGISTRY._entries["walk_of_a_test"]


def test_an_env_is_found_by_its_registered_name_and_gets_an_easydict(registered: str) -> None:
    env = make_base_env(registered, {"length": 1, "size": {"x": 2}})
    assert env.base_env._cfg.size.x == 2  # type: ignore[attr-defined]
    assert play(env) == [(0.5, True, False)]


def test_an_env_of_gymnasium_is_returned_unchanged() -> None:
    env = make_base_env(lambda cfg: gym.make(cfg.env_id), {"env_id": "CartPole-v1"})
    assert env.spec is not None
    assert env.spec.id == "CartPole-v1"


def test_mistakes_are_named() -> None:
    with pytest.raises(TypeError, match=r"dict must have the methods of BaseEnv, but lacks \['reset', 'step', 'seed'"):
        make_base_env(lambda cfg: {}, {})
    with pytest.raises(ValueError, match=r"env must be .*, got 'no_such_env'"):
        make_base_env("no_such_env", {})


# ---------------------------------------------------------------------- spaces of gym


def old_space(kind: str, module: str = "gym.spaces", **attributes: Any) -> Any:
    """Return a space as the package ``gym`` has it."""
    cls = type(kind, (), {"__module__": module})
    made = cls()
    made.__dict__ |= attributes
    return made


BOX: dict[str, Any] = {
    "low": np.array([-1.0, 0.0], np.float32),
    "high": np.ones(2, np.float32),
    "shape": (2,),
    "dtype": np.float32,
}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (old_space("Box", **BOX), gym.spaces.Box(BOX["low"], BOX["high"], (2,), np.float32)),
        (old_space("Discrete", n=3), gym.spaces.Discrete(3)),
        (old_space("Discrete", n=3, start=1), gym.spaces.Discrete(3, start=1)),
        (old_space("MultiDiscrete", nvec=np.array([2, 3])), gym.spaces.MultiDiscrete([2, 3])),
        (old_space("MultiBinary", n=4), gym.spaces.MultiBinary(4)),
        (old_space("Dict", spaces={"a": old_space("Discrete", n=2)}), gym.spaces.Dict({"a": gym.spaces.Discrete(2)})),
        (old_space("Tuple", spaces=(old_space("Discrete", n=2),)), gym.spaces.Tuple([gym.spaces.Discrete(2)])),
    ],
    ids=lambda space: type(space).__name__,
)
def test_a_space_of_gym_becomes_one_of_gymnasium(old: Any, new: Any) -> None:
    class Old(Walk):
        def reset(self) -> Any:
            obs = super().reset()
            self.action_space = old
            return obs

    assert BaseEnvAdapter(Old({})).action_space == new


@pytest.mark.parametrize("space", [old_space("Graph"), old_space("Discrete", "own", n=2), None])
def test_a_space_that_cannot_be_converted_is_refused(space: Any) -> None:
    class Odd(Walk):
        def reset(self) -> Any:
            obs = super().reset()
            self.observation_space = space
            return obs

    with pytest.raises(TypeError, match="observation_space of Odd must be a space of gymnasium, or a Box, Discrete"):
        BaseEnvAdapter(Odd({}))


class Parts(Walk):
    """Has observations and actions of several parts."""

    def reset(self) -> Any:
        super().reset()
        self.action_space = gym.spaces.Dict({"kind": gym.spaces.Discrete(2), "size": gym.spaces.Box(0, 1, (1,))})
        self.observation_space = gym.spaces.Dict(
            {"pair": gym.spaces.Tuple([gym.spaces.Discrete(4), gym.spaces.Box(0, 1, (1,), np.float32)])}
        )
        return {"pair": (np.array([3]), [0.5])}

    def step(self, action: Any) -> Any:
        assert isinstance(action, Mapping)
        assert action["kind"].shape == (1,)
        return BaseEnvTimestep({"pair": (2, np.array([0.25]))}, 1, np.array([False]), {})


def test_parts_of_observations_and_actions_are_converted() -> None:
    env = BaseEnvAdapter(Parts({}))
    obs, _ = env.reset(seed=0)
    assert env.observation_space.contains(obs)
    obs, reward, terminated, _, _ = env.step(env.action_space.sample())
    assert env.observation_space.contains(obs)
    assert (obs["pair"][0], obs["pair"][1].tolist(), reward, terminated) == (2, [0.25], 1.0, False)


# ---------------------------------------------------------------------- vector envs and training


def record(mode: Any) -> Any:
    """Return all that three envs give in ten steps, with episodes that end at different times."""
    kwargs = {"env": Walk, "cfg": {"length": 4, "truncated": True}}
    env = make_vector_env(make_base_env, 3, mode, seed=0, env_kwargs=kwargs, check_api=True)
    seen = [env.reset()[0]]
    for step in range(10):
        obs, *rest, info = env.step(np.array([step % 2, 1, 0]))
        seen += [obs, *rest, [None if one is None else one.tolist() for one in info.get("final_obs", [])]]
    env.close()
    return [one if isinstance(one, list) else one.tolist() for one in seen]


def test_envs_in_processes_give_the_same_as_in_one_process() -> None:
    assert record("sync") == record("async")


def test_a_policy_trains_in_such_an_env(make_trainer: Any, small: dict[str, Any]) -> None:
    kwargs: dict[str, Any] = {"env": Walk, "cfg": {"length": 5}}
    eval_kwargs = {**kwargs, "evaluation": True}
    data = ReplayDataModule(make_base_env, 2, env_kwargs=kwargs, eval_env_kwargs=eval_kwargs, max_env_step=100)
    trainer = make_trainer()
    trainer.fit(policy := DQNPolicy(small), datamodule=data)
    assert policy.progress.env_step >= 100
    assert trainer.callback_metrics["eval/return_mean"] == 50.0  # five steps, each counted as 10 by the env
