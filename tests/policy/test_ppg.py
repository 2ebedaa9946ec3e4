"""PPG's losses against numbers worked out by hand, its phases, and what it keeps between them.

In state 0 the second value head says 2 and in state 1 it says 5; the critic says 1 and 4. The returns are 3 and 3, so
half the mean squared errors are (1 + 4) / 4 and (4 + 1) / 4. The old policy is (1/2, 1/2) in both states, the present
one (1/4, 3/4) in state 0 and (1/2, 1/2) in state 1: KL = (log 2 + log 2/3) / 2 = 0.5 log 4/3 in state 0 and 0 in
state 1.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from lightning_ding import nested
from lightning_ding.model import PPG
from lightning_ding.policy import PPGPolicy, create_policy
from tests.algorithms.table import make_datamodule, make_policy
from tests.conftest import MakeTrainer
from tests.policy.tables import ActorCriticTable

KL = 0.5 * math.log(4 / 3) / 2  # the mean over the states


class Table(ActorCriticTable):
    """Looks up what a network of PPG computes of a state."""

    def __init__(self) -> None:
        super().__init__([[0.25, 0.75], [0.5, 0.5]], [1.0, 4.0])
        self.auxiliary = nn.Parameter(torch.tensor([2.0, 5.0]))

    def compute_auxiliary(self, obs: Any) -> Any:
        return self.compute_actor(obs) | {"value": self._look_up(self.auxiliary, obs)}


def make(**learn: Any) -> Any:
    model = {"obs_shape": 1, "action_shape": 2, "action_space": "discrete"}
    return PPGPolicy({"model": model, "learn": {"value_norm": False, **learn}}, model=Table())


def batch() -> dict[str, Tensor]:
    return {"obs": torch.tensor([0, 1]), "return": torch.full((2,), 3.0), "old_logit": torch.zeros(2, 2)}


def test_joint_loss_is_the_value_loss_plus_the_weighted_divergence() -> None:
    loss, report = make(aux_bc_weight=2.0).joint_loss(batch())
    assert_close(report["auxiliary_value_loss"], torch.tensor((1 + 4) / 4))
    assert_close(report["cloning_loss"], torch.tensor(KL))
    assert_close(loss.detach(), torch.tensor((1 + 4) / 4 + 2 * KL))


def test_auxiliary_loss_trains_the_critic_too() -> None:
    policy = make()
    loss, report = policy.auxiliary_loss(batch())
    assert_close(report["auxiliary_critic_loss"], torch.tensor((4 + 1) / 4))
    assert_close(loss.detach(), torch.tensor((1 + 4) / 4 + KL + (4 + 1) / 4))
    loss.backward()
    assert_close(policy.model.value.grad, torch.tensor([-1.0, 0.5]))
    assert_close(policy.model.auxiliary.grad, torch.tensor([-0.5, 1.0]))


def test_divergence_equals_a_sum_over_actions() -> None:
    policy, rng = make(), torch.Generator().manual_seed(0)
    old = torch.randn(2, 2, generator=rng)
    _, report = policy.joint_loss(batch() | {"old_logit": old})
    p, log_q = old.softmax(1), policy.model.logit.detach().log_softmax(1)
    expected = sum(p[i, a] * (p[i, a].log() - log_q[i, a]) for i in range(2) for a in range(2)) / 2
    assert_close(report["cloning_loss"], torch.as_tensor(expected))


@pytest.mark.parametrize(
    ("space", "shape"),
    [
        ("discrete", 3),
        ("discrete", [2, 3]),
        ("continuous", 2),
        ("hybrid", {"action_type_shape": 3, "action_args_shape": 2}),
    ],
)
def test_policy_does_not_differ_from_itself_whatever_the_actions(space: str, shape: Any) -> None:
    torch.manual_seed(0)
    model = {"obs_shape": 4, "action_shape": shape, "action_space": space}
    policy: Any = create_policy({"type": "ppg", "model": model})
    obs = torch.randn(5, 4)
    given = {"obs": obs, "return": torch.zeros(5), "old_logit": policy._logits_of(obs)}
    _, report = policy.joint_loss(nested.index(given, torch.tensor([3, 1])))
    assert_close(report["cloning_loss"], torch.zeros(()), rtol=0, atol=1e-6)


# ---------------------------------------------------------------------- the network


def test_second_head_has_the_features_of_the_actor_and_the_sizes_of_the_critic() -> None:
    torch.manual_seed(0)
    network, obs = PPG(4, 2, encoder_hidden_size_list=[8], critic_head_hidden_size=6), torch.randn(5, 4)
    output = network.compute_auxiliary(obs)
    assert_close(output["logit"], network.compute_actor(obs)["logit"])
    assert_close(output["value"], network.auxiliary(network.encoder(obs))[:, 0])
    assert [one.shape for one in network.auxiliary.parameters()] == [one.shape for one in network.critic.parameters()]
    shared = {id(one) for one in network.actor_parameters()} & {id(one) for one in network.critic_parameters()}
    assert not shared
    assert len(network.actor_parameters()) + len(network.critic_parameters()) == len(list(network.parameters()))


# ---------------------------------------------------------------------- phases


def test_updates_of_both_phases_are_counted(make_trainer: MakeTrainer) -> None:
    policy: Any = make_policy("ppg")  # 2 passes over 16 steps in minibatches of 8, and a phase after 3 rollouts
    make_trainer(limit_val_batches=0).fit(policy, make_datamodule("ppg", max_env_step=16 * 7))
    assert policy.progress.train_iter == 7 * 4 + 2 * 6
    assert len(policy._rollouts) == 1
    assert policy.update_per_collect == 4 + 2


def test_phase_learns_the_returns_of_its_rollouts_in_the_units_that_the_critic_has_at_its_end() -> None:
    torch.manual_seed(0)
    policy: Any = make_policy(
        "ppg", learn={"value_norm": "popart"}, model={"obs_shape": 4, "action_shape": 2, "action_space": "discrete"}
    )
    seen: list[dict[str, Tensor]] = []

    def note(minibatch: dict[str, Tensor]) -> dict[str, Tensor]:
        seen.append(minibatch)
        return {}

    policy._auxiliary_update = note
    returns = [torch.randn(16) * scale for scale in (1.0, 10.0, 100.0)]
    for one in returns:
        data = {"obs": torch.randn(16, 4), "value": torch.zeros(16), "return": policy._outputs_for(one)}
        policy._renew_scale(data)
    policy._auxiliary_phase()
    found = policy._returns_of(torch.cat([one["return"] for one in seen]))
    assert_close(found.sort().values, torch.cat(returns).sort().values, rtol=1e-4, atol=1e-3)
    assert policy._rollouts == []


def test_separate_optimizers_step_in_both_phases() -> None:
    torch.manual_seed(0)
    model = {"obs_shape": 4, "action_shape": 2, "action_space": "discrete"}
    policy: Any = make_policy("ppg", model=model, learn={"learning_rate_actor": 0.01, "learning_rate_critic": 0.02})
    before = {name: one.clone() for name, one in policy.model.state_dict().items()}
    given = {"obs": torch.randn(8, 4), "return": torch.ones(8), "old_logit": torch.zeros(8, 2)}
    report = policy._auxiliary_update(given)
    assert {"auxiliary_value_loss", "auxiliary_critic_loss", "cloning_loss"} <= report.keys()
    unchanged = {name for name, one in policy.model.state_dict().items() if torch.equal(one, before[name])}
    assert unchanged == set()


def test_rollouts_of_an_unfinished_phase_are_part_of_the_memory() -> None:
    policy: Any = make_policy("ppg", model={"obs_shape": 4, "action_shape": 2, "action_space": "discrete"})
    other: Any = make_policy("ppg", model={"obs_shape": 4, "action_shape": 2, "action_space": "discrete"})
    assert policy.collect_memory() == {}
    policy._rollouts = [{"obs": torch.ones(3, 4), "return": torch.zeros(3)}]
    other.load_collect_memory(policy.collect_memory())
    assert_close(other._rollouts, policy._rollouts)
    other.load_collect_memory({})
    assert other._rollouts == []


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"learn": {"aux_freq": 0}}, "learn.aux_freq must be >= 1, got 0"),
        ({"learn": {"aux_train_epoch": 0}}, "learn.aux_train_epoch must be >= 1, got 0"),
        ({"learn": {"aux_bc_weight": -1.0}}, "learn.aux_bc_weight must be >= 0, got -1.0"),
        ({"model": {"share_encoder": True}}, "model.share_encoder must be False with ppg, got True"),
    ],
)
def test_wrong_options_are_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        create_policy({"type": "ppg", **config})
