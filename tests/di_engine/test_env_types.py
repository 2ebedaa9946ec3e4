"""Sections ``env`` of DI-engine's configs, as envs of this project."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import pytest
import yaml
from easydict import EasyDict

from lightning_ding.datamodules import ReplayDataModule
from lightning_ding.di_engine.env_section import RENAMED_IDS, current_id
from lightning_ding.di_engine.env_types import TranslatedEnvs, translate_envs
from lightning_ding.di_engine.known_envs import ENV_TYPES
from lightning_ding.envs import DingEnvWrapper, make_vector_env
from lightning_ding.policy import DDPGPolicy, DQNPolicy
from lightning_ding.registry import ENV_REGISTRY
from tests.toys.base_envs import Walk

NEEDS = {"atari": "ale_py", "box2d": "Box2D", "mujoco": "mujoco", None: "gymnasium"}
"""The module that each extra installs."""


def translate(kind: str, **entries: Any) -> TranslatedEnvs:
    return translate_envs(entries, {"type": kind, "import_names": [f"dizoo.{kind}.envs"]}, {"type": "base"})


def make(envs: TranslatedEnvs, evaluation: bool = False) -> Any:
    """Return the single env that the training or the evaluation makes."""
    given = envs.datamodule_kwargs()
    wrappers = [*given.get("wrappers", []), *given.get("eval_wrappers" if evaluation else "train_wrappers", [])]
    kwargs = given.get("env_kwargs", {})
    if evaluation:
        kwargs = given.get("eval_env_kwargs", kwargs)
    vector: Any = make_vector_env(given["env_id"], 1, "sync", 0, wrappers, kwargs, "disabled", check_api=True)
    return vector.envs[0]


class Row(NamedTuple):
    """An env type of DI-engine, and the env that it makes here."""

    kind: str
    entries: dict[str, Any]
    env: str
    extra: str | None
    obs: tuple[int, ...]
    action: str


ROWS = [
    Row("cartpole", {}, "CartPole-v1", None, (4,), "Discrete(2)"),
    Row("pendulum", {"act_scale": True}, "Pendulum-v1", None, (3,), "Box(-2.0, 2.0, (1,), float32)"),
    Row("mbpendulum", {"act_scale": True}, "Pendulum-v1", None, (3,), "Box(-2.0, 2.0, (1,), float32)"),
    Row("acrobot", {}, "Acrobot-v1", None, (6,), "Discrete(3)"),
    Row("mountain_car", {}, "MountainCar-v0", None, (2,), "Discrete(3)"),
    Row("lunarlander", {}, "LunarLander-v3", "box2d", (8,), "Discrete(4)"),
    Row(
        "lunarlander",
        {"env_id": "LunarLanderContinuous-v2", "act_scale": True},
        "LunarLanderContinuous-v3",
        "box2d",
        (8,),
        "Box(-1.0, 1.0, (2,), float32)",
    ),
    Row("bipedalwalker", {}, "BipedalWalker-v3", "box2d", (24,), "Box(-1.0, 1.0, (4,), float32)"),
    Row("carracing", {"continuous": False}, "CarRacing-v3", "box2d", (3, 96, 96), "Discrete(5)"),
    Row("mujoco", {"env_id": "HalfCheetah-v3"}, "HalfCheetah-v5", "mujoco", (17,), "Box(-1.0, 1.0, (6,), float32)"),
    Row("mbmujoco", {"env_id": "Hopper-v2"}, "Hopper-v5", "mujoco", (11,), "Box(-1.0, 1.0, (3,), float32)"),
    Row("mujoco", {"env_id": "Ant-v3"}, "Ant-v5", "mujoco", (111,), "Box(-1.0, 1.0, (8,), float32)"),
    Row("mujoco", {"env_id": "AntTruncatedObs-v2"}, "Ant-v5", "mujoco", (27,), "Box(-1.0, 1.0, (8,), float32)"),
    Row(
        "mujoco",
        {"env_id": "HumanoidTruncatedObs-v2"},
        "Humanoid-v5",
        "mujoco",
        (45,),
        "Box(-1.0, 1.0, (17,), float32)",
    ),
    Row(
        "atari",
        {"env_id": "PongNoFrameskip-v4"},
        "lightning_ding.envs.make_atari",
        "atari",
        (4, 84, 84),
        "Discrete(6)",
    ),
    Row(
        "atari_mr",
        {"env_id": "MontezumaRevengeNoFrameskip-v4"},
        "lightning_ding.envs.make_atari",
        "atari",
        (4, 84, 84),
        "Discrete(18)",
    ),
    Row("taxi", {"env_id": "Taxi-v3"}, "Taxi-v4", None, (34,), "Discrete(6)"),
    Row("frozen_lake", {"env_id": "FrozenLake-v1"}, "FrozenLake-v1", None, (16,), "Discrete(4)"),
    Row("cliffwalking", {}, "CliffWalking-v1", None, (48,), "Discrete(4)"),
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.kind}-{row.entries.get('env_id', '')}")
def test_each_type_makes_the_env_of_di_engine(row: Row) -> None:
    envs = translate(row.kind, **row.entries)
    assert envs.env == row.env
    assert envs.warnings == ()
    if importlib.util.find_spec(NEEDS[row.extra]) is None:
        pytest.skip(f"needs the extra {row.extra}")
    for evaluation in (False, True):
        env = make(envs, evaluation)
        assert env.observation_space.shape == row.obs
        assert str(env.action_space) == row.action
        assert env.observation_space.contains(env.reset(seed=0)[0])
        env.close()


def test_each_type_has_a_row_or_is_refused() -> None:
    assert {row.kind for row in ROWS} == set(ENV_TYPES)


@pytest.mark.parametrize(("old", "new"), sorted(RENAMED_IDS.items()))
def test_a_renamed_env_exists(old: str, new: str) -> None:
    assert current_id(old) == new
    assert new in gym.registry or new == "mpe2.simple_spread_v3"


def test_a_renamed_id_is_told() -> None:
    assert len(RENAMED_IDS) >= 30
    assert "env.env_id 'LunarLander-v2' -> 'LunarLander-v3'" in translate("lunarlander").translated
    assert current_id("MyOwn-v0") == "MyOwn-v0"


def test_an_old_id_stays_where_gymnasium_still_makes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = {name: spec for name, spec in gym.registry.items() if name != "Taxi-v4"}
    monkeypatch.setattr(gym, "registry", {**registry, "Taxi-v3": gym.registry["Taxi-v4"]})
    assert current_id("Taxi-v3") == "Taxi-v3"


# ---------------------------------------------------------------------- entries of all types


def test_numbers_of_envs_and_episodes_are_arguments_of_the_datamodule() -> None:
    entries = {"collector_env_num": 8, "evaluator_env_num": 5, "n_evaluator_episode": 6, "stop_value": 195}
    envs = translate("cartpole", **entries)
    given = envs.datamodule_kwargs()
    assert (given["num_envs"], given["evaluator_env_num"], given["n_evaluator_episode"]) == (8, 5, 6)
    assert (given["stop_value"], given["mode"], envs.warnings) == (195, "sync", ())


def test_missing_numbers_are_those_of_di_engine() -> None:
    envs = translate("cartpole")
    assert (envs.num_envs, envs.num_eval_envs, envs.n_evaluator_episode, envs.stop_value) == (1, 1, 4, 1e10)


def test_the_main_config_has_priority_and_its_manager_too() -> None:
    main = {"env_id": "LunarLanderContinuous-v2", "manager": {"type": "base", "shared_memory": False}}
    create = {"type": "lunarlander", "env_id": "LunarLander-v2", "stop_value": 1}
    envs = translate_envs(EasyDict(main), EasyDict(create), EasyDict({"type": "subprocess", "step_timeout": 9}))
    assert (envs.env, envs.stop_value, envs.vector_mode) == ("LunarLanderContinuous-v3", 1, "sync")
    assert "step_timeout has no effect" in envs.warnings[0]


def test_limits_and_retries_of_the_manager_are_passed_on() -> None:
    envs = translate_envs(
        {"manager": {"reset_timeout": 9, "max_retry": 2}}, {"type": "acrobot"}, {"type": "subprocess"}
    )
    assert envs.datamodule["env_timeout"] == (9, None)
    assert envs.collector == {"env_fault": "drop"}


def test_an_unknown_entry_is_a_warning_that_names_the_nearest() -> None:
    (warning,) = translate("pendulum", act_scal=True).warnings
    assert warning == (
        "env.act_scal has no effect: DI-engine's env type 'pendulum' does not read it; did you mean 'act_scale'?"
    )


def test_the_id_of_a_type_with_one_env_is_a_warning() -> None:
    (warning,) = translate("cartpole", env_id="CartPole-v2").warnings
    assert warning == "env.env_id 'CartPole-v2' has no effect: the env type 'cartpole' is always 'CartPole-v0'"
    (warning,) = translate("cliffwalking", env_id="Cliff-v2").warnings
    assert "the env type 'cliffwalking' is always" in warning
    assert translate("cartpole", env_id="CartPole-v0").warnings == ()


def test_gifs_are_a_warning() -> None:
    assert translate("lunarlander", save_replay_gif=False).warnings == ()
    assert "env.save_replay_gif has no effect" in translate("lunarlander", save_replay_gif=True).warnings[0]
    assert "env.save_replay_gif has no effect" in translate("lunarlander", replay_path_gif="x").warnings[0]


@pytest.mark.parametrize(("name", "kind"), [("is_train", "acrobot"), ("action_clip", "lunarlander")])
def test_an_entry_that_is_not_needed_says_why(name: str, kind: str) -> None:
    envs = translate(kind, **{name: True})
    assert any(line.startswith(f"env.{name} True -> not needed: ") for line in envs.translated)
    assert envs.warnings == ()


@pytest.mark.parametrize(
    ("kind", "entries", "message"),
    [
        ("cartpol", {}, r"env.type must be one of \['acrobot', .*got 'cartpol' .*; did you mean 'cartpole'\?"),
        ("cartpole", {"collector_env_num": 0}, "env.collector_env_num must be an int >= 1, got 0"),
        ("cartpole", {"n_evaluator_episode": "5"}, "env.n_evaluator_episode must be an int >= 1, got '5'"),
        ("mujoco", {}, "env.env_id must be the id of an env, such as 'Hopper-v3', got None"),
        ("atari", {"env_id": "Pong"}, "env.env_id must be the id of an Atari game, such as .*, got 'Pong'"),
        ("atari", {"env_id": "PongNoFrameskip-v4", "frame_stack": 0}, "env.frame_stack must be an int >= 1, got 0"),
        ("slime_volley", {"env_id": "SlimeVolley-v0"}, "several agents 'SlimeVolley-v0'"),
    ],
)
def test_what_cannot_be_translated_raises(kind: str, entries: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        translate(kind, **entries)


# ---------------------------------------------------------------------- entries of one type


def test_cartpole_has_the_time_limit_of_version_0() -> None:
    spec = make(translate("cartpole")).spec
    assert spec.max_episode_steps == gym.spec("CartPole-v0").max_episode_steps == 200


def test_actions_of_pendulum_are_scaled_only_with_act_scale() -> None:
    assert make(translate("pendulum", act_scale=True)).action_space == gym.spaces.Box(-2, 2, (1,), np.float32)
    unscaled = make(translate("pendulum", act_scale=False))
    assert unscaled.action_space == gym.spaces.Box(-1, 1, (1,), np.float32)
    unscaled.reset(seed=0)
    unscaled.step(np.ones(1, np.float32))
    assert unscaled.unwrapped.last_u == 1


@pytest.mark.parametrize(("act_scale", "torque"), [(True, 1.2), (False, 0.6)])
def test_pendulum_has_eleven_discrete_torques(act_scale: bool, torque: float) -> None:
    env = make(translate("pendulum", act_scale=act_scale, continuous=False))
    assert env.action_space == gym.spaces.Discrete(11)
    env.reset(seed=0)
    env.step(np.int64(8))  # 8 / 10 * 2 - 1 = 0.6, in [-1, 1]
    assert env.unwrapped.last_u == pytest.approx(torque, rel=1e-6)


def test_rew_clip_of_bipedalwalker_is_for_training_only() -> None:
    envs = translate("bipedalwalker", rew_clip=True)
    clip = {"class_path": "gymnasium.wrappers.ClipReward", "init_args": {"min_reward": -10}}
    assert envs.datamodule == {"train_wrappers": [clip]}
    assert translate("bipedalwalker", rew_clip=False).datamodule == {}
    assert gym.wrappers.ClipReward(gym.make("CartPole-v1"), min_reward=-10).reward(-100) == -10


def test_carracing_is_continuous_if_asked() -> None:
    assert translate("carracing", continuous=False).datamodule["env_kwargs"] == {"continuous": False}
    assert translate("carracing").datamodule["env_kwargs"] == {"continuous": True}


def test_taxi_and_cliffwalking_have_the_time_limits_of_the_section() -> None:
    assert make(translate("taxi", max_episode_steps=60)).spec.max_episode_steps == 60
    assert make(translate("cliffwalking", max_episode_steps=7)).spec.max_episode_steps == 7
    assert make(translate("cliffwalking")).spec.max_episode_steps == 300


def test_frozen_lake_has_the_map_of_the_section() -> None:
    slippery = make(translate("frozen_lake")).unwrapped
    dry = make(translate("frozen_lake", is_slippery=False, map_name="8x8")).unwrapped
    assert (len(slippery.P[0][0]), len(dry.P[0][0])) == (3, 1)
    assert (slippery.desc.shape, dry.desc.shape) == ((4, 4), (8, 8))
    assert make(translate("frozen_lake", desc=["SF", "FG"])).observation_space.shape == (4,)


def test_frozen_lake_starts_with_the_last_one_hot_entry_as_in_di_engine() -> None:
    assert make(translate("frozen_lake")).reset(seed=0)[0].tolist() == [0] * 15 + [1]


def test_normalisation_is_an_option_of_the_datamodule() -> None:
    entries: dict[str, Any] = {
        "norm_obs": {"use_norm": True},
        "norm_reward": {"use_norm": True, "reward_discount": 0.9},
    }
    envs = translate("mujoco", env_id="Hopper-v3", **entries)
    assert (envs.datamodule["norm_obs"], envs.datamodule["norm_reward"]) == (True, True)
    assert envs.warnings == ("env.norm_reward.reward_discount has no effect: the policy's discount_factor is used",)
    without = translate("mujoco", env_id="Hopper-v3", norm_obs={"use_norm": False}, norm_reward=None)
    assert without.datamodule == {}


def test_delayed_rewards_are_for_training_only() -> None:
    envs = translate("mujoco", env_id="Hopper-v3", delay_reward_step=3)
    assert [one["init_args"] for one in envs.datamodule["train_wrappers"]] == [{"steps": 3}]
    assert translate("mujoco", env_id="Hopper-v3", delay_reward_step=1).datamodule == {}


def test_actions_of_a_robot_can_be_binned() -> None:
    envs = translate("mujoco", env_id="Hopper-v3", action_bins_per_branch=4)
    assert [one["init_args"] for one in envs.datamodule["wrappers"]] == [{"bins": 4}]


def test_a_robot_whose_observations_changed_is_a_warning() -> None:
    (warning,) = translate("mujoco", env_id="Humanoid-v3").warnings
    assert warning == "env.env_id: Humanoid-v5 has 348 observations, because constant ones are left out"
    assert translate("mujoco", env_id="Humanoid-v5").warnings == ()


def test_a_robot_with_other_bounds_gets_actions_unscaled() -> None:
    assert translate("mujoco", env_id="Pusher-v2").datamodule["wrappers"] == [
        "lightning_ding.di_engine.env_wrappers.UnitActions"
    ]


@pytest.mark.parametrize(("version", "repeats"), [("v4", 0.0), ("v0", 0.25)])
def test_an_atari_game_has_the_repeated_actions_of_its_version(version: str, repeats: float) -> None:
    envs = translate("atari", env_id=f"SpaceInvadersNoFrameskip-{version}", frame_stack=3)
    game = {"game": "SpaceInvaders", "repeat_action_probability": repeats, "stack": 3}
    assert envs.datamodule == {"env_kwargs": game, "eval_env_kwargs": {**game, "training": False}}
    assert envs.warnings == ()


def test_frame_stack_is_the_number_of_images() -> None:
    pytest.importorskip("ale_py", reason="needs the extra atari")
    env = make(translate("atari", env_id="PongNoFrameskip-v4", frame_stack=2))
    assert env.observation_space.shape == (2, 84, 84)
    env.close()


def test_evaluations_of_atari_are_complete_games_with_raw_scores() -> None:
    pytest.importorskip("ale_py", reason="needs the extra atari")
    envs = translate("atari", env_id="PongNoFrameskip-v4")
    names = [str(make(envs, evaluation)) for evaluation in (False, True)]
    assert ["ClipToSign" in name and "EpisodicLife" in name for name in names] == [True, False]


@pytest.mark.parametrize("env_id", ["ALE/Pong-v5", "Pong-v0", "PongDeterministic-v4"])
def test_an_atari_id_that_skips_frames_itself_is_a_warning(env_id: str) -> None:
    envs = translate("atari", env_id=env_id)
    assert envs.datamodule["env_kwargs"]["game"] == "Pong"
    assert "each action lasts 4 frames here" in envs.warnings[0]


# ---------------------------------------------------------------------- videos


def test_replay_path_is_for_the_videos_of_an_evaluation() -> None:
    envs = translate("acrobot", replay_path="videos")
    assert envs.replay_path == "videos"
    assert envs.datamodule == {}  # training makes none, as in DI-engine
    given = envs.with_replay().datamodule
    assert given["eval_env_kwargs"] == {"render_mode": "rgb_array"}
    assert given["eval_wrappers"] == [
        {"class_path": "lightning_ding.envs.wrappers.record_videos", "init_args": {"folder": "videos"}}
    ]
    assert envs.with_replay("other").datamodule["eval_wrappers"][0]["init_args"] == {"folder": "other"}
    assert translate("acrobot").with_replay() == translate("acrobot")


def test_videos_keep_the_arguments_of_the_env() -> None:
    envs = translate("taxi", max_episode_steps=60).with_replay("videos")
    assert envs.datamodule["eval_env_kwargs"] == {"max_episode_steps": 60, "render_mode": "rgb_array"}
    assert envs.datamodule["env_kwargs"] == {"max_episode_steps": 60}


def test_videos_are_written(tmp_path: Path) -> None:
    pytest.importorskip("moviepy", reason="needs the extra video")
    env = make(translate("cartpole").with_replay(str(tmp_path)), evaluation=True)
    env.reset(seed=0)
    while not any(env.step(0)[2:4]):
        pass
    env.close()
    assert len(list(tmp_path.glob("*.mp4"))) == 1


# ---------------------------------------------------------------------- envs of users


@pytest.fixture
def walk() -> Iterator[str]:
    ENV_REGISTRY.register("walk")(Walk)
    yield "walk"
    del ENV_REGISTRY._entries["walk"]


def test_an_env_of_a_user_gets_its_section(walk: str) -> None:
    main = {"collector_env_num": 2, "evaluator_env_num": 3, "length": 4, "stop_value": 7, "speed": {"x": 1}}
    envs = translate_envs(EasyDict(main), {"type": walk, "import_names": ["tests.toys.base_envs"]}, {})
    assert (envs.num_envs, envs.num_eval_envs, envs.stop_value, envs.warnings) == (2, 3, 7, ())
    given = envs.datamodule
    assert envs.env == "lightning_ding.envs.make_base_env"
    assert given["env_kwargs"]["env"] == given["eval_env_kwargs"]["env"] == "tests.toys.base_envs:Walk"
    assert given["env_kwargs"]["cfg"]["speed"] == {"x": 1}
    assert given["import_names"] == ["tests.toys.base_envs"]
    assert make(envs, evaluation=True).unwrapped.evaluation
    assert not make(envs).unwrapped.evaluation


def test_defaults_of_an_env_class_are_below_the_section(monkeypatch: pytest.MonkeyPatch, walk: str) -> None:
    defaults = staticmethod(lambda: EasyDict(length=9, speed={"x": 1, "y": 2}, n_evaluator_episode=3))
    monkeypatch.setattr(Walk, "default_config", defaults, raising=False)
    envs = translate_envs({"speed": {"x": 5}}, {"type": walk}, {})
    cfg = envs.datamodule["env_kwargs"]["cfg"]
    assert (cfg["length"], cfg["speed"], envs.n_evaluator_episode) == (9, {"x": 5, "y": 2}, 3)


def test_a_user_can_replace_an_env_of_di_engine() -> None:
    ENV_REGISTRY.register("cartpole")(Walk)
    try:
        assert translate("cartpole").env == "lightning_ding.envs.make_base_env"
    finally:
        del ENV_REGISTRY._entries["cartpole"]


def test_modules_of_the_section_are_imported() -> None:
    with pytest.raises(ImportError, match="import_names: cannot import 'no_such_module'"):
        translate_envs({}, {"type": "x", "import_names": ["no_such_module"]}, {})
    with pytest.raises(ImportError, match="import_names: cannot import 'no_such_module'"):
        translate_envs({}, {"type": "x", "import_names": "no_such_module"}, {})


def test_configs_for_collecting_and_evaluating_come_from_the_class(monkeypatch: pytest.MonkeyPatch, walk: str) -> None:
    monkeypatch.setattr(Walk, "create_collector_env_cfg", staticmethod(lambda cfg: [{"length": 2}] * 5))
    monkeypatch.setattr(Walk, "create_evaluator_env_cfg", staticmethod(lambda cfg: [{"length": 3}] * 2))
    envs = translate_envs({}, {"type": walk}, {})
    assert (envs.num_envs, envs.num_eval_envs) == (5, 2)
    assert envs.datamodule["env_kwargs"]["cfg"] == {"length": 2}
    assert envs.datamodule["eval_env_kwargs"]["cfg"] == {"length": 3}


def test_configs_that_differ_between_envs_are_refused(monkeypatch: pytest.MonkeyPatch, walk: str) -> None:
    monkeypatch.setattr(Walk, "create_collector_env_cfg", staticmethod(lambda cfg: [{"port": 1}, {"port": 2}]))
    with pytest.raises(ValueError, match="the configs of all collector envs must be equal"):
        translate_envs({}, {"type": walk}, {})


def test_env_setting_replaces_the_env_of_the_config() -> None:
    setting: Any = (lambda cfg: DingEnvWrapper(gym.make(cfg.env_id), cfg), [{"env_id": "CartPole-v1"}] * 2, [{}])
    envs = translate_envs({"stop_value": 5}, {}, {"type": "base"}, env_setting=setting)
    assert (envs.num_envs, envs.num_eval_envs, envs.stop_value) == (2, 1, 5)
    assert make(envs).observation_space.shape == (4,)


def test_videos_of_an_env_of_a_user_are_its_own(walk: str) -> None:
    envs = translate_envs({"replay_path": "videos"}, {"type": walk}, {})
    assert make(envs.with_replay(), evaluation=True).unwrapped.base_env.videos == ["videos"]
    assert make(envs.with_replay()).unwrapped.base_env.videos == []


# ---------------------------------------------------------------------- runs


def test_all_arguments_but_own_objects_fit_into_a_yaml_file() -> None:
    for row in ROWS:
        envs = translate(row.kind, **row.entries)
        given = envs.datamodule_kwargs()
        assert yaml.safe_load(yaml.safe_dump(given)) == given


def train(envs: TranslatedEnvs, policy: Any, make_trainer: Any) -> None:
    given = {**envs.datamodule_kwargs(), "n_evaluator_episode": 1}
    make_trainer().fit(policy, datamodule=ReplayDataModule(**given, max_env_step=60))
    assert policy.progress.env_step >= 60


def test_a_policy_trains_in_the_envs_of_a_config(make_trainer: Any, small: dict[str, Any]) -> None:
    train(translate("frozen_lake", collector_env_num=2, evaluator_env_num=1), DQNPolicy(small), make_trainer)


@pytest.mark.parametrize("act_scale", [True, False])
def test_a_policy_for_continuous_actions_trains(make_trainer: Any, act_scale: bool) -> None:
    config: dict[str, Any] = {"random_collect_size": 16, "learn": {"batch_size": 8, "update_per_collect": 1}}
    policy = DDPGPolicy(config)
    train(translate("pendulum", act_scale=act_scale), policy, make_trainer)
    bound = 2.0 if act_scale else 1.0
    assert policy.action_bounds.high.tolist() == [bound]


def test_an_env_of_a_user_trains_in_processes(make_trainer: Any, small: dict[str, Any], walk: str) -> None:
    main = {"collector_env_num": 2, "evaluator_env_num": 1, "length": 4}
    create = {"type": walk, "import_names": ["tests.toys.base_envs"]}
    train(translate_envs(main, create, {"type": "subprocess"}), DQNPolicy(small), make_trainer)
