"""REINFORCE's loss and its returns against numbers worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lightning_ding import rl
from lightning_ding.policy import PGPolicy

ENTROPY = -(0.25 * math.log(0.25) + 0.75 * math.log(0.75) + math.log(0.5)) / 2
Config = dict[str, Any]


class TableNet(nn.Module):
    """Probabilities (1/4, 3/4) in state 0 and (1/2, 1/2) in state 1."""

    def __init__(self) -> None:
        super().__init__()
        self.logit = nn.Parameter(torch.tensor([[0.25, 0.75], [0.5, 0.5]]).log())

    def forward(self, obs: Tensor) -> Config:
        return {"logit": self.logit[obs.long()]}


def make_policy(**config: Any) -> PGPolicy:
    return PGPolicy(config, model=TableNet())


def make_rollout(terminated: list[bool], truncated: list[bool]) -> Config:
    """Return the rows of two envs: three steps of env 0 with rewards 1, 2 and 4, two of env 1 with 8 and 16."""
    return {
        "obs": torch.tensor([0.0, 1.0, 0.0, 1.0, 0.0]),
        "next_obs": torch.zeros(5),
        "action": torch.tensor([1, 0, 1, 1, 0]),
        "reward": torch.tensor([1.0, 2.0, 4.0, 8.0, 16.0]),
        "env_id": torch.tensor([0, 0, 0, 1, 1]),
        "episode_id": torch.tensor([0, 0, 0, 1, 1]),
        "log_prob": torch.zeros(5),
        "terminated": torch.tensor(terminated),
        "truncated": torch.tensor(truncated),
    }


def returns_of(policy: PGPolicy, rollout: Config) -> list[float]:
    found: list[float] = policy._learning_data(rollout, rl.time_major(rollout["env_id"], rollout["episode_id"]))[
        "return"
    ].tolist()
    return found


@pytest.mark.parametrize("weight", [0.0, 0.01, 0.5])
def test_loss_weighs_each_log_probability_by_its_return(weight: float) -> None:
    batch = {"obs": torch.tensor([0.0, 1.0]), "action": torch.tensor([1, 0]), "return": torch.tensor([2.0, -1.0])}
    loss, report = make_policy(learn={"entropy_weight": weight}).loss(batch)
    policy_loss = -(2 * math.log(0.75) - math.log(0.5)) / 2
    assert loss.item() == pytest.approx(policy_loss - weight * ENTROPY, rel=1e-6)
    parts = {"total_loss": policy_loss - weight * ENTROPY, "policy_loss": policy_loss, "entropy_loss": ENTROPY}
    assert {name: value.item() for name, value in report.items()} == pytest.approx(parts, rel=1e-6)


@pytest.mark.parametrize("is_cut", [True, False])
def test_return_sums_the_rest_of_the_episode_and_stops_at_a_truncation(is_cut: bool) -> None:
    last, never = [False, False, True, False, True], [False] * 5
    rollout = make_rollout(never, last) if is_cut else make_rollout(last, never)
    # 1 + 2 / 2 + 4 / 4, 2 + 4 / 2, 4; 8 + 16 / 2, 16
    assert returns_of(make_policy(discount_factor=0.5), rollout) == [3.0, 4.0, 4.0, 16.0, 16.0]


def test_rollout_that_stops_before_an_end_is_refused() -> None:
    rollout = make_rollout([False, False, True, False, False], [False] * 5)
    with pytest.raises(ValueError, match="rollout must be of whole episodes: use the episode collector"):
        returns_of(make_policy(), rollout)


@pytest.mark.parametrize("return_norm", [True, False])
def test_returns_of_a_minibatch_are_standardised_if_asked_for(return_norm: bool) -> None:
    policy = make_policy(discount_factor=0.5, learn={"return_norm": return_norm})
    (batch,) = policy._minibatches({"obs": torch.zeros(5), "return": torch.tensor([3.0, 4.0, 4.0, 16.0, 16.0])})
    # mean 8.6, sum of squares 31.36 + 2 * 21.16 + 2 * 54.76 = 183.2, deviation sqrt(183.2 / 4)
    found = [(x - 8.6) / math.sqrt(45.8) for x in (3, 4, 4, 16, 16)] if return_norm else [3, 4, 4, 16, 16]
    assert sorted(batch["return"].tolist()) == pytest.approx(found, rel=1e-5)


def test_evaluation_takes_the_most_probable_action_or_draws() -> None:
    obs = torch.zeros(4000)
    assert make_policy().eval_mode.forward(obs)["action"].eq(1).all()
    policy = make_policy(deterministic_eval=False)
    policy.seed(0)
    share = policy.eval_mode.forward(obs)["action"].float().mean().item()
    assert share == pytest.approx(0.75, abs=0.03)  # four standard errors


def test_drawn_evaluations_are_repeatable_and_leave_the_exploration_alone() -> None:
    obs = torch.zeros(50)
    one, other = (make_policy(deterministic_eval=False) for _ in range(2))
    for policy in (one, other):
        policy.seed(0)
    evaluations = []
    for _ in range(2):
        one.eval_mode.reset()
        evaluations.append([one.eval_mode.forward(obs)["action"].tolist() for _ in range(2)])
        one.eval_mode.reset([0])  # an episode began in env 0
    (first, second), again = evaluations
    assert again == [first, second]
    assert first != second
    assert torch.equal(one.collect_mode.forward(obs)["action"], other.collect_mode.forward(obs)["action"])


def test_an_episode_that_begins_does_not_repeat_the_draws() -> None:
    policy, obs = make_policy(deterministic_eval=False), torch.zeros(50)
    first = policy.eval_mode.forward(obs)["action"]
    policy.eval_mode.reset([0])
    assert not torch.equal(policy.eval_mode.forward(obs)["action"], first)


def test_policy_learns_from_whole_episodes() -> None:
    policy = make_policy(learn={"learning_rate": 0.1})
    policy._learn(make_rollout([False, False, True, False, True], [False] * 5))
    assert policy.progress.train_iter == 1
    assert (policy.get_attribute("n_episode"), policy.get_attribute("n_sample")) == (8, None)
