"""DI-engine's env types of other packages, its own small envs, and the types that do not run here."""

from __future__ import annotations

import importlib.util
import sys
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from lightning_ding.di_engine import env_makers
from lightning_ding.di_engine.configs import Missing
from lightning_ding.di_engine.env_makers import DmEnv, FlatGoal, FlawedRam, GreyStack, Moving, RepeatedAction, Sliding
from lightning_ding.di_engine.env_types import translate_envs
from lightning_ding.di_engine.other_envs import ENV_TYPES, NOT_HERE, SEVERAL_AGENTS
from lightning_ding.di_engine.serial import serial_pipeline, serial_pipeline_onpolicy
from lightning_ding.di_engine.translate import translate
from lightning_ding.envs import make_vector_env
from lightning_ding.envs.bit_flip import BitFlipEnv
from tests.di_engine.pairs import pair_of, small_pair

MAKERS = "lightning_ding.di_engine.env_makers"


def envs_of(kind: str, **entries: Any) -> Any:
    return translate_envs({"collector_env_num": 2, "evaluator_env_num": 1, **entries}, {"type": kind}, {})


# ---------------------------------------------------------------------------------------------------- sections


@pytest.mark.parametrize(
    ("kind", "entries", "env", "kwargs"),
    [
        ("bitflip", {"n_bits": 7}, "lightning_ding.envs.bit_flip.BitFlipEnv", {"n_bits": 7}),
        ("bsuite", {"env_id": "memory_len/0"}, f"{MAKERS}.make_bsuite", {"bsuite_id": "memory_len/0"}),
        ("gym_hybrid", {"env_id": "Sliding-v0", "act_scale": True}, f"{MAKERS}.Sliding", {}),
        (
            "minigrid",
            {"env_id": "MiniGrid-Empty-8x8-v0", "max_step": 300},
            f"{MAKERS}.make_minigrid",
            {"name": "MiniGrid-Empty-8x8-v0", "flat": True, "full": False, "max_episode_steps": 300},
        ),
        (
            "dmc2gym",
            {"domain_name": "cartpole", "task_name": "swingup", "frame_skip": 8, "from_pixels": False},
            f"{MAKERS}.make_dm_control",
            {"domain_name": "cartpole", "task_name": "swingup", "frame_skip": 8},
        ),
        (
            "pomdp",
            {"env_id": "Pong-ramNoFrameskip-v4", "use_ram": True, "pomdp": {"zero_p": 0.5}, "frame_stack": 3},
            f"{MAKERS}.make_flawed_ram",
            {"game": "Pong", "zero_p": 0.5, "stack": 3},
        ),
        ("procgen", {"env_id": "maze"}, f"{MAKERS}.Procgen", {"game": "maze", "start_level": 0, "num_levels": 0}),
        ("d4rl", {"env_id": "hopper-medium-v2"}, "Hopper-v5", {}),
        (
            "petting_zoo",
            {
                "env_family": "mpe",
                "env_id": "simple_spread_v2",
                "n_agent": 4,
                "n_landmark": 4,
                "agent_obs_only": False,
                "agent_specific_global_state": True,
                "continuous_actions": True,
                "act_scale": True,
            },
            "lightning_ding.di_engine.team_envs.SimpleSpread",
            {"n_agent": 4, "max_cycles": 25, "continuous_actions": True},
        ),
        (
            "mujoco_multi",
            {"scenario": "Ant-v2", "agent_conf": "2x4d", "agent_obsk": 2, "add_agent_id": False, "episode_limit": 500},
            "pettingzoo:gymnasium_robotics.envs.multiagent_mujoco.mamujoco_v1",
            {
                "team_reward": "mean",
                "individual_rewards": False,
                "scenario": "Ant",
                "agent_conf": "2x4d",
                "agent_obsk": 2,
                "global_categories": [],
                "max_episode_steps": 500,
            },
        ),
        (
            "petting_zoo_pistonball",
            {"env_family": "butterfly", "env_id": "pistonball_v6", "n_pistons": 10, "agent_obs_only": False},
            "pettingzoo:pettingzoo.butterfly.pistonball_v6",
            {"n_pistons": 10, "max_cycles": 125, "continuous": False, "individual_rewards": False},
        ),
    ],
)
def test_section_becomes_an_env(kind: str, entries: dict[str, Any], env: str, kwargs: dict[str, Any]) -> None:
    found = envs_of(kind, **entries)
    assert (found.env, found.datamodule.get("env_kwargs", {}), found.num_envs) == (env, kwargs, 2)
    assert found.warnings == ()


