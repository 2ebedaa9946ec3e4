"""Policies that implement only a part of the interface, and policies that give their device by name."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from lightning_ding.policy import DQNPolicy, Policy
from lightning_ding.policy.base.config import PolicyConfig
from lightning_ding.policy.q_learning import QLearningConfig, QLearningModelConfig, QLearningPolicy
from lightning_ding.worker import BaseLearner

SHAPES = {"obs_shape": 2, "action_shape": 2}


@dataclass(frozen=True)
class Config(PolicyConfig):
    """A network of given shapes."""

    model: QLearningModelConfig = field(default_factory=lambda: QLearningModelConfig(obs_shape=2, action_shape=2))


class Bare(Policy[Config]):
    """Implements nothing."""

    config_class = Config


class Collecting(Bare):
    """Implements what collecting needs."""

    def _forward_collect(self, obs: Any, **kwargs: Any) -> Any:
        return {"action": self.model(obs).argmax(1)}


@pytest.mark.parametrize(
    ("mode", "method"), [("learn", "_forward_learn"), ("collect", "_forward_collect"), ("eval", "_forward_eval")]
)
@pytest.mark.parametrize("form", ["batch", "by env"])
def test_a_mode_that_a_policy_does_not_implement_names_the_method(mode: str, method: str, form: str) -> None:
    policy = Bare(model=nn.Linear(2, 2))
    data: Any = {"obs": torch.zeros(3, 2)} if mode == "learn" else torch.zeros(3, 2)
    if form == "by env":
        data = [data] if mode == "learn" else {0: torch.zeros(2)}
    with pytest.raises(NotImplementedError, match=f"^Bare must implement {method} "):
        getattr(policy, f"{mode}_mode").forward(data)


@pytest.mark.parametrize("fields", [None, ["collect"]])
def test_a_policy_that_only_collects_collects(fields: Any) -> None:
    policy = Collecting(model=nn.Linear(2, 2), enable_field=fields)
    assert policy.collect_mode.forward(torch.zeros(3, 2))["action"].shape == (3,)


def test_mistakes_are_named() -> None:
    with pytest.raises(NotImplementedError, match="Bare must implement _forward_eval"):
        Bare(model=nn.Linear(2, 2))(torch.zeros(3, 2))
    with pytest.raises(NotImplementedError, match="Bare must implement default_model"):
        Bare()
    space = spaces.Box(-1, 1, (2,))
    with pytest.raises(NotImplementedError, match="Bare must implement _shapes_of"):
        Bare(model=nn.Linear(2, 2)).build(space, space)


def test_a_q_learning_policy_without_a_loss_names_the_method() -> None:
    class Lossless(QLearningPolicy[QLearningConfig]):
        config_class = QLearningConfig

    class Logits(nn.Linear):
        def forward(self, obs: torch.Tensor) -> Any:
            return {"logit": super().forward(obs)}

    policy = Lossless(model=Logits(2, 2))
    batch = {"obs": torch.zeros(3, 2), "action": torch.zeros(3, dtype=torch.long), "reward": torch.zeros(3)}
    batch |= {"next_obs": torch.zeros(3, 2), "terminated": torch.zeros(3, dtype=torch.bool)}
    with pytest.raises(NotImplementedError, match="Lossless must implement loss"):
        policy.learn_mode.forward(batch)


class Named(DQNPolicy):
    """Says its device by name."""

    device = "cpu"  # type: ignore[assignment]


def transitions() -> dict[str, Any]:
    ended = torch.zeros(4, dtype=torch.bool)
    one = {"obs": torch.zeros(4, 2), "action": torch.zeros(4, dtype=torch.int64), "reward": torch.zeros(4)}
    return {**one, "next_obs": torch.zeros(4, 2), "terminated": ended, "truncated": ended}


def test_a_policy_whose_device_is_a_string_acts_and_learns() -> None:
    policy = Named({"model": SHAPES})
    assert policy.eval_mode.forward(np.zeros((3, 2), np.float32))["action"].shape == (3,)
    assert policy.collect_mode.get_attribute("device") == torch.device("cpu")
    assert policy.collect_mode.get_attribute("cuda") is False
    assert policy.learn_mode.forward(transitions())["total_loss"].isfinite()


def test_a_learner_takes_a_device_by_name() -> None:
    mode = DQNPolicy({"model": SHAPES}).learn_mode
    named = mode._replace(get_attribute=lambda name: "cpu" if name == "device" else mode.get_attribute(name))
    learner = BaseLearner(policy=named)
    learner.train(transitions())
    assert learner.train_iter == 1


def test_a_config_with_numbers_of_numpy_makes_a_checkpoint_of_builtins(tmp_path: Any) -> None:
    model = {"obs_shape": np.int64(2), "action_shape": np.int64(2), "encoder_hidden_size_list": np.array([8])}
    policy = DQNPolicy({"model": model, "learn": {"learning_rate": np.float64(0.1)}, "priority": np.bool_(False)})
    policy.learn_mode.forward(transitions())
    torch.save({"cfg": dict(policy.hparams), "state": policy.learn_mode.state_dict()}, tmp_path / "state.pt")
    loaded = torch.load(tmp_path / "state.pt", weights_only=True)
    assert loaded["cfg"]["cfg"]["learn"]["learning_rate"] == 0.1
