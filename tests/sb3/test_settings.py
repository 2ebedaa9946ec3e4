"""Hyper-parameters of Stable-Baselines3 and entries of its zoo."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from lightning_ding.config import resolve
from lightning_ding.envs.wrapper_names import wrap_by_name
from lightning_ding.registry import POLICY_REGISTRY
from lightning_ding.sb3.settings import DEFAULTS, translate
from lightning_ding.sb3.zoo import POLICIES, find_entry, literal, read_zoo, translate_entry


def config(policy: str, given: dict[str, Any]) -> Any:
    """Return the config for hyper-parameters, all of which have an equivalent."""
    settings = translate(policy, given)
    assert settings.without == {}
    return resolve(POLICY_REGISTRY.get(policy).config_class, settings.policy)


def values(cfg: Any, *paths: str) -> list[Any]:
    found = []
    for path in paths:
        value = cfg
        for name in path.split("."):
            value = getattr(value, name)
        found.append(value)
    return found


# ---------------------------------------------------------------------- hyper-parameters


@pytest.mark.parametrize("policy", DEFAULTS)
def test_defaults_of_every_algorithm_are_accepted(policy: str) -> None:
    cfg = config(policy, {})
    assert cfg.discount_factor == 0.99


def test_rollouts_count_the_steps_of_all_envs() -> None:
    cfg = config("ppo", {"n_envs": 4, "n_steps": 32, "clip_range": "lin_0.3", "vf_coef": 0.4, "target_kl": 0.02})
    assert values(cfg, "collect.n_sample", "learn.clip_ratio", "learn.clip_ratio_scheduler.type") == [
        128,
        0.3,
        "linear",
    ]
    assert values(cfg, "learn.value_weight", "learn.target_kl", "learn.value_norm") == [0.8, pytest.approx(0.03), False]
    a2c = config("a2c", {"learning_rate": "lin_7e-4", "use_rms_prop": False, "n_envs": 2})
    assert values(a2c, "learn.lr_scheduler.type", "learn.optimizer.type", "collect.n_sample") == ["linear", "adam", 10]


@pytest.mark.parametrize(
    ("given", "n_sample", "updates", "copies"),
    [
        ({}, 4, 1, 2500),
        ({"train_freq": 256, "gradient_steps": 128, "target_update_interval": 10}, 256, 128, 128),
        ({"train_freq": 4, "gradient_steps": -1, "target_update_interval": 250}, 4, 4, 250),
        ({"train_freq": 2, "n_envs": 4, "target_update_interval": 1000}, 8, 1, 125),
        ({"train_freq": [8, "step"]}, 8, 1, 10_000),
    ],
)
def test_updates_and_copies_are_as_many_for_each_env_step(
    given: dict[str, Any], n_sample: int, updates: int, copies: int
) -> None:
    cfg = config("dqn", given)
    names = ("collect.n_sample", "learn.update_per_collect", "learn.target_update_freq")
    assert values(cfg, *names) == [n_sample, updates, copies]


def test_exploration_falls_for_a_share_of_the_run() -> None:
    cfg = config("qrdqn", {"exploration_fraction": 0.2, "exploration_final_eps": 0.07, "batch_size": 64})
    assert values(cfg, "other.eps.end", "other.eps.decay", "other.eps.unit") == [0.07, 0.2, "budget"]
    assert cfg.learn.optimizer.eps == 0.01 / 64


@pytest.mark.parametrize(
    ("coefficient", "learned", "first"), [("auto", True, 1.0), ("auto_0.1", True, 0.1), (0.005, False, 0.005)]
)
def test_temperature_is_learned_or_fixed(coefficient: Any, learned: bool, first: float) -> None:
    cfg = config("sac", {"ent_coef": coefficient, "learning_rate": 1e-3})
    assert values(cfg, "learn.auto_alpha", "learn.alpha") == [learned, first]
    assert cfg.learn.learning_rate_alpha == (1e-3 if learned else 3e-4)


def test_noise_of_actions_and_of_targets() -> None:
    cfg = config("td3", {"noise_type": "ornstein-uhlenbeck", "noise_std": 0.5, "target_noise_clip": 0.3})
    assert values(cfg, "collect.noise_type", "collect.noise_sigma", "learn.noise_range.min") == ["ou", 0.5, -0.3]
    assert config("ddpg", {}).collect.noise_sigma == 0.0
    assert config("ddpg", {}).learn.noise is False
    sde = config("sac", {"use_sde": True, "sde_sample_freq": 8})
    assert values(sde, "model.use_sde", "collect.sde_sample_freq") == [True, 8]
    assert config("ppo", {"use_sde": True, "sde_sample_freq": -1}).collect.sde_sample_freq is None


def test_goals_are_replaced_in_hindsight() -> None:
    kwargs = {"goal_selection_strategy": "final", "n_sampled_goal": 2, "online_sampling": True}
    cfg = config("tqc", {"replay_buffer_class": "HerReplayBuffer", "replay_buffer_kwargs": kwargs})
    found = values(cfg.other.replay_buffer, "type", "her_strategy", "her_replay_k")
    assert found == ["her", "final", 2]


@pytest.mark.parametrize(
    ("policy", "given", "key"),
    [
        ("sac", {"train_freq": [1, "episode"]}, "train_freq"),
        ("sac", {"target_update_interval": 2}, "target_update_interval"),
        ("sac", {"use_sde_at_warmup": True}, "use_sde_at_warmup"),
        ("dqn", {"tau": 0.1}, "tau"),
        ("dqn", {"optimize_memory_usage": True}, "optimize_memory_usage"),
        ("dqn", {"replay_buffer_class": "own.Buffer"}, "replay_buffer_class"),
        ("td3", {"replay_buffer_kwargs": {"size": 1}}, "replay_buffer_kwargs"),
        ("crossq", {"use_sde": True}, "use_sde"),
        ("ppo", {"clip_range_vf": "lin_0.2"}, "clip_range_vf"),
        ("ppo", {"colour": "red"}, "colour"),
    ],
)
def test_key_without_an_equivalent_is_named(policy: str, given: dict[str, Any], key: str) -> None:
    assert list(translate(policy, given).without) == [key]


def test_value_that_changes_nothing_is_not_named() -> None:
    given = {"optimize_memory_usage": False, "use_sde": False, "sde_sample_freq": -1, "replay_buffer_kwargs": {}}
    assert translate("td3", given).without == {}


@pytest.mark.parametrize("value", ["cos_0.1", "lin", "fast"])
def test_unknown_schedule_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match="a schedule must be a number, or lin_ and a number, got"):
        translate("ppo", {"learning_rate": value})


# ---------------------------------------------------------------------- the zoo


def entry(name: str, env_id: str = "Pendulum-v1", **given: Any) -> Any:
    run = translate_entry(name, env_id, given)
    resolve(POLICY_REGISTRY.get(run.policy).config_class, run.cfg)
    return run


def test_layers_of_the_zoo_are_those_of_the_config() -> None:
    text = "dict(log_std_init=-2, ortho_init=False, activation_fn=nn.GELU, net_arch=dict(pi=[32], vf=[64, 8]))"
    ppo = entry("ppo", policy_kwargs=text, n_envs=2, n_timesteps=1e5)
    assert (ppo.model["actor_hidden_size_list"], ppo.model["critic_hidden_size_list"]) == ([32], [64, 8])
    assert (ppo.model["activation"], ppo.model["log_std_init"], ppo.learn) == ("gelu", -2, {"ppo_param_init": False})
    assert (ppo.data["max_env_step"], ppo.data["num_envs"], ppo.without) == (100_000, 2, {})
    td3 = entry("td3", policy_kwargs="dict(n_critics=1)")
    assert (td3.model["actor_hidden_size_list"], td3.model["twin_critic"]) == ([400, 300], False)
    lstm = entry("ppo_lstm", policy_kwargs="dict(lstm_hidden_size=16, enable_critic_lstm=False, shared_lstm=True)")
    assert (lstm.model["core"]["hidden_size"], lstm.model["share_encoder"], lstm.without) == (16, True, {})
    qrdqn = entry("qrdqn", policy="CnnPolicy", policy_kwargs="dict(net_arch=[256, 256])")
    assert (qrdqn.model["head_hidden_size"], qrdqn.model["head_layer_num"]) == (256, 2)
    crossq = entry("crossq")
    assert crossq.model["critic_hidden_size_list"] == [1024, 1024]


def test_envs_of_the_zoo_are_those_of_the_datamodule() -> None:
    run = entry("ppo", normalize="dict(norm_obs=False, norm_reward=True)", frame_stack=3, env_kwargs="dict(g=9.8)")
    stack = {"frame_stack": {"stack_size": 3, "padding_type": "zero"}}
    assert run.data["wrappers"] == [stack, "flatten"]
    assert (run.data["norm_obs"], run.data["norm_reward"], run.data["env_kwargs"]) == (False, True, {"g": 9.8})
    atari = entry(
        "dqn",
        "ALE/Pong-v5",
        policy="CnnPolicy",
        frame_stack=4,
        env_wrapper=[{"stable_baselines3.common.atari_wrappers.AtariWrapper": {"terminal_on_life_loss": False}}],
    )
    sizes = {"noop_max": 30, "frame_skip": 4, "screen_size": 84}
    stack["frame_stack"]["stack_size"] = 4
    assert atari.data["wrappers"] == [{"atari_preprocessing": sizes}, "fire_at_start", "sign_reward", stack]
    assert (atari.data["env_kwargs"], atari.data["import_names"]) == ({"frameskip": 1}, ["ale_py"])
    other = entry("ppo", env_wrapper="gym_minigrid.wrappers.FlatObsWrapper")
    assert other.data["wrappers"] == ["minigrid.wrappers.FlatObsWrapper"]
    assert "has to be installed" in other.notes[0]


@pytest.mark.parametrize(
    ("name", "given", "keys"),
    [
        ("ppo", {"callback": ["own.Callback"], "vec_env_wrapper": "own.Wrapper"}, ["vec_env_wrapper", "callback"]),
        ("ppo", {"policy_kwargs": "dict(colour=1, activation_fn=nn.Softplus)"}, 2),
        ("a2c", {"policy_kwargs": "dict(optimizer_class=RMSpropTFLike, optimizer_kwargs=dict(alpha=0.9))"}, 2),
        ("ppo", {"normalize": "dict(clip_obs=5)"}, ["normalize.clip_obs"]),
        ("td3", {"policy_kwargs": "dict(n_critics=3)"}, ["policy_kwargs.n_critics"]),
        ("ppo_lstm", {"policy_kwargs": "dict(enable_critic_lstm=False)"}, ["policy_kwargs.enable_critic_lstm"]),
        (
            "crossq",
            {"use_sde": True, "policy_kwargs": "dict(log_std_init=-3)"},
            ["policy_kwargs.log_std_init", "use_sde"],
        ),
        ("dqn", {"policy": "own.Policy"}, ["policy"]),
        ("dqn", {"policy": "CnnPolicy", "policy_kwargs": "dict(net_arch=[9, 8])"}, ["policy_kwargs.net_arch"]),
    ],
)
def test_key_of_the_zoo_without_an_equivalent_is_named(name: str, given: dict[str, Any], keys: Any) -> None:
    found = list(entry(name, **given).without)
    assert len(found) == keys if isinstance(keys, int) else found == keys


def test_entry_is_the_one_that_the_zoo_chooses(tmp_path: Path) -> None:
    file = tmp_path / "ppo.yml"
    file.write_text("default: {n_steps: 1}\natari: {n_steps: 2}\nPendulum-v1: &a {n_steps: 3}\nOther-v1:\n  <<: *a\n")
    entries = read_zoo(file)
    chosen = {
        env: find_entry(entries, env)["n_steps"] for env in ("Pendulum-v1", "Other-v1", "PongNoFrameskip-v4", "X")
    }
    assert list(chosen.values()) == [3, 3, 2, 1]
    with pytest.raises(ValueError, match="has no entry for 'Pendulun-v1'; did you mean 'Pendulum-v1'"):
        find_entry({"Pendulum-v1": {}}, "Pendulun-v1")


@pytest.mark.parametrize("name", ["ars", "trpo", "her", "sarsa"])
def test_algorithm_that_there_is_not_here_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"the name of the zoo's file must be one of a2c.*got '{name}'"):
        translate_entry(name, "Pendulum-v1", {})


@pytest.mark.parametrize(
    "text", ["dict(a=exit())", "[x for x in y]", "dict(**a)", "f'{a}'", "1 if a else 2", "lambda: 1", "("]
)
def test_text_that_is_no_literal_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no literal of Python"):
        literal(text)


@pytest.mark.parametrize("name", POLICIES)
def test_every_file_of_the_zoo_has_a_policy(name: str) -> None:
    assert entry(name).policy in POLICY_REGISTRY


def test_stacked_vectors_are_those_of_vec_frame_stack() -> None:
    vec_env = pytest.importorskip("stable_baselines3.common.vec_env")
    there = vec_env.VecFrameStack(vec_env.DummyVecEnv([lambda: gym.make("CartPole-v1")]), 3)
    here = gym.make("CartPole-v1")
    for name, arguments in (("frame_stack", {"stack_size": 3, "padding_type": "zero"}), ("flatten", {})):
        here = wrap_by_name(here, name, arguments)
    there.seed(0)
    obs, starts = there.reset(), 0
    assert (here.reset(seed=0)[0] == obs[0]).all()
    for step in range(40):
        (row,), _, (ended,), (info,) = there.step([step % 2])
        seen, _, terminated, truncated, _ = here.step(step % 2)
        assert (seen == (info["terminal_observation"] if ended else row)).all()
        if terminated or truncated:
            starts += 1
            assert (row[:8] == 0).all()
            here.reset()
            break
    assert starts == 1