def test_rewards_of_pistonball_are_scaled_for_learning_alone() -> None:
    found = envs_of("petting_zoo_pistonball", n_pistons=10).datamodule
    scale = {"class_path": "lightning_ding.envs.rewards.scale_reward", "init_args": {"scale": 1 / 500}}
    assert found["train_wrappers"] == [scale]
    assert "wrappers" not in found


def test_every_type_has_a_test_here() -> None:
    assert set(ENV_TYPES) == {"bitflip", "bsuite", "d4rl", "dmc2gym", "gym_hybrid", "minigrid", "mujoco_multi"} | {
        "petting_zoo",
        "petting_zoo_pistonball",
        "pomdp",
        "procgen",
    }
    assert not set(ENV_TYPES) & {*NOT_HERE, *SEVERAL_AGENTS}


def test_images_of_dmc2gym_are_stacked() -> None:
    entries = {"domain_name": "cartpole", "task_name": "swingup", "frame_stack": 3, "warp_frame": True}
    found = envs_of("dmc2gym", **entries, from_pixels=True, channels_first=False, scale=True)
    assert found.datamodule["env_kwargs"] == {
        "domain_name": "cartpole",
        "task_name": "swingup",
        "frame_skip": 4,
        "pixels": 84,
    }
    assert found.datamodule["wrappers"] == [
        {"class_path": f"{MAKERS}.GreyStack", "init_args": {"stack": 3, "grey": True}}
    ]


@pytest.mark.parametrize(
    ("kind", "entries", "message"),
    [
        ("minigrid", {"onehot_obs": True}, r"env\.onehot_obs must be False"),
        (
            "gym_hybrid",
            {"env_id": "HardMove-v0"},
            r"env\.env_id must be 'Moving-v0' or 'Sliding-v0', got 'HardMove-v0'",
        ),
        (
            "d4rl",
            {"env_id": "kitchen-complete-v0"},
            r"env\.env_id must be a name of D4RL: .* got 'kitchen-complete-v0'",
        ),
        ("dmc2gym", {"domain_name": "cartpole"}, r"env\.task_name must be a name"),
        ("pomdp", {"env_id": "Pong-ramNoFrameskip-v4"}, r"env\.use_ram must be True"),
        ("gobigger", {}, "the game of several agents 'gobigger'"),
        ("petting_zoo", {"n_agent": 3, "n_landmark": 2}, r"env\.n_landmark must be 3, as env\.n_agent"),
        ("petting_zoo", {"env_id": "pistonball_v6"}, r"env\.env_id must be 'simple_spread_v2'"),
        ("petting_zoo_pistonball", {"env_id": "pistonball_v4"}, r"env\.env_id must be 'pistonball_v6'"),
        (
            "mujoco_multi",
            {"scenario": "Cheetah-v2"},
            r"env\.scenario must be the id of one of Ant, .* got 'Cheetah-v2'",
        ),
        ("mujoco_multi", {"scenario": "Ant-v2", "agent_conf": "2x4d"}, r"env\.agent_obsk must be an int >= 0"),
    ],
)
def test_what_cannot_be_translated_is_refused(kind: str, entries: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        envs_of(kind, **entries)


def test_env_of_minigrid_that_dizoo_brings_is_named_when_all_else_is_translated() -> None:
    main, create = pair_of("dqn", env_id="MiniGrid-NoisyTV-v0")
    create["env"] = {"type": "minigrid"}
    with pytest.raises(Missing, match="the env 'MiniGrid-NoisyTV-v0' does not run here: it is a part of dizoo; make"):
        translate((main, create))


@pytest.mark.parametrize("kind", sorted(NOT_HERE))
def test_env_that_does_not_run_here_is_named_when_all_else_is_translated(kind: str) -> None:
    main, create = pair_of("dqn")
    create["env"] = {"type": kind}
    with pytest.raises(Missing, match=f"the env '{kind}' does not run here: .*pass that as env_setting"):
        translate((main, create))
    main["policy"]["model"] = {"noise": True}
    with pytest.raises(ValueError, match=r"policy\.noisy_net must be True"):
        translate((main, create))


def test_package_that_is_missing_is_named_before_training(monkeypatch: pytest.MonkeyPatch) -> None:
    main, create = pair_of("dqn", env_id="memory_len/0")
    create["env"] = {"type": "bsuite"}
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == "bsuite" else found(name, *more)
    )
    with pytest.raises(
        Missing, match=r"the env bsuite needs the package bsuite: pip install 'lightning_ding\[bsuite\]'"
    ):
        serial_pipeline((main, create), seed=0, max_env_step=16)


