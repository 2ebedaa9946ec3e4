"""TRPO's step against dense linear algebra, its line search, and the limit of the divergence."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from lightning_ding import nested
from lightning_ding.policy import TRPOPolicy, create_policy
from lightning_ding.policy.base.dump import NonFiniteError
from lightning_ding.policy.trpo import Step
from tests.algorithms.table import make_datamodule, make_policy
from tests.conftest import MakeTrainer

SIZE = 40  # transitions of a rollout
SPACES = [
    ("discrete", 3),
    ("discrete", [2, 3]),
    ("continuous", 2),
    ("hybrid", {"action_type_shape": 3, "action_args_shape": 2}),
]


def make(space: str = "discrete", shape: Any = 3, **learn: Any) -> Any:
    torch.manual_seed(0)
    model = {"obs_shape": 4, "action_shape": shape, "action_space": space, "encoder_hidden_size_list": [5]}
    learn = {"value_norm": False, "ppo_param_init": False, **learn}
    return TRPOPolicy({"model": {**model, "activation": "tanh"}, "learn": learn}).double()


def rollout(policy: Any) -> Any:
    """Return transitions of random states with actions of the policy, and random advantages."""
    rng = torch.Generator().manual_seed(1)
    obs = torch.randn(SIZE, 4, generator=rng, dtype=torch.float64)
    with torch.no_grad():
        distribution = policy._distribution(policy._logit(obs), obs)
        action = distribution.sample(np.random.default_rng(2))
        log_prob = distribution.log_prob(action)
    return {
        **{"obs": obs, "action": action, "log_prob": log_prob},
        "advantage": torch.randn(SIZE, generator=rng, dtype=torch.float64),
    }


def weights(policy: Any) -> Tensor:
    return torch.cat([one.detach().flatten() for one in policy.model.actor_parameters()])


def explicit_fisher(policy: Any, data: Any) -> Tensor:
    """Return the mean over states and actions of the outer product of the score, of a discrete policy."""
    parameters = policy.model.actor_parameters()
    total = torch.zeros(len(weights(policy)), len(weights(policy)), dtype=torch.float64)
    for row in range(SIZE):
        log_p = policy._logit(data["obs"][row : row + 1]).log_softmax(1)[0]
        for one in log_p:
            score = torch.cat([part.flatten() for part in torch.autograd.grad(one, parameters, retain_graph=True)])
            total += one.detach().exp() * torch.outer(score, score)
    return total / SIZE


def surrogate_gradient(policy: Any, data: Any) -> Tensor:
    """Return the mean of the score times the advantage."""
    log_p = policy._logit(data["obs"]).log_softmax(1).gather(1, data["action"][:, None])[:, 0]
    found = torch.autograd.grad((log_p * data["advantage"]).mean(), policy.model.actor_parameters())
    return torch.cat([one.flatten() for one in found])


def test_products_are_those_with_the_explicit_fisher_matrix() -> None:
    policy = make(cg_damping=0.25)
    data = rollout(policy)
    vector = torch.randn(len(weights(policy)), generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    slope = policy.kl_slope(data)
    assert_close(slope.detach(), torch.zeros_like(vector))
    assert_close(policy.fisher_product(slope, vector), explicit_fisher(policy, data) @ vector + 0.25 * vector)


def test_the_step_is_that_of_a_dense_solve() -> None:
    policy = make(cg_iterations=200, max_kl=1e-4)
    data = rollout(policy)
    step = policy.natural_step(data)
    matrix = explicit_fisher(policy, data)
    matrix += 0.1 * torch.eye(len(matrix), dtype=torch.float64)
    direction = torch.linalg.solve(matrix, surrogate_gradient(policy, data))
    longest = (2e-4 / (direction @ matrix @ direction)).sqrt() * direction
    assert_close(step.change, longest, rtol=1e-4, atol=1e-4 * float(longest.abs().max()))


def test_few_iterations_leave_another_direction() -> None:
    found = []
    for iterations in (1, 200):
        policy = make(cg_iterations=iterations)
        found.append(policy.natural_step(rollout(policy)).change)
    assert torch.cosine_similarity(found[0], found[1], dim=0) < 0.99


@pytest.mark.parametrize(("space", "shape"), SPACES)
def test_a_step_raises_the_surrogate_within_the_limit(space: str, shape: Any) -> None:
    policy = make(space, shape, max_kl=0.02)
    data = rollout(policy)
    before = weights(policy)
    step = policy.natural_step(data)
    assert_close(weights(policy), before)
    with torch.no_grad():
        old = policy._distribution(policy._logit(data["obs"]), data["obs"])
    loss = policy.loss_of_actor(data)[0]
    policy.make_step(step.change)
    assert_close(weights(policy), before + step.change)
    assert_close(loss - policy.loss_of_actor(data)[0], step.gain)
    assert step.gain > 0
    assert 0.002 < step.kl <= 0.02
    new = policy._distribution(policy._logit(data["obs"]), data["obs"])
    assert_close(old.kl(new).mean().detach(), step.kl)


def test_surrogate_is_the_mean_of_ratio_times_advantage_plus_entropy() -> None:
    # the old probabilities are half of the present ones, so all ratios are 2
    policy = make(entropy_weight=0.5)
    data = rollout(policy)
    data["log_prob"] = data["log_prob"] - torch.tensor(2.0).log()
    log_p = policy._logit(data["obs"]).log_softmax(1)
    entropy = -(log_p.exp() * log_p).sum(1).mean()
    assert_close(policy.loss_of_actor(data)[0], -(2 * data["advantage"].mean() + 0.5 * entropy))


def searched(policy: Any, length: float) -> tuple[Step, Tensor]:
    """Return the result of a line search from a step that is some times as long as the limit allows, and that step."""
    data = rollout(policy)
    unit = policy.natural_step(data).change
    return policy._line_search(data, length * unit), length * unit


def test_a_step_that_is_too_long_is_shortened() -> None:
    policy = make(max_kl=1e-3, backtrack_factor=0.5)
    step, longest = searched(policy, 7.0)
    assert_close(step.change, longest / 8)  # the divergence grows with the square of the length


def test_a_step_against_the_surrogate_is_not_made() -> None:
    policy = make()
    before = weights(policy)
    step, _ = searched(policy, -1.0)
    assert_close(step.change, torch.zeros_like(before))
    assert step.gain == 0
    assert step.kl == 0
    assert_close(weights(policy), before)


def test_the_number_of_tries_has_a_limit() -> None:
    step, _ = searched(make(max_kl=1e-3, backtrack_factor=0.5, max_backtracks=2), 7.0)
    assert step.change.abs().max() == 0
    step, _ = searched(make(max_kl=1e-3, backtrack_factor=0.5, max_backtracks=3), 7.0)
    assert step.change.abs().max() > 0


def test_advantages_of_zero_leave_the_actor() -> None:
    policy = make()
    data = rollout(policy) | {"advantage": torch.zeros(SIZE, dtype=torch.float64)}
    assert policy.natural_step(data).change.abs().max() == 0


@pytest.mark.parametrize("mode", ["raise", "skip_update"])
def test_a_gradient_that_is_not_finite_is_reported(mode: str) -> None:
    policy: Any = make_policy(
        "trpo", on_non_finite=mode, model={"obs_shape": 4, "action_shape": 3, "action_space": "discrete"}
    )
    policy.updater.guard.writes_dump = False
    before = weights(policy)
    data = nested.apply(lambda x: x.float() if x.is_floating_point() else x, rollout(make()))
    data["advantage"][0] = torch.nan
    if mode == "raise":
        with pytest.raises(NonFiniteError):
            policy._actor_update(data)
    else:
        policy._actor_update(data)
        assert policy.updater.guard.skipped_updates == 1
    assert_close(weights(policy), before)


@pytest.mark.parametrize("adv_norm", [False, True])
def test_standardised_advantages_have_neither_offset_nor_scale(adv_norm: bool) -> None:
    found = []
    for offset in (0.0, 5.0):
        policy = make(adv_norm=adv_norm)
        data = rollout(policy)
        before = weights(policy)
        policy._actor_update({**data, "advantage": offset + 3 * data["advantage"]})
        found.append(weights(policy) - before)
    one, other = found
    assert torch.allclose(one, other, rtol=1e-4, atol=1e-7) == adv_norm


def test_a_rollout_gives_one_step_of_the_actor_and_passes_of_the_critic(make_trainer: MakeTrainer) -> None:
    policy: Any = make_policy("trpo")  # 2 passes over 16 steps in minibatches of 8
    made: list[Step] = []
    natural_step = policy.natural_step

    def noting(data: Any) -> Step:
        made.append(natural_step(data))
        return made[-1]

    policy.natural_step = noting
    make_trainer(limit_val_batches=0).fit(policy, make_datamodule("trpo", max_env_step=64))
    assert policy.progress.train_iter == 4 * policy.update_per_collect == 4 * 5
    assert len(made) == 4
    assert all(step.kl <= policy.config.learn.max_kl for step in made)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model": {"share_encoder": True}}, "model.share_encoder must be False with trpo, got True"),
        ({"learn": {"max_kl": 0.0}}, "learn.max_kl must be > 0, got 0"),
        ({"learn": {"cg_iterations": 0}}, "learn.cg_iterations must be >= 1, got 0"),
        ({"learn": {"cg_damping": -0.1}}, "learn.cg_damping must be >= 0, got -0.1"),
        ({"learn": {"backtrack_factor": 1.0}}, r"learn.backtrack_factor must be in \(0, 1\), got 1.0"),
        ({"learn": {"max_backtracks": -1}}, "learn.max_backtracks must be >= 0, got -1"),
        ({"learn": {"epoch_per_collect": 0}}, "learn.epoch_per_collect must be >= 1, got 0"),
        ({"learn": {"rpo_alpha": 0.5}}, "learn.rpo_alpha must be 0 with trpo, got 0.5"),
        (
            {"learn": {"learning_rate_actor": 1e-3, "learning_rate_critic": 1e-3}},
            "learn.learning_rate_actor must be None with trpo",
        ),
    ],
)
def test_errors(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        create_policy({"type": "trpo", **config})
