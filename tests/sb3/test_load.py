"""Models of Stable-Baselines3 act and learn here as there."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from lightning import Trainer

from lightning_ding.datamodules import ReplayDataModule, RolloutDataModule
from lightning_ding.policy import DDPGPolicy, load_policy, load_sb3_policy
from tests.sb3.make_models import FOLDER, SPACES, STEPS, VECTOR, WIDE, Spaces, makers, observations, write_zip
from tests.sb3.stored import expected, inputs, make_zip, models, weights_of

STATISTICS = FOLDER / "vecnormalize.pkl"


def act(policy: Any, obs: Any) -> Any:
    """Return greedy actions; with memory, of rows that follow each other."""
    actor = policy.actor()
    if not actor.has_memory:
        return actor(obs)
    return np.stack([actor(row) for row in obs.reshape(STEPS, -1, *obs.shape[1:])])


def assert_same(name: str, actions: Any, there: Any) -> None:
    if SPACES[name][1] == WIDE:
        np.testing.assert_allclose(actions, there, rtol=0, atol=1e-4)  # processors sum in different orders
    else:
        assert (actions == there).all()


# ---------------------------------------------------------------------- acting


@pytest.mark.parametrize("name", SPACES)
def test_loaded_model_takes_the_actions_of_the_original(name: str, tmp_path: Path) -> None:
    actions, there = act(load_policy(make_zip(name, tmp_path)), inputs(name)), expected(name)
    assert actions.shape[:1] in ((1000,), (STEPS,))
    assert len(np.unique(there, axis=0 if there.ndim > 1 and len(there) != STEPS else None)) > 1
    assert_same(name, actions, there)


@pytest.mark.parametrize("name", SPACES)
def test_model_that_the_package_saved_acts_as_there(name: str, tmp_path: Path) -> None:
    pytest.importorskip("sb3_contrib")
    from tests.sb3.make_models import actions_of

    torch.manual_seed(3)
    model = makers()[name](Spaces(name))
    model.save(tmp_path / "model.zip")
    assert_same(name, act(load_policy(tmp_path / "model.zip"), inputs(name)), actions_of(model, name))


@pytest.mark.parametrize("name", ["ppo_box", "ppo_seeing", "maskable_dict", "recurrent", "qrdqn", "sac_dict", "crossq"])
def test_exported_graph_of_a_model_takes_the_actions_of_the_original(name: str, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    policy, obs = load_policy(make_zip(name, tmp_path)), inputs(name)
    graph = onnxruntime.InferenceSession(policy.export(tmp_path / "policy.onnx"))
    feed = {f"obs/{key}": value for key, value in obs.items()} if isinstance(obs, dict) else {"obs": obs}
    there = expected(name)
    if name == "recurrent":
        feed = {"obs": obs[: there.shape[1]], "state": np.zeros((there.shape[1], 20), np.float32)}
        there = there[0]
    assert_same(name, graph.run(["action"], feed)[0], there)


def test_statistics_of_vecnormalize_normalise_as_there(tmp_path: Path) -> None:
    policy = load_sb3_policy(make_zip("ppo_box", tmp_path), STATISTICS)
    assert_same("ppo_box", act(policy, inputs("ppo_box")), expected("normalised"))
    rewards = policy.normaliser.normalise_batch({"reward": torch.tensor([1.5])})["reward"]
    assert rewards.item() == pytest.approx(1.5 / np.sqrt(9.0 + 1e-3), rel=1e-6)


def test_model_of_a_normalised_env_is_warned_of_without_statistics(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    seen = {"_last_original_obs": {":type:": "<class 'numpy.ndarray'>", ":serialized:": ""}}
    file = make_zip("ppo_box", tmp_path, **seen)
    load_policy(file)
    assert "was trained with a VecNormalize, whose statistics it does not hold: pass the file" in caplog.text
    caplog.clear()
    load_sb3_policy(file, STATISTICS)
    assert "VecNormalize" not in caplog.text


# ---------------------------------------------------------------------- learning


def test_targets_and_temperature_are_those_of_the_file(tmp_path: Path) -> None:
    policy: Any = load_policy(make_zip("dqn", tmp_path))
    there = weights_of("dqn")
    online, target = (part.state_dict()["head.layers.0.weight"] for part in (policy.model, policy.target_model))
    assert torch.equal(online, there["q_net.q_net.4.weight"])
    assert torch.equal(target, there["q_net_target.q_net.4.weight"])
    assert not torch.equal(online, target)
    soft: Any = load_policy(make_zip("sac", tmp_path))
    there = weights_of("sac")
    assert soft.alpha.item() == pytest.approx(np.exp(-1.25))
    critics = soft.target_model.critic.head.weights[1]
    assert torch.equal(critics[1], there["critic_target.qf1.2.weight"].T)
    fixed: Any = load_policy(make_zip("sac_dict", tmp_path))
    assert fixed.alpha.item() == pytest.approx(0.1)


def test_deviation_of_actions_is_that_of_the_file(tmp_path: Path) -> None:
    policy: Any = load_policy(make_zip("ppo_box", tmp_path))
    sigma = policy.model.compute_actor(torch.zeros(1, 3))["logit"]["sigma"][0]
    half_range = torch.tensor([2.0, 5.0])
    torch.testing.assert_close(sigma * half_range, weights_of("ppo_box")["log_std"].exp())


@pytest.mark.parametrize(("name", "half_range"), [("ppo_sde", [2.0, 5.0]), ("sac_sde", [1.0, 1.0])])
def test_state_dependent_noise_is_that_of_the_file(name: str, half_range: list[float], tmp_path: Path) -> None:
    policy: Any = load_policy(make_zip(name, tmp_path))
    head = policy.model.actor if name == "ppo_sde" else policy.model.actor.head
    there = weights_of(name)["log_std" if name == "ppo_sde" else "actor.log_std"]
    std = torch.where(there > 0, there.clamp(min=0).log1p() + 1, there.exp())  # expln
    torch.testing.assert_close(head.sde.std() * torch.tensor(half_range), std)


def test_values_are_those_of_the_file(tmp_path: Path) -> None:
    policy: Any = load_policy(make_zip("ppo_box", tmp_path))
    there, obs = weights_of("ppo_box"), torch.from_numpy(observations(VECTOR, 5))
    hidden = torch.relu(obs @ there["mlp_extractor.value_net.0.weight"].T + there["mlp_extractor.value_net.0.bias"])
    value = hidden @ there["value_net.weight"].T + there["value_net.bias"]
    torch.testing.assert_close(policy.model.compute_critic(obs)["value"], value.squeeze(1))
    critics: Any = load_policy(make_zip("td3", tmp_path))
    there, action = weights_of("td3"), torch.zeros(5, 2)
    x = torch.cat([obs, action], 1)
    for layer in (0, 2, 4):
        x = x @ there[f"critic.qf1.{layer}.weight"].T + there[f"critic.qf1.{layer}.bias"]
        x = x if layer == 4 else x.relu()
    torch.testing.assert_close(critics.model.compute_critic(obs, action)["q_value"][1], x.squeeze(1))


class Toy(Spaces):
    """An env with the spaces of a model, for short runs."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super(gym.Env, self).__init__()
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.observation_space.sample(), 1.0, False, bool(np.random.default_rng().random() < 0.1), {}