# ---------------------------------------------------------------------------------------------------- envs


def place(env: Moving, at: Any, target: Any, direction: float = 0.0) -> None:
    """Reset an env and put its agent and target somewhere."""
    env.reset(seed=0)
    env._place, env._target, env._direction = np.array(at, float), np.array(target, float), direction


def act(kind: int, acceleration: float = 0.0, turn: float = 0.0) -> dict[str, Any]:
    return {"action_type": kind, "action_args": np.array([acceleration, turn], np.float32)}


def test_moving_follows_its_direction() -> None:
    env = Moving()
    place(env, (0, 0), (0.5, 0))
    obs, reward, *_ = env.step(act(0, acceleration=1.0))
    np.testing.assert_allclose(obs[:3], [0.0025, 0, 0.5], atol=1e-6)
    assert reward == pytest.approx(0.0025 - 0.001)
    obs, *_ = env.step(act(1, turn=1.0))  # a quarter of a circle, then a step with the new direction
    np.testing.assert_allclose(obs[:5], [0.0025, 0.0025, 0.5, 0, 1], atol=1e-6)


def test_sliding_keeps_its_velocity() -> None:
    env = Sliding()
    place(env, (0, 0), (0.5, 0))
    env.step(act(0, acceleration=1.0))
    obs, *_ = env.step(act(1, turn=1.0))
    np.testing.assert_allclose(obs[:5], [0.005, 0, 0.5, 0, 1], atol=1e-6)
    obs, *_ = env.step(act(0, acceleration=1.0))
    assert obs[2] == pytest.approx(0.5 * 2**0.5)  # two velocities at a right angle
    np.testing.assert_allclose(obs[:2], [0.0075, 0.0025], atol=1e-6)


def test_ends_of_moving() -> None:
    env = Moving()
    place(env, (0, 0), (0.05, 0))
    _, reward, terminated, truncated, _ = env.step(act(2))  # it stands on the target
    assert (terminated, truncated) == (True, False)
    assert reward == pytest.approx(1 - 0.001)
    place(env, (1, 0), (0, 0))
    _, reward, terminated, *_ = env.step(act(0, acceleration=1.0))
    assert (reward, terminated) == (-1.0, True)
    place(env, (0.9, 0.9), (0, 0))
    ends = [env.step(act(2))[2] for _ in range(201)]
    assert ends == [False] * 200 + [True]


def test_bitflip_is_one_vector() -> None:
    env = FlatGoal(BitFlipEnv(n_bits=3))
    obs, _ = env.reset(seed=0)
    assert env.observation_space.contains(obs)
    goal = obs[3:].copy()
    obs, *_ = env.step(int(np.flatnonzero(obs[:3] != goal)[0]))
    assert obs[3:].tolist() == goal.tolist()


