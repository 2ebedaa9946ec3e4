"""ACER against numbers worked out by hand, and against loops over steps and actions.

Retrace: gamma is 0.5, and the three steps of an unroll have rewards 1, 2 and 3, values of the actions taken 1, 1 and 1,
values of the observations 2, 2 and 2, and 4 after the last step. The ratios are 1, 0.5 and 3.

    step 2: 3 + 0.5 * 4 = 5
    step 1: 2 + 0.5 * (2 + min(1, 3) * (5 - 1)) = 5
    step 0: 1 + 0.5 * (2 + 0.5 * (5 - 1)) = 3
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from lightning_ding import rl
from lightning_ding.policy import ACERPolicy, create_policy
from tests.algorithms.table import real_steps


def column(*values: float) -> Tensor:
    return torch.tensor(values)[:, None]


def retraced(terminated: Tensor | None = None, ended: Tensor | None = None) -> Tensor:
    none = torch.zeros(3, 1, dtype=torch.bool)
    terminated, ended = none if terminated is None else terminated, none if ended is None else ended
    discount = 0.5 * torch.logical_not(terminated)
    ratio, q, value = column(1.0, 0.5, 3.0), column(1.0, 1.0, 1.0), column(2.0, 2.0, 2.0)
    return rl.retrace(ratio.log(), column(1.0, 2.0, 3.0), q, value, column(2.0, 2.0, 4.0), discount, ended | terminated)


def test_targets_are_those_worked_out() -> None:
    assert_close(retraced(), column(3.0, 5.0, 5.0))


def test_targets_end_at_a_terminal_step_and_bootstrap_from_the_value_at_a_time_limit() -> None:
    second = column(0.0, 1.0, 0.0).bool()
    assert_close(retraced(terminated=second), column(1 + 0.5 * (2 + 0.5 * (2 - 1)), 2.0, 5.0))
    assert_close(retraced(ended=second), column(1 + 0.5 * (2 + 0.5 * (3 - 1)), 2 + 0.5 * 2, 5.0))


def test_gradient_is_that_worked_out() -> None:
    # pi = (1/2, 1/2), mu = (1/8, 7/8): ratios 4 and 4/7. With c = 2 the action taken, 0, counts twice, and what is left
    # out of it is corrected by (1 - 2/4) pi (Q - V) with Q = (3, 1) and V = 2: 1/2 * 1/2 * 1
    log_p, log_mu = torch.tensor([[0.5, 0.5]]).log(), torch.tensor([[1 / 8, 7 / 8]]).log()
    q = torch.tensor([[3.0, 1.0]])
    found = rl.acer_gradient(log_p, log_mu, torch.tensor([0]), q, torch.tensor([7.0]), c_clip_ratio=2.0)
    assert_close(found, torch.tensor([[2 * (7 - 2) + 0.25, 0.0]]))
    found = rl.acer_gradient(log_p, log_mu, torch.tensor([1]), q, torch.tensor([7.0]), c_clip_ratio=2.0)
    assert_close(found, torch.tensor([[0.25, 4 / 7 * (7 - 2)]]))


def test_expected_gradient_is_that_of_the_policy_whatever_the_bound_if_the_targets_are_the_values() -> None:
    # the mean over actions of mu of the truncated and the corrected term is pi (Q - V): no bias (section 3.2)
    rng = torch.Generator().manual_seed(0)
    log_p, log_mu, q = (torch.randn(4, generator=rng, dtype=torch.float64) for _ in range(3))
    log_p, log_mu = log_p.log_softmax(0), log_mu.log_softmax(0)
    exact = log_p.exp() * (q - (log_p.exp() * q).sum())
    for c in (0.1, 1.0, 10.0):
        found = torch.zeros(4, dtype=torch.float64)
        for action in range(4):
            one = rl.acer_gradient(log_p, log_mu, torch.tensor(action), q, q[action], c)
            found += log_mu[action].exp() * one
        assert_close(found, exact)


def test_trust_region_leaves_small_gradients_and_projects_large_ones_onto_its_bound() -> None:
    average = torch.tensor([[0.75, 0.25]]).log()
    small, large = torch.tensor([[-1.0, 1.0]]), torch.tensor([[-4.0, 0.0]])
    assert_close(rl.within_trust_region(small, average, 1.0), small)  # k g = 0.75 - 0.25
    found = rl.within_trust_region(large, average, 1.0)  # k g = 3, and |k|^2 = 0.625
    assert_close(found, large + (3 - 1) / 0.625 * torch.tensor([[0.75, 0.25]]))
    assert_close((-average.exp() * found).sum(), torch.tensor(1.0))


def test_projection_is_the_closest_gradient_on_a_grid() -> None:
    average, gradient = torch.tensor([0.6, 0.4]).log(), torch.tensor([-3.0, -1.0])
    found = rl.within_trust_region(gradient, average, 0.5)
    axis = torch.linspace(-4, 4, 401)
    grid = torch.stack(torch.meshgrid(axis, axis, indexing="ij"), -1).flatten(0, 1)
    allowed = grid[(-average.exp() * grid).sum(1) <= 0.5]
    best = allowed[(allowed - gradient).square().sum(1).argmin()]
    assert_close(found, best, rtol=0, atol=0.05)


# ---------------------------------------------------------------------- the policy

STEPS, UNROLLS = 4, 2


def make(**config: Any) -> Any:
    torch.manual_seed(0)
    sizes = {"actor_head_hidden_size": 8, "critic_head_hidden_size": 8}
    model = {"obs_shape": 3, "action_shape": 3, **sizes}
    return ACERPolicy({"unroll_len": STEPS, "discount_factor": 0.9, "model": model, **config}).double()


def make_batch(**changes: Any) -> dict[str, Any]:
    rng = torch.Generator().manual_seed(1)
    shape = STEPS, UNROLLS
    obs, next_obs = (torch.randn(*shape, 3, generator=rng, dtype=torch.float64) for _ in range(2))
    log_mu = torch.randn(*shape, 3, generator=rng, dtype=torch.float64).log_softmax(-1)
    ends = {"terminated": torch.zeros(shape, dtype=torch.bool), "mask": real_steps(*shape)}
    numbers = {"reward": torch.randn(*shape, generator=rng, dtype=torch.float64), "behaviour_log_p": log_mu}
    action = torch.randint(3, shape, generator=rng)
    return {"obs": obs, "next_obs": next_obs, "action": action, **ends, **numbers, **changes}


@torch.no_grad()
def loss_by_a_loop(policy: Any, batch: dict[str, Any], column: int) -> tuple[float, list[float]]:
    """Return the critic's loss of an unroll, times the weight of a step, and its Retrace targets, step by step."""
    real = int(batch["mask"][:, column].sum())
    targets, following = [0.0] * real, 0.0
    for step in reversed(range(real)):
        obs = (batch["obs"][step + 1, column] if step + 1 < real else batch["next_obs"][-1, column])[None]
        value = float((policy.model.compute_actor(obs)["logit"].softmax(1) * policy._q(obs)).sum())
        correction = 0.0
        if step + 1 < real and not batch["terminated"][step, column]:
            action = int(batch["action"][step + 1, column])
            log_p = policy.model.compute_actor(obs)["logit"].log_softmax(1)[0, action]
            ratio = float((log_p - batch["behaviour_log_p"][step + 1, column, action]).exp())
            correction = min(1.0, ratio) * (following - float(policy._q(obs)[0, action]))
        alive = 0.0 if batch["terminated"][step, column] else 0.9
        following = targets[step] = float(batch["reward"][step, column]) + alive * (value + correction)
    errors = [
        targets[step] - float(policy._q(batch["obs"][step, column][None])[0, int(batch["action"][step, column])])
        for step in range(real)
    ]
    return 0.5 * sum(error**2 for error in errors) / (STEPS * UNROLLS), targets


