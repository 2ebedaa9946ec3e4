"""Each option of the Decision Transformer changes a number, or is refused: a walk over every field of its config."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from lightning_ding.config import deep_merge
from lightning_ding.datamodules import OfflineDataModule
from lightning_ding.policy import DTPolicy
from tests.algorithms.sequences import to_sub_sequences
from tests.algorithms.table import WITHOUT_COLLECTING, plain
from tests.algorithms.test_options import leaves, nest
from tests.conftest import MakeTrainer
from tests.toys.datasets import counting_steps

Flat = dict[str, Any]

SHAPES: Flat = {"model": {"obs_shape": 3, "action_shape": 2, "action_space": "discrete"}}
TORQUES: Flat = {"model.action_space": "continuous", "model.action_shape": 1}
RISING: Flat = {"learn.lr_scheduler.type": "piecewise", "learn.lr_scheduler.points": [[0.0, 0.5], [1.0, 1.0]]}
FALLING: Flat = {"learn.lr_scheduler.type": "linear"}


@dataclass(frozen=True)
class Option:
    """A value other than the default, and options that are set in both configs."""

    value: Any
    given: Flat = field(default_factory=dict)


IN_UPDATES_OR_ACTIONS = {
    "context_len": Option(3),
    "rtg_scale": Option(3.0),
    "rtg_target": Option(2.0),
    "max_eval_ep_len": Option(2),
    "model.encoder": Option("doubling_test_encoder"),
    "model.encoder_hidden_size_list": Option([4]),
    "model.encoder_kwargs": Option({"activation": "silu"}),
    "model.activation": Option("tanh"),
    "model.layer_norm": Option(True),
    "model.action_low": Option([-3.0], TORQUES | {"model.action_high": [3.0], "model.action_low": [-1.0]}),
    "model.action_high": Option([3.0], TORQUES | {"model.action_low": [-3.0], "model.action_high": [1.0]}),
    "model.action_integer": Option(True, TORQUES | {"model.action_low": [-3.0], "model.action_high": [3.0]}),
    "model.action_start": Option(4),
    "model.n_blocks": Option(2),
    "model.embed_dim": Option(16),
    "model.n_heads": Option(2),
    "model.dropout_p": Option(0.5),
    "learn.learning_rate": Option(0.01),
    "learn.optimizer.type": Option("adam", {"learn.optimizer.weight_decay": 0.5}),
    "learn.optimizer.eps": Option(0.1),
    "learn.optimizer.weight_decay": Option(0.5),
    "learn.optimizer.betas": Option([0.5, 0.9]),
    "learn.optimizer.momentum": Option(0.9, {"learn.optimizer.type": "sgd"}),
    "learn.lr_scheduler.type": Option("linear"),
    "learn.lr_scheduler.unit": Option("env_step", FALLING | {"learn.lr_scheduler.decay": 0.9}),
    "learn.lr_scheduler.end": Option(0.5, FALLING),
    "learn.lr_scheduler.decay": Option(0.6, FALLING),
    "learn.lr_scheduler.points": Option([[0.0, 0.5], [1.0, 0.0]], RISING),
    "learn.grad_clip_norm": Option(0.001, {"learn.optimizer.type": "sgd"}),
    "learn.grad_clip_value": Option(0.001, {"learn.optimizer.type": "sgd", "learn.grad_clip_norm": None}),
}
IN_A_RUN = {"learn.update_per_collect": 3, "learn.batch_size": 9}
REFUSED = {"model.obs_shape": 7, "model.action_shape": 7, "model.action_space": "continuous"}  # by the env below
REFUSED["model.dict_encoder"] = "separate"


def config_of(flat: Flat) -> Flat:
    base = deep_merge(WITHOUT_COLLECTING["dt"].config, {"learn": {"learning_rate": 1e-3}})
    return deep_merge(base, nest(flat))


@cache
def batch_of(length: int, is_continuous: bool) -> Flat:
    """Return minibatches of sub-sequences of T steps, with actions of one of two kinds."""
    rng = np.random.default_rng(0)
    action: Any = torch.from_numpy(rng.uniform(-1, 1, (8, 1))).float() if is_continuous else torch.arange(8) % 2
    batch = {"obs": torch.from_numpy(rng.normal(size=(8, 3))).float(), "reward": torch.arange(8.0), "action": action}
    policy = DTPolicy(deep_merge(SHAPES, {"context_len": length}))
    return to_sub_sequences(policy, batch)


def updates_and_actions(flat: Flat) -> Any:
    """Return the weights after four updates, and the outputs and actions of four steps of two envs."""
    torch.manual_seed(0)
    policy: Any = DTPolicy(deep_merge(SHAPES, config_of(flat)))
    policy.progress.env_step, policy.progress.budget = 5000, 20_000
    for _ in range(4):
        policy.learn_mode.forward(dict(batch_of(policy.config.context_len, "model.action_space" in flat)))
    logits: list[torch.Tensor] = []
    compute = policy._logits

    def noting(*args: Any, **kwargs: Any) -> torch.Tensor:
        logits.append(compute(*args, **kwargs))
        return logits[-1]

    policy._logits = noting
    actions = [
        policy.eval_mode.forward(torch.full((2, 3), 0.1 * step), reward=[1.0, 2.0])["action"] for step in range(4)
    ]
    return plain([[logit[:, :3] for logit in logits], actions])


def test_the_walk_covers_every_field_and_knows_none_that_is_gone() -> None:
    fields = {path for path, _ in leaves(DTPolicy.config_class())}
    assert fields == {*IN_UPDATES_OR_ACTIONS, *IN_A_RUN, *REFUSED}


@pytest.mark.parametrize("path", IN_UPDATES_OR_ACTIONS)
def test_an_option_changes_updates_or_actions(path: str) -> None:
    option = IN_UPDATES_OR_ACTIONS[path]
    assert updates_and_actions({**option.given, path: option.value}) != updates_and_actions(option.given)


def test_equal_options_give_equal_numbers() -> None:
    assert updates_and_actions({}) == updates_and_actions({})


@pytest.mark.parametrize("path", IN_A_RUN)
def test_an_option_changes_a_run(path: str, make_trainer: MakeTrainer) -> None:
    def weights(flat: Flat) -> Any:
        torch.manual_seed(0)
        policy = DTPolicy(config_of(flat))
        updates: list[int] = []
        learn = policy._forward_learn
        policy._forward_learn = lambda batch: updates.append(policy.progress.train_iter) or learn(batch)  # type: ignore[method-assign, func-returns-value]
        data = OfflineDataModule(counting_steps((5, 2, 7)), max_train_iter=4)
        make_trainer().fit(policy, data)
        return [updates, policy.cur_lr(), plain(policy.state_dict())]

    assert weights({path: IN_A_RUN[path]}) != weights({})


@pytest.mark.parametrize("path", REFUSED)
def test_a_value_that_does_not_fit_the_env_is_refused(path: str) -> None:
    env = gym.make("CartPole-v1")
    with pytest.raises((ValueError, TypeError), match=path.rpartition(".")[2]):
        DTPolicy(nest({path: REFUSED[path]})).build(env.observation_space, env.action_space)
    env.close()
