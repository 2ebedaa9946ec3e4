"""EDAC's loss against numbers worked out by hand, and its gradients against a loop over the critics.

Three critics are linear in the action, Q_i(s, a) = w_i a + b_i, so their gradients by the action are w_i. Of the
directions (1, 0), (0, 2) and (-3, 0) the cosines of the pairs are 0, -1 and 0: the sum over both orders is -2, and
divided by E - 1 it is -1.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from lightning_ding import rl
from lightning_ding.policy import EDACPolicy, SACPolicy, create_policy

WEIGHTS = [[1.0, 0.0], [0.0, 2.0], [-3.0, 0.0]]


def by_a_loop(gradient: Tensor) -> Tensor:
    """Return the similarity of gradients (E, B, A), pair by pair."""
    critics, size = gradient.shape[:2]
    total = torch.zeros(())
    for row in range(size):
        for i in range(critics):
            for j in range(critics):
                if i != j:
                    total = total + nn.functional.cosine_similarity(gradient[i, row], gradient[j, row], dim=0)
    return total / size / (critics - 1)


def test_similarity_is_that_worked_out() -> None:
    assert_close(rl.gradient_similarity(torch.tensor(WEIGHTS)[:, None]), torch.tensor(-1.0))
    same = torch.tensor([[[1.0, 1.0]], [[2.0, 2.0]], [[0.5, 0.5]]])
    assert_close(rl.gradient_similarity(same), torch.tensor(3.0))


def test_similarity_equals_that_of_a_loop_over_pairs() -> None:
    gradient = torch.randn(4, 5, 3, generator=torch.Generator().manual_seed(0))
    assert_close(rl.gradient_similarity(gradient), by_a_loop(gradient))


def test_critic_without_a_gradient_counts_as_orthogonal_to_all_others() -> None:
    gradient = torch.tensor([[[1.0, 0.0]], [[0.0, 0.0]], [[1.0, 0.0]]], requires_grad=True)
    found = rl.gradient_similarity(gradient)
    assert_close(found.detach(), torch.tensor(1.0))
    found.backward()
    assert gradient.grad is not None
    assert gradient.grad.isfinite().all()


class Linear(nn.Module):
    """Critics that are linear in the action, and an actor with a fixed output."""

    def __init__(self) -> None:
        super().__init__()
        self.critic, self.actor = nn.ParameterList([torch.tensor(WEIGHTS)]), nn.ParameterList([torch.zeros(2)])

    def compute_actor(self, obs: Tensor) -> dict[str, Tensor]:
        mu = self.actor[0].expand(len(obs), 2)
        return {"mu": mu, "log_sigma": mu - 2}

    def compute_critic(self, obs: Tensor, action: Tensor, members: Any = None) -> dict[str, Tensor]:
        return {"q_value": (self.critic[0][:, None] * action).sum(-1) + obs.sum(1)}


def make_batch() -> dict[str, Tensor]:
    flat = {"reward": torch.tensor([1.0, 2.0]), "terminated": torch.tensor([True, True])}
    rows = {"obs": torch.zeros(2, 1), "next_obs": torch.ones(2, 1), "action": torch.tensor([[0.5, 0.25], [1.0, 0.0]])}
    return rows | flat


def make_policy(**learn: Any) -> Any:
    model = {"obs_shape": 1, "action_shape": 2, "ensemble_num": 3}
    return EDACPolicy({"model": model, "learn": learn}, model=Linear())


def test_loss_is_the_squared_error_of_all_critics_plus_the_weighted_similarity() -> None:
    policy = make_policy(eta=0.5)
    loss, report = policy.critic_loss(policy.prepare(make_batch()))
    # values 0.5, 0.5, -1.5 and 1, 0, -3, of targets 1 and 2
    squared = [(0.5**2 + 1) / 2, (0.5**2 + 2**2) / 2, (2.5**2 + 5**2) / 2]
    assert_close(report["gradient_similarity"], torch.tensor(-1.0))
    assert_close(loss.item(), sum(squared) - 0.5)
    assert_close(report["critic_loss"], loss.detach())


def test_without_the_similarity_it_is_sac_with_many_critics() -> None:
    policy, config = make_policy(eta=0.0), {"model": {"obs_shape": 1, "action_shape": 2}}
    sac: Any = SACPolicy(config, model=Linear())
    sac.seed(0)
    policy.seed(0)
    batch = make_batch() | {"terminated": torch.tensor([False, False])}
    losses = [one.critic_loss(one.prepare(batch))[0] for one in (policy, sac)]
    assert_close(losses[0], losses[1])


def test_gradient_of_the_loss_equals_that_of_a_loop_over_the_critics() -> None:
    torch.manual_seed(0)
    model = {"obs_shape": 3, "action_shape": 2, "ensemble_num": 4, "critic_head_hidden_size": 8, "activation": "tanh"}
    policy: Any = create_policy({"type": "edac", "model": model, "learn": {"eta": 1.0}})
    policy.seed(0)
    rng = torch.Generator().manual_seed(1)
    batch = {name: torch.randn(5, 3, generator=rng) for name in ("obs", "next_obs")}
    batch |= {"action": torch.rand(5, 2, generator=rng), "reward": torch.zeros(5), "terminated": torch.ones(5).bool()}
    prepared = policy.prepare(batch)
    parameters = list(policy.model.critic.parameters())
    found = torch.autograd.grad(policy.critic_loss(prepared)[0], parameters)

    action = prepared["action"].clone().requires_grad_()
    q = policy.model.compute_critic(prepared["obs"], action)["q_value"]
    each = [torch.autograd.grad(one.sum(), action, create_graph=True)[0] for one in q]
    loss = q.square().mean(1).sum() + by_a_loop(torch.stack(each))  # rewards are 0 and all steps are terminal
    for one, expected in zip(found, torch.autograd.grad(loss, parameters, allow_unused=True), strict=True):
        assert_close(one, torch.zeros_like(one) if expected is None else expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("with_entropy", [True, False])
def test_target_is_the_smallest_value_with_or_without_the_entropy(with_entropy: bool) -> None:
    policy = make_policy(with_q_entropy=with_entropy, auto_alpha=False, alpha=0.5)
    policy.seed(0)
    batch = policy.prepare(make_batch() | {"terminated": torch.tensor([False, False])})
    action, log_prob = policy._sample(batch["next_obs"], batch["next_noise"])
    values = torch.stack([(torch.tensor(one) * action).sum(1) + 1 for one in WEIGHTS]).amin(0)
    expected = batch["reward"] + 0.99 * (values - 0.5 * log_prob * with_entropy)
    assert_close(policy.critic_loss(batch)[1]["target_q_value"], expected.detach())


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model": {"ensemble_num": 1}}, "model.ensemble_num must be >= 2, got 1"),
        ({"learn": {"eta": -1.0}}, "learn.eta must be >= 0, got -1.0"),
    ],
)
def test_wrong_options_are_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        create_policy({"type": "edac", **config})