@pytest.mark.parametrize("ended", [None, 1])
def test_targets_and_the_critics_loss_equal_those_of_a_loop(ended: int | None) -> None:
    policy, batch = make(), make_batch()
    if ended is not None:
        batch["terminated"][ended] = True
    prepared = policy.prepare(batch)
    prepared |= policy.targets(prepared)
    loss, _ = policy.loss_of_critic(prepared)
    expected = [loss_by_a_loop(policy, batch, one) for one in range(UNROLLS)]
    assert_close(float(loss), sum(one[0] for one in expected), rtol=1e-6, atol=1e-9)
    for one in range(UNROLLS):
        real = int(batch["mask"][:, one].sum())
        assert_close(prepared["q_target"][:real, one].tolist(), expected[one][1], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("entropy_weight", [0.0, 0.5])
def test_gradient_of_the_actor_is_that_of_its_objective(entropy_weight: float) -> None:
    """Without a trust region: of min(c, rho) (target - V) log pi(a) + corrections + entropy, as autograd has it."""
    policy = make(learn={"trust_region": False, "c_clip_ratio": 0.7, "entropy_weight": entropy_weight})
    batch = policy.prepare(make_batch())
    batch |= policy.targets(batch)
    parameters = list(policy.model.actor.parameters())
    found = torch.autograd.grad(policy.loss_of_actor(batch)[0], parameters)

    log_p = (
        policy.model.compute_actor(batch["obs"].flatten(0, 1))["logit"].log_softmax(1).unflatten(0, (STEPS, UNROLLS))
    )
    fixed, q = log_p.detach(), policy._q(batch["obs"].flatten(0, 1)).detach().unflatten(0, (STEPS, UNROLLS))
    ratio, value = (fixed - batch["behaviour_log_p"]).exp(), (fixed.exp() * q).sum(-1)
    index = batch["action"].unsqueeze(-1)
    first = (
        ratio.gather(-1, index)[..., 0].clamp(max=0.7) * (batch["q_target"] - value) * log_p.gather(-1, index)[..., 0]
    )
    second = ((1 - 0.7 / ratio).clamp(min=0) * fixed.exp() * (q - value.unsqueeze(-1)) * log_p).sum(-1)
    entropy = -(log_p.exp() * log_p).sum(-1)
    objective = (batch["mask"] * (first + second + entropy_weight * entropy)).sum() / (STEPS * UNROLLS)
    for one, expected in zip(found, torch.autograd.grad(-objective, parameters), strict=True):
        assert_close(one, expected, rtol=1e-6, atol=1e-9)


def test_average_policy_limits_the_direction_and_follows_the_policy() -> None:
    policy = make(learn={"trust_region_value": 0.0, "target_theta": 0.25})
    with torch.no_grad():
        for one in policy.model.actor.parameters():
            one.add_(0.3)
    batch = policy.prepare(make_batch())
    found = policy.targets(batch)
    obs = batch["obs"].flatten(0, 1)
    average = policy._log_p(policy.target_model, obs).unflatten(0, (STEPS, UNROLLS))
    assert bool(((-average.exp() * found["direction"]).sum(-1) < 1e-9).all())
    assert bool((found["kl"] > 0).all())
    before = [one.clone() for one in policy.target_model.parameters()]
    policy._forward_learn(batch)
    for old, now, new in zip(before, policy.target_model.parameters(), policy.model.parameters(), strict=True):
        assert_close(now, 0.75 * old + 0.25 * new)


def test_padding_has_no_part_in_an_update() -> None:
    policy, other = make(), make()
    batch = make_batch()
    padded = ~batch["mask"]
    changed = {**batch, "reward": batch["reward"].masked_fill(padded, 1e3), "action": batch["action"].clone()}
    for one, data in ((policy, batch), (other, changed)):
        one._forward_learn(one.prepare(data))
    for first, second in zip(policy.model.parameters(), other.model.parameters(), strict=True):
        assert_close(first, second)


def test_illegal_actions_have_neither_a_gradient_nor_a_part_in_values() -> None:
    torch.manual_seed(0)
    obs_shape: Any = {"state": 3, "action_mask": 3}
    policy: Any = create_policy(
        {"type": "acer", "unroll_len": STEPS, "model": {"obs_shape": obs_shape, "action_shape": 3}}
    )
    mask = torch.tensor([1, 1, 0]).expand(STEPS, UNROLLS, 3)
    seen = {name: {"state": torch.randn(STEPS, UNROLLS, 3), "action_mask": mask} for name in ("obs", "next_obs")}
    log_mu = rl.Categorical(torch.zeros(STEPS, UNROLLS, 3), mask).log_p
    action = torch.zeros(STEPS, UNROLLS, dtype=torch.long)
    plain = {"action": action, "behaviour_log_p": log_mu, "reward": torch.ones(STEPS, UNROLLS)}
    batch = policy.prepare({**make_batch(), **seen, **plain})
    found = policy.targets(batch)
    assert bool((found["direction"][..., 2] == 0).all())
    loss, _ = policy.loss_of_actor(batch | found)
    assert math.isfinite(float(loss))


def test_transitions_have_the_probabilities_of_all_actions() -> None:
    policy = make()
    policy.seed(0)
    output = policy.collect_mode.forward(torch.randn(5, 3, dtype=torch.float64))
    assert_close(output["behaviour_log_p"].exp().sum(1), torch.ones(5, dtype=torch.float64))
    taken = output["behaviour_log_p"].gather(1, output["drawn"][:, None])[:, 0]
    assert_close(output["log_prob"], taken)


@pytest.mark.parametrize(
    ("learn", "message"),
    [
        ({"c_clip_ratio": 0.0}, "learn.c_clip_ratio must be > 0, got 0.0"),
        ({"trust_region_value": -1.0}, "learn.trust_region_value must be >= 0, got -1.0"),
        ({"target_theta": 0.0}, r"learn.target_theta must be in \(0, 1\], got 0.0"),
        ({"trust_region": False, "target_theta": 0.5}, "left at their defaults without learn.trust_region"),
        ({"batch_size": 0}, "learn.batch_size must be >= 1, got 0"),
    ],
)
def test_wrong_options_are_refused(learn: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        create_policy({"type": "acer", "learn": learn})