@pytest.mark.parametrize("name", ["ppo_box", "recurrent", "dqn", "sac", "crossq"])
def test_training_continues_from_the_weights_of_the_file(
    name: str, tmp_path: Path, make_trainer: Callable[..., Trainer]
) -> None:
    cfg = {"collect": {"n_sample": 16}, "learn": {"batch_size": 8}}
    policy = load_sb3_policy(make_zip(name, tmp_path), cfg=cfg if policy_is_on(name) else {**cfg, **REPLAY})
    before = {key: tensor.clone() for key, tensor in policy.model.state_dict().items()}
    kind = RolloutDataModule if policy.on_policy else ReplayDataModule
    data = kind(Toy, env_kwargs={"name": name}, num_envs=2, max_env_step=32)
    make_trainer(limit_val_batches=0).fit(policy, data)
    assert policy.progress.train_iter > 0
    changes = {key: (tensor - before[key]).abs().max().item() for key, tensor in policy.model.state_dict().items()}
    assert 0 < max(value for key, value in changes.items() if "renorms" not in key) < 0.3


REPLAY = {"random_collect_size": 8}


def policy_is_on(name: str) -> bool:
    return name.startswith(("ppo", "recurrent"))


# ---------------------------------------------------------------------- the file


def test_hyper_parameters_of_the_file_become_the_config(tmp_path: Path) -> None:
    ppo: Any = load_policy(make_zip("ppo_box", tmp_path)).config
    assert (ppo.learn.learning_rate, ppo.learn.clip_ratio, ppo.learn.batch_size) == (2e-4, 0.3, 4)
    assert (ppo.collect.n_sample, ppo.model.activation, ppo.learn.value_weight) == (8, "relu", 1.0)
    td3: Any = load_policy(make_zip("td3", tmp_path)).config
    assert (td3.collect.noise_sigma, td3.learn.actor_update_freq, td3.learn.noise_sigma) == (0.25, 2, 0.2)
    assert td3.other.replay_buffer.replay_buffer_size == 10
    dqn: Any = load_policy(make_zip("dqn", tmp_path, exploration_rate=0.4)).config
    assert (dqn.other.eps.start, dqn.other.eps.end, dqn.learn.double_q) == (0.4, 0.05, False)


