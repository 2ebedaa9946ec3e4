"""The hyper-parameters of the guide for users of Stable-Baselines3 are the defaults of its version 2.9.2."""

from __future__ import annotations

from typing import Any

import pytest

from lightning_ding.policy import PPOPolicy
from lightning_ding.policy.base.config import PolicyConfig
from tests.docs.pages import code_of
from tests.test_docs import DOCS

PAGE = (DOCS / "guides" / "from_sb3.md").read_text()
N_STEPS, TRAIN_FREQ, TARGET_INTERVAL = {"ppo": 2048, "a2c": 5}, {"dqn": 4, "sac": 1}, 10_000
DEFAULTS: dict[str, dict[str, Any]] = {
    "ppo": {
        "learn.learning_rate": 3e-4,
        "learn.batch_size": 64,
        "learn.epoch_per_collect": 10,
        "discount_factor": 0.99,
        "collect.gae_lambda": 0.95,
        "collect.n_sample": N_STEPS["ppo"],
        "learn.clip_ratio": 0.2,
        "learn.value_clip": None,
        "learn.adv_norm": True,
        "learn.value_norm": False,
        "learn.entropy_weight": 0.0,
        "learn.value_weight": 2 * 0.5,  # of half the squared error
        "learn.grad_clip_norm": 0.5,
        "learn.target_kl": None,
        "learn.optimizer.eps": 1e-5,
        "learn.lr_scheduler.type": "constant",
        "recompute_adv": False,
        "model.encoder_hidden_size_list": (64, 64),
        "model.activation": "tanh",
        "model.share_encoder": False,
    },
    "a2c": {
        "learn.learning_rate": 7e-4,
        "learn.batch_size": None,
        "discount_factor": 0.99,
        "collect.gae_lambda": 1.0,
        "collect.n_sample": N_STEPS["a2c"],
        "learn.adv_norm": False,
        "learn.entropy_weight": 0.0,
        "learn.value_weight": 0.5,
        "learn.grad_clip_norm": 0.5,
        "learn.optimizer.type": "rmsprop",
        "learn.optimizer.eps": 1e-5,
        "learn.lr_scheduler.type": "constant",
        "model.encoder_hidden_size_list": (64, 64),
        "model.activation": "tanh",
        "model.share_encoder": False,
    },
    "dqn": {
        "nstep": 1,
        "learn.learning_rate": 1e-4,
        "learn.batch_size": 32,
        "discount_factor": 0.99,
        "random_collect_size": 100,
        "collect.n_sample": TRAIN_FREQ["dqn"],
        "learn.update_per_collect": 1,
        "learn.target_update_freq": TARGET_INTERVAL // TRAIN_FREQ["dqn"],
        "learn.grad_clip_norm": 10,
        "learn.double_q": False,
        "learn.loss": "huber",
        "other.replay_buffer.replay_buffer_size": 1_000_000,
        "other.eps.start": 1.0,
        "other.eps.end": 0.05,
        "other.eps.decay": None,  # a tenth of the run
        "model.encoder_hidden_size_list": (64, 64),
        "model.dueling": False,
    },
    "sac": {
        "nstep": 1,
        "learn.learning_rate_q": 3e-4,
        "learn.learning_rate_policy": 3e-4,
        "learn.learning_rate_alpha": 3e-4,
        "learn.batch_size": 256,
        "learn.target_theta": 0.005,
        "discount_factor": 0.99,
        "random_collect_size": 100,
        "collect.n_sample": TRAIN_FREQ["sac"],
        "learn.update_per_collect": 1,
        "learn.alpha": 1.0,
        "learn.auto_alpha": True,
        "learn.target_entropy": None,  # minus the number of dimensions
        "learn.grad_clip_norm": None,
        "other.replay_buffer.replay_buffer_size": 1_000_000,
        "model.actor_head_hidden_size": 256,
        "model.critic_head_hidden_size": 256,
        "model.last_layer_init": None,
    },
}


@pytest.fixture(scope="module")
def policies() -> dict[str, Any]:
    """Return the policies that the guide makes."""
    (code,) = (one for one in code_of("python", PAGE) if "A2CPolicy(" in one)
    names: dict[str, Any] = {"PPOPolicy": PPOPolicy}
    exec(compile(code, "from_sb3.md", "exec"), names)
    return names


def value_at(config: PolicyConfig, path: str) -> Any:
    value: Any = config
    for name in path.split("."):
        value = getattr(value, name)
    return value


@pytest.mark.parametrize("name", DEFAULTS)
def test_policy_of_the_guide_has_the_defaults_of_stable_baselines3(name: str, policies: dict[str, Any]) -> None:
    found = {path: value_at(policies[name].config, path) for path in DEFAULTS[name]}
    assert found == DEFAULTS[name]