class Steps(gym.Env[Any, Any]):
    """An env whose observation and reward are the number of the step."""

    observation_space = spaces.Box(0, 255, (2,), np.uint8)
    action_space = spaces.Discrete(2)

    def __init__(self, end: int = 100) -> None:
        self.end, self.count = end, 0

    def reset(self, **_: Any) -> Any:
        self.count = 0
        return np.full(2, 0, np.uint8), {}

    def step(self, action: Any) -> Any:
        self.count += 1
        return np.full(2, self.count, np.uint8), float(self.count), self.count >= self.end, False, {}


def test_repeated_action_stops_at_the_end() -> None:
    env = RepeatedAction(Steps(end=5), 3)
    env.reset()
    assert env.step(0)[1:3] == (6.0, False)
    assert env.step(0)[1:3] == (9.0, True)


def test_memory_without_flaws_is_a_stack_of_bytes_over_255() -> None:
    env = FlawedRam(Steps(), stack=2, noise_scale=0, zero_p=0, reward_noise=0, duplicate_p=0)
    env.reset(seed=0)
    obs, reward, *_ = env.step(0)
    np.testing.assert_allclose(obs * 255, [0, 0, 1, 1], atol=1e-5)
    assert reward == 1


def test_flaws_of_a_memory() -> None:
    blank = FlawedRam(Steps(), stack=3, noise_scale=0, zero_p=1.0, reward_noise=0, duplicate_p=0)
    blank.reset(seed=0)
    assert not blank.step(0)[0].any()
    repeated = FlawedRam(Steps(), stack=2, noise_scale=0, zero_p=0, reward_noise=0, duplicate_p=1.0)
    repeated.reset(seed=0)
    repeated.step(0)
    np.testing.assert_allclose(repeated.step(0)[0] * 255, [1, 1, 2, 2], atol=1e-5)  # the newest of two has no successor
    noisy = FlawedRam(Steps(), stack=1, noise_scale=1.0, zero_p=0, reward_noise=1.0, duplicate_p=0)
    noisy.reset(seed=0)
    found = [noisy.step(0) for _ in range(200)]
    assert np.std([one[0] for one in found]) == pytest.approx(1, abs=0.3)
    assert np.std([one[1] - number for number, one in enumerate(found, 1)]) == pytest.approx(1, abs=0.3)


class Images(Steps):
    """The same with images."""

    observation_space = spaces.Box(0, 255, (3, 2, 2), np.uint8)

    def reset(self, **_: Any) -> Any:
        super().reset()
        return np.zeros((3, 2, 2), np.uint8), {}

    def step(self, action: Any) -> Any:
        _, *rest = super().step(action)
        return np.array([100, 0, 0], np.uint8)[:, None, None] * np.ones((3, 2, 2), np.uint8), *rest


@pytest.mark.parametrize(("grey", "expected"), [(True, [0, 30]), (False, [0, 0, 0, 100, 0, 0])])
def test_stack_of_images(grey: bool, expected: list[int]) -> None:
    env = GreyStack(Images(), stack=2, grey=grey)
    assert env.reset()[0].shape == env.observation_space.shape
    assert env.step(0)[0][:, 0, 0].tolist() == expected


class Dm:
    """An env of dm_env: the observation is the seed and the number of the step; the third step ends it."""

    def __init__(self, seed: int, discount: float) -> None:
        self.seed, self.discount, self.count = seed, discount, 0

    def action_spec(self) -> Any:
        return SimpleNamespace(shape=(1,), minimum=-2.0, maximum=[2.0])

    def _found(self, reward: float | None) -> Any:
        observation = {"seed": np.array([self.seed]), "count": np.array(self.count)}
        is_last = self.count == 3
        discount = self.discount if is_last else 1.0
        return SimpleNamespace(observation=observation, reward=reward, discount=discount, last=lambda: is_last)

    def reset(self) -> Any:
        self.count = 0
        return self._found(None)

    def step(self, action: Any) -> Any:
        self.count += 1
        return self._found(float(action[0]))