def test_hyper_parameters_that_only_a_pickle_holds_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rate = {":type:": "<class 'function'>", ":serialized:": "gAWV"}
    with caplog.at_level(logging.WARNING):
        policy: Any = load_sb3_policy(make_zip("td3", tmp_path, learning_rate=rate), cfg={"learn": {"batch_size": 9}})
    assert "train_freq, learning_rate: only a pickle in the file holds it" in caplog.text.replace(
        "learning_rate, train_freq", "train_freq, learning_rate"
    )
    assert (policy.config.learn.learning_rate_actor, policy.config.learn.batch_size) == (1e-3, 9)


def test_linear_schedule_of_the_file_is_one_here(tmp_path: Path) -> None:
    text = {":type:": "FloatSchedule", "value_schedule": "LinearSchedule(start=0.001, end=0.0, end_fraction=1.0)"}
    policy: Any = load_policy(make_zip("ppo_box", tmp_path, learning_rate=text))
    assert (policy.config.learn.learning_rate, policy.config.learn.lr_scheduler.type) == (1e-3, "linear")


def test_spaces_may_come_from_the_env(tmp_path: Path) -> None:
    file = make_zip("ppo_box", tmp_path, observation_space={":type:": "<class 'own.Space'>"})
    with pytest.raises(ValueError, match=r"pass spaces=\(env\.observation_space, env\.action_space\), or --env_id"):
        load_policy(file)
    policy = load_sb3_policy(file, spaces=SPACES["ppo_box"])
    assert_same("ppo_box", act(policy, inputs("ppo_box")), expected("ppo_box"))


def test_algorithm_may_be_named(tmp_path: Path) -> None:
    own = {"__module__": "own.policies"}
    with pytest.raises(ValueError, match=r"must be a model of PPO, .*; name the algorithm .*got 'own.policies'"):
        load_policy(make_zip("ddpg", tmp_path, policy_class=own))
    assert isinstance(load_sb3_policy(tmp_path / "ddpg.zip", algorithm="ddpg"), DDPGPolicy)
    assert isinstance(load_policy(tmp_path / "ddpg.zip", DDPGPolicy), DDPGPolicy)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"activation_fn": "<class 'torch.nn.modules.activation.Softplus'>"}, "activation_fn of the model must be one"),
        ({"features_extractor_class": "<class 'own.Extractor'>"}, "features_extractor_class .*register your own"),
        ({"squash_output": True}, r"policy_kwargs\['squash_output'\] of the model must be False"),
        ({"colour": 1}, r"policy_kwargs\['colour'\] of the model must be one of"),
    ],
)
def test_network_that_there_is_not_here_is_refused(arguments: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        load_policy(make_zip("ppo_box", tmp_path, policy_kwargs=arguments))


def test_mistakes_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"statistics of floats .* \(not of single frames of a stack\), got \(3,\)"):
        load_sb3_policy(make_zip("ppo_multi_binary", tmp_path), STATISTICS)
    weights = {**weights_of("dqn"), "q_net.extra.weight": torch.zeros(1)}
    with pytest.raises(ValueError, match="must be layers that a policy of Stable-Baselines3 has by itself, got"):
        load_policy(write_zip(tmp_path / "model.zip", models()["dqn"]["data"], weights, {}))


@pytest.mark.parametrize("kind", ["data", "weights", "both"])
def test_file_that_is_no_model_is_one_error(kind: str, tmp_path: Path) -> None:
    data: Any = [] if kind == "data" else models()["dqn"]["data"]
    weights: Any = {"a": 1} if kind == "weights" else weights_of("dqn")
    file = write_zip(tmp_path / "model.zip", data, weights, {})
    if kind == "both":
        file.write_bytes(file.read_bytes()[:-400])
    with pytest.raises(ValueError, match="path must be a"):
        load_policy(file)


def test_stored_files_are_small() -> None:
    assert sum(file.stat().st_size for file in FOLDER.iterdir() if file.is_file()) < 250_000
    assert json.loads((FOLDER / "models.json").read_text()).keys() == SPACES.keys()
