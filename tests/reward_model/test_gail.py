"""The discriminator of generative adversarial imitation on numbers worked out by hand, and what it learns.

With a logit of log 3 the probability D of the expert is 3/4, so the reward is -log(1 - D) = log 4.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from lightning_ding.callbacks import RunCheckpoint
from lightning_ding.policy import create_policy
from lightning_ding.reward_model import GAILConfig, GAILRewardModel
from tests.reward_model.cases import fit, make as make_run, write_expert

SECTION = {"obs_shape": 1, "action_shape": 2}


def with_logits(logits: dict[float, float]) -> GAILRewardModel:
    """Return a model whose logit is looked up by the observation."""
    model = GAILRewardModel(GAILConfig(data_path="unused"), SECTION, 0.9)

    def logit(obs: Any, action: Tensor) -> Tensor:
        return torch.tensor([logits[value] for value in obs[:, 0].tolist()])

    model.logit = logit  # type: ignore[method-assign]
    return model


def test_reward_is_minus_the_logarithm_of_what_is_left_of_the_probability() -> None:
    model = with_logits({0.0: math.log(3), 1.0: 0.0})
    score = model.score({"obs": torch.tensor([[0.0], [1.0]]), "action": torch.tensor([0, 1])})
    assert_close(score, torch.tensor([math.log(4), math.log(2)]))
    assert_close(model.reward(score, torch.tensor([5.0, 5.0])), score)


def test_loss_is_the_cross_entropy_of_both_sides() -> None:
    model = with_logits({0.0: math.log(3), 1.0: 0.0})
    expert = {"expert_obs": torch.tensor([[0.0]]), "expert_action": torch.tensor([0])}
    loss, report = model.loss({"obs": torch.tensor([[1.0]]), "action": torch.tensor([0]), **expert})
    assert_close(loss, torch.tensor(-math.log(3 / 4) - math.log(1 / 2)))
    assert report["discriminator_accuracy"] == 0.5  # the expert is recognised; a logit of 0 says nothing


def test_discriminator_learns_the_ratio_of_the_two_distributions() -> None:
    """The expert takes action 1 in 3 of 4 steps, the policy in 1 of 4: D is 3/4 there, so the reward is log 4."""
    torch.manual_seed(0)
    model = GAILRewardModel(GAILConfig(data_path="unused", hidden_size_list=[8]), SECTION, 0.9)
    optimizer = torch.optim.Adam(model.parameters(), 0.02)
    obs = torch.zeros(4, 1)
    batch = {"obs": obs, "action": torch.tensor([1, 0, 0, 0])}
    batch |= {"expert_obs": obs, "expert_action": torch.tensor([1, 1, 1, 0])}
    for _ in range(300):
        optimizer.zero_grad()
        model.loss(batch)[0].backward()
        optimizer.step()
    assert_close(model.score(batch)[:2], torch.tensor([4.0, 4 / 3]).log(), rtol=1e-2, atol=1e-2)


def make(name: str, path: str, **section: Any) -> Any:
    torch.manual_seed(0)
    model: dict[str, Any] = {"obs_shape": 4, "action_shape": 2}
    if name == "sac":
        model = {"obs_shape": 3, "action_shape": 1, "action_low": [-2.0], "action_high": [2.0]}
    policy = create_policy(
        {"type": name, "model": model, "reward_model": {"type": "gail", "data_path": path, **section}}
    )
    policy.seed(0)
    policy.learner.rewards.begin()
    return policy


def test_drawn_steps_of_the_expert_are_those_of_the_data_set(tmp_path: Path) -> None:
    policy = make("dqn", path := write_expert(tmp_path, False))
    batch = {"reward": torch.zeros(3, 8), "obs": torch.zeros(3, 8, 4), "action": torch.zeros(3, 8)}
    drawn = policy.reward_model.prepare(batch, policy.rng)
    data = np.load(path)
    rows = [np.flatnonzero((data["obs"] == obs).all(1))[0] for obs in drawn["expert_obs"].reshape(-1, 4).numpy()]
    assert drawn["expert_action"].reshape(-1).tolist() == data["action"][rows].tolist()
    assert len(set(rows)) > 10


def test_continuous_actions_of_the_expert_are_in_units_of_the_network(tmp_path: Path) -> None:
    policy = make("sac", write_expert(tmp_path, True))
    own = policy.learner.rewards.in_network_units(torch.tensor([[2.0], [-1.0]]), is_rollout=False)
    assert own.tolist() == [[1.0], [-0.5]]
    drawn = policy.reward_model.prepare({"reward": torch.zeros(1, 200)}, policy.rng)["expert_action"]
    assert 0.9 < drawn.max() <= 1.0


def test_collect_count_is_how_much_of_the_data_set_is_used(tmp_path: Path) -> None:
    path = write_expert(tmp_path, False)
    policy = make("dqn", path, collect_count=3)
    drawn = policy.reward_model.prepare({"reward": torch.zeros(1, 100)}, policy.rng)["expert_obs"]
    assert len(drawn[0].unique(dim=0)) == 3


def test_mistakes_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"reward_model.data_path must be the expert's data set with gail, got ''"):
        make("dqn", "")
    with pytest.raises(ValueError, match=r"must be the path of a file, got .*none\.npz"):
        make("dqn", str(tmp_path / "none.npz"))


def test_data_set_of_another_env_is_refused(tmp_path: Path) -> None:
    path = write_expert(tmp_path, False)
    with np.load(path) as file:
        columns = {name: file[name] for name in file.files}
    np.savez(tmp_path / "other.npz", **{**columns, "action_n": np.asarray(9), "action": columns["action"] + 5})
    with pytest.raises(ValueError, match=r"reward_model.data_path must be a data set of 2 actions"):
        make("dqn", str(tmp_path / "other.npz"))
    below = {"action_n": np.asarray(3), "action_start": np.asarray(-1), "action": columns["action"] - 1}
    np.savez(tmp_path / "other.npz", **{**columns, **below})
    with pytest.raises(ValueError, match=r"reward_model.data_path must be a data set of 2 actions"):
        make("dqn", str(tmp_path / "other.npz"))
    with pytest.raises(ValueError, match=r"reward_model.data_path must be a data set with observations of 4"):
        make("dqn", write_expert(tmp_path, True))


def test_policy_of_a_checkpoint_acts_without_the_data_set(tmp_path: Path) -> None:
    path = Path(write_expert(tmp_path, False))
    policy, datamodule = make_run("ppo_gail", tmp_path)
    fit(policy, datamodule, tmp_path, 1, callbacks=[RunCheckpoint(tmp_path)], enable_checkpointing=True)
    path.unlink()
    loaded = type(policy).load_from_checkpoint(tmp_path / "last.ckpt", weights_only=True)
    obs = torch.zeros(2, 4)
    assert torch.equal(loaded.eval_mode.forward(obs)["action"], policy.eval_mode.forward(obs)["action"])
    with pytest.raises(ValueError, match="must be the path of a file"):
        loaded.learner.rewards.begin()