@pytest.mark.parametrize(
    ("discount", "is_over", "ends"),
    [(1.0, False, (False, True)), (0.0, False, (True, False)), (1.0, True, (True, False))],
)
def test_env_of_dm_env(discount: float, is_over: bool, ends: tuple[bool, bool]) -> None:
    env = DmEnv(lambda seed: Dm(seed, discount), is_over)
    assert env.action_space == spaces.Box(-2, 2, (1,), np.float32)
    first, _ = env.reset(seed=3)
    again, _ = env.reset(seed=3)
    other, _ = env.reset(seed=4)
    assert first.tolist() == again.tolist() != other.tolist()
    found = [env.step(np.array([0.5], np.float32)) for _ in range(3)]
    assert [one[0][1] for one in found] == [1, 2, 3]
    assert [one[1] for one in found] == [0.5] * 3
    assert [one[2:4] for one in found] == [(False, False), (False, False), ends]


def test_procgen_restarts_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    class Game:
        def __init__(self, **options: Any) -> None:
            self.options, self.count = options, 0

        def act(self, action: Any) -> None:
            self.count = 0 if action[0] == -1 else self.count + 1

        def observe(self) -> Any:
            image = np.full((1, 64, 64, 3), self.count % 3, np.uint8)
            return np.array([float(self.count)]), {"rgb": image}, np.array([self.count % 3 == 0])

    monkeypatch.setitem(sys.modules, "procgen", SimpleNamespace(ProcgenGym3Env=Game))
    env = env_makers.Procgen("maze", start_level=2, num_levels=5)
    obs, _ = env.reset(seed=0)
    assert env.observation_space.contains(obs)
    options = {name: value for name, value in env._inner.options.items() if name != "rand_seed"}
    assert options == {"num": 1, "env_name": "maze", "start_level": 2, "num_levels": 5}
    found = [env.step(1) for _ in range(3)]
    assert [(one[0].max(), one[1], one[2]) for one in found] == [(1, 1, False), (2, 2, False), (0, 3, True)]
    game = env._inner
    env.step(1)
    env.reset()
    assert (env._inner, game.count) == (game, 0)


@pytest.mark.parametrize("kind", ["ddpg", "ppo"])
def test_hybrid_env_trains(kind: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shape = {"action_type_shape": 3, "action_args_shape": 2}
    model = {"obs_shape": 10, "action_shape": shape, "action_space": "hybrid"}
    main, create = small_pair(kind, {"action_space": "hybrid", "model": model}, act_scale=True)
    create["env"] = {"type": "gym_hybrid"}
    train = serial_pipeline if kind == "ddpg" else serial_pipeline_onpolicy
    policy: Any = train((main, create), seed=0, max_env_step=32)
    assert policy.progress.env_step >= 32


@pytest.mark.parametrize("kind", ["minigrid", "bsuite", "dmc2gym"])
def test_env_of_an_installed_package_steps(kind: str) -> None:
    entries: dict[str, dict[str, Any]] = {
        "minigrid": {"env_id": "MiniGrid-Empty-8x8-v0", "max_step": 7},
        "bsuite": {"env_id": "cartpole_swingup/0"},
        "dmc2gym": {"domain_name": "cartpole", "task_name": "swingup", "from_pixels": False, "frame_stack": 1},
    }
    sizes = {"minigrid": 2835, "bsuite": 8, "dmc2gym": 5}  # obs_shape of the dizoo's configs
    found = envs_of(kind, **entries[kind])
    pytest.importorskip(found.needs[0].module)
    env = make_vector_env(found.env, 2, seed=0, env_kwargs=found.datamodule["env_kwargs"])
    obs, _ = env.reset()
    assert obs.shape == (2, sizes[kind])
    assert env.step(env.action_space.sample())[0].shape == obs.shape
    env.close()
