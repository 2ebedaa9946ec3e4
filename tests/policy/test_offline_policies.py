"""TD3+BC, IQL, AWAC and CQL: their losses against loops written from the papers, and that they learn from data."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from lightning_ding.config import deep_merge
from lightning_ding.datamodules import OfflineDataModule
from lightning_ding.policy import (
    AWACPolicy,
    BCPolicy,
    CQLPolicy,
    DiscreteCQLPolicy,
    IQLPolicy,
    TD3BCPolicy,
    awac,
    create_policy,
)
from tests.conftest import MakeTrainer
from tests.learning_seeds import assert_reached, learning_seed
from tests.toys.bandits import TargetEnv
from tests.toys.datasets import target_steps

Config = dict[str, Any]
SIZES: Config = {"obs_shape": 3, "action_shape": 2, "actor_head_hidden_size": 8, "critic_head_hidden_size": 8}
B = 6


def made(policy_class: Any, **learn: Any) -> Any:
    torch.manual_seed(0)
    policy = policy_class({"model": SIZES, "learn": learn})
    policy.seed(0)
    for parameter in policy.target_model.parameters():  # else it equals the network
        parameter.data.add_(0.05)
    return policy


def batch_of(policy: Any) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    columns = {name: rng.normal(size=(B, 3)).astype(np.float32) for name in ("obs", "next_obs")}
    tensors: dict[str, Any] = {name: torch.from_numpy(value) for name, value in columns.items()}
    tensors["action"] = torch.from_numpy(rng.uniform(-1, 1, (B, 2)).astype(np.float32))
    tensors["reward"] = torch.from_numpy(rng.normal(size=B).astype(np.float32))
    tensors["terminated"] = torch.arange(B) == 2
    return policy.prepare(tensors)  # type: ignore[no-any-return]


def q_of(model: Any, obs: Tensor, action: Tensor) -> list[list[float]]:
    """Return the values of each critic, [E][B]."""
    with torch.no_grad():
        return model.compute_critic(obs, action)["q_value"].tolist()  # type: ignore[no-any-return]


def log_density(mean: Any, log_sigma: Any, action: Any) -> float:
    """Return the log density of one action under independent normal distributions."""
    parts = [
        -((a - m) ** 2) / (2 * math.exp(2 * s)) - s - 0.5 * math.log(2 * math.pi)
        for m, s, a in zip(mean, log_sigma, action, strict=True)
    ]
    return float(sum(parts))


# ---------------------------------------------------------------------- TD3+BC


def test_td3_bc_actor_loss_equals_a_loop_written_from_the_paper() -> None:
    policy = made(TD3BCPolicy, alpha=1.5)
    batch = batch_of(policy)
    with torch.no_grad():
        action = policy.model.compute_actor(batch["obs"])["action"]
    q = q_of(policy.model, batch["obs"], action)[0]
    scale = 1.5 / (sum(abs(value) for value in q) / B)  # eq. 5
    total = 0.0
    for row in range(B):
        distance = [(action[row, d] - batch["action"][row, d]) ** 2 for d in range(2)]
        total += float(sum(distance)) / 2 - scale * q[row]
    loss, report = policy.actor_loss(batch)
    assert float(loss) == pytest.approx(total / B, rel=1e-5)
    assert float(report["bc_loss"]) == pytest.approx(float((action - batch["action"]).square().mean()), rel=1e-5)


def test_td3_bc_with_alpha_zero_imitates() -> None:
    policy = made(TD3BCPolicy, alpha=0.0)
    loss, report = policy.actor_loss(batch_of(policy))
    assert float(loss) == float(report["bc_loss"])


def test_td3_bc_refuses_a_choice() -> None:
    with pytest.raises(ValueError, match="there is no choice to imitate"):
        TD3BCPolicy({"model": {"action_shape": {"action_type_shape": 2, "action_args_shape": 1}}})


# ---------------------------------------------------------------------- IQL


def test_iql_losses_equal_loops_written_from_the_paper() -> None:
    policy = made(IQLPolicy, tau=0.8, beta=2.0)
    batch = batch_of(policy)
    with torch.no_grad():
        value, next_value = (policy.model.compute_value(batch[name]).tolist() for name in ("obs", "next_obs"))
        output = policy.model.compute_actor(batch["obs"])
    mean, log_sigma = output["mu"].tanh().tolist(), output["log_sigma"].tolist()
    target_q = [min(pair) for pair in zip(*q_of(policy.target_model, batch["obs"], batch["action"]), strict=True)]
    q = q_of(policy.model, batch["obs"], batch["action"])
    of_value = of_actor = of_critic = 0.0
    for row in range(B):
        u = target_q[row] - value[row]
        of_value += abs(0.8 - (u < 0)) * u**2 / B  # eq. 5
        weight = min(math.exp(2.0 * u), 100.0)
        of_actor -= weight * log_density(mean[row], log_sigma[row], batch["action"][row].tolist()) / B  # eq. 7
        gamma = 0.0 if row == 2 else 0.99
        y = float(batch["reward"][row]) + gamma * next_value[row]
        of_critic += sum((y - critic[row]) ** 2 for critic in q) / B  # eq. 6
    assert float(policy.value_loss(batch)[0]) == pytest.approx(of_value, rel=1e-5)
    assert float(policy.actor_loss(batch)[0]) == pytest.approx(of_actor, rel=1e-5)
    assert float(policy.critic_loss(batch)[0]) == pytest.approx(of_critic, rel=1e-5)


def test_iql_queries_no_action_outside_of_the_data() -> None:
    policy = made(IQLPolicy)
    batch = batch_of(policy)
    asked: list[Tensor] = []
    for model in (policy.model, policy.target_model):

        def note(obs: Any, action: Tensor, compute: Any = model.compute_critic) -> Any:
            asked.append(action)
            return compute(obs, action)

        model.compute_critic = note
    policy.learn_mode.forward(batch)
    assert len(asked) == 3
    assert all(torch.equal(action, batch["action"]) for action in asked)


# ---------------------------------------------------------------------- AWAC


@pytest.mark.parametrize(
    ("norm_advantage", "other_rank", "weights"),
    [
        (False, None, [20.085537, 0.018315639]),  # exp(3), exp(-4)
        (True, None, [2.3362057, 0.32259073]),  # with (25 / 2) ** 0.5 = 3.5355339: exp(0.8485281), exp(-1.1313708)
        (True, 37.5, [1.8221188, 0.44932896]),  # with ((12.5 + 37.5) / 2) ** 0.5 = 5: exp(0.6), exp(-0.8)
    ],
)
def test_awac_divides_advantages_by_their_root_mean_square_over_all_ranks(
    norm_advantage: bool, other_rank: float | None, weights: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = made(AWACPolicy, beta=1.0, norm_advantage=norm_advantage)
    q_is_first_dimension = SimpleNamespace(compute_critic=lambda obs, action: {"q_value": action[None, :, 0]})
    monkeypatch.setattr(policy, "_modules", {**policy._modules, "model": q_is_first_dimension})
    monkeypatch.setattr(policy, "_sample", lambda obs, noise: torch.ones(2, 2))  # values of 1
    if other_rank is not None:
        monkeypatch.setattr(awac, "world_size", lambda: 2)
        monkeypatch.setattr(awac, "sum_over_ranks", lambda mine: mine + other_rank)
    batch = {"obs": torch.zeros(2, 3), "action": torch.tensor([[4.0, 0.0], [-3.0, 0.0]]), "noise": torch.zeros(2, 2, 1)}
    assert_close(policy._weight(batch), torch.tensor(weights), rtol=1e-6, atol=0)


def test_awac_losses_equal_loops_written_from_the_paper() -> None:
    policy = made(AWACPolicy, beta=2.0, num_actions=2)
    batch = batch_of(policy)
    with torch.no_grad():
        output, following = (policy.model.compute_actor(batch[name]) for name in ("obs", "next_obs"))
    mean, log_sigma = output["mu"].tanh(), output["log_sigma"]
    drawn = [(mean + log_sigma.exp() * batch["noise"][..., n]).clamp(-1, 1) for n in range(2)]
    values = [[min(pair) for pair in zip(*q_of(policy.model, batch["obs"], a), strict=True)] for a in drawn]
    q = q_of(policy.model, batch["obs"], batch["action"])
    next_action = (following["mu"].tanh() + following["log_sigma"].exp() * batch["next_noise"]).clamp(-1, 1)
    next_q = q_of(policy.target_model, batch["next_obs"], next_action)
    of_actor = of_critic = 0.0
    for row in range(B):
        advantage = min(critic[row] for critic in q) - (values[0][row] + values[1][row]) / 2
        density = log_density(mean[row].tolist(), log_sigma[row].tolist(), batch["action"][row].tolist())
        of_actor -= min(math.exp(2.0 * advantage), 100.0) * density / B  # eq. 13
        gamma = 0.0 if row == 2 else 0.99
        y = float(batch["reward"][row]) + gamma * min(critic[row] for critic in next_q)
        of_critic += sum((y - critic[row]) ** 2 for critic in q) / B
    assert float(policy.actor_loss(batch)[0]) == pytest.approx(of_actor, rel=1e-5)
    assert float(policy.critic_loss(batch)[0]) == pytest.approx(of_critic, rel=1e-5)


# ---------------------------------------------------------------------- CQL


def test_cql_critic_loss_equals_a_loop_written_from_the_paper() -> None:
    policy = made(CQLPolicy, num_actions=3, min_q_weight=2.0)
    batch = batch_of(policy)
    q_data = q_of(policy.model, batch["obs"], batch["action"])
    kinds = [batch["uniform_noise"]]
    densities = [torch.full((B, 3), 2 * math.log(0.5))]  # uniform in a square of side 2
    for name, noise in (("obs", "gap_noise"), ("next_obs", "next_gap_noise")):
        with torch.no_grad():
            output = policy.model.compute_actor(batch[name])
        u = output["mu"][:, None] + output["log_sigma"].exp()[:, None] * batch[noise]
        spread = torch.distributions.Normal(output["mu"][:, None], output["log_sigma"].exp()[:, None])
        densities.append((spread.log_prob(u) - torch.log(1 - u.tanh() ** 2)).sum(2))
        kinds.append(u.tanh())
    expected = float(super(CQLPolicy, policy).critic_loss(batch)[0])
    for critic in range(2):
        for row in range(B):
            total = 0.0
            for actions, density in zip(kinds, densities, strict=True):
                for n in range(3):
                    q = q_of(policy.model, batch["obs"][row : row + 1], actions[row, n : n + 1])[critic][0]
                    total += math.exp(q) / math.exp(float(density[row, n]))
            expected += 2.0 * (math.log(total) - q_data[critic][row]) / B
    loss, report = policy.critic_loss(batch)
    assert float(loss) == pytest.approx(expected, rel=1e-5)
    assert report["conservative_gap"].shape == (2,)


def test_cql_targets_leave_the_entropy_out() -> None:
    policy = made(CQLPolicy)
    batch = batch_of(policy)
    with torch.no_grad():
        action, _ = policy._sample(batch["next_obs"], batch["next_noise"])
        next_q = policy.target_model.compute_critic(batch["next_obs"], action)["q_value"].amin(0)
        expected = batch["reward"] + 0.99 * (~batch["terminated"]) * next_q
        assert_close(policy._targets(batch), expected)


def test_cql_multiplier_grows_while_the_gap_is_too_large() -> None:
    for thresh, sign in ((-100.0, 1), (1000.0, -1)):
        policy = made(CQLPolicy, with_lagrange=True, lagrange_thresh=thresh)
        policy.learn_mode.forward(batch_of(policy))
        assert math.copysign(1, float(policy.log_multiplier)) == sign


@pytest.mark.parametrize("with_mask", [False, True])
def test_discrete_cql_adds_the_gap_to_the_loss_of_qrdqn(with_mask: bool) -> None:
    torch.manual_seed(0)
    shape: Any = {"observation": 3, "action_mask": 3} if with_mask else 3
    model = {"obs_shape": shape, "action_shape": 3, "encoder_hidden_size_list": [8], "num_quantiles": 4}
    policy = DiscreteCQLPolicy({"model": model, "learn": {"min_q_weight": 2.0}})
    obs: Any = torch.randn(B, 3)
    mask = torch.tensor([[1, 1, 0]] * B)
    obs = {"observation": obs, "action_mask": mask} if with_mask else obs
    batch = {"obs": obs, "next_obs": obs, "action": torch.tensor([0, 1, 0, 1, 1, 0]), "reward": torch.randn(B)}
    batch["terminated"] = torch.arange(B) == 1
    batch = policy.prepare(batch)
    expected = float(super(DiscreteCQLPolicy, policy).loss(batch)[0])
    values = policy.model(obs)["logit"].tolist()
    for row, chosen in enumerate(batch["action"].tolist()):
        legal = values[row][:2] if with_mask else values[row]
        gap = math.log(sum(math.exp(value) for value in legal)) - values[row][chosen]  # eq. 4
        expected += 2.0 * gap / B
    assert float(policy.loss(batch)[0]) == pytest.approx(expected, rel=1e-5)


# ---------------------------------------------------------------------- behaviour cloning


def cloning(kind: str, shape: Any, **config: Any) -> Any:
    torch.manual_seed(0)
    model = {"obs_shape": 3, "action_shape": shape, "action_space": kind, "encoder_hidden_size_list": [8]}
    box = {"action_low": [-2.0] * 2, "action_high": [2.0] * 2} if kind == "continuous" else {}
    policy = BCPolicy(deep_merge({"model": {**model, **box}}, config))
    policy.seed(0)
    return policy


def test_bc_of_discrete_actions_is_their_cross_entropy() -> None:
    policy, obs, action = cloning("discrete", 3), torch.randn(4, 3), torch.tensor([0, 2, 1, 1])
    expected = torch.nn.functional.cross_entropy(policy.model(obs)["logit"], action)
    assert_close(policy.loss({"obs": obs, "action": action})[0], expected)
    smooth = cloning("discrete", 3, learn={"ce_label_smooth": 0.2})
    expected = torch.nn.functional.cross_entropy(policy.model(obs)["logit"], action, label_smoothing=0.2)
    assert_close(smooth.loss({"obs": obs, "action": action})[0], expected)


def test_bc_of_several_discrete_actions_is_a_sum() -> None:
    policy, obs, action = cloning("discrete", [3, 2]), torch.randn(4, 3), torch.tensor([[0, 1], [2, 0], [1, 1], [1, 0]])
    parts = zip(policy.model(obs)["logit"], action.unbind(1), strict=True)
    expected = sum(torch.nn.functional.cross_entropy(logit, chosen) for logit, chosen in parts)
    assert_close(policy.loss({"obs": obs, "action": action})[0], expected)


@pytest.mark.parametrize("loss_type", ["nll", "mse_loss", "l1_loss"])
def test_bc_of_continuous_actions_equals_a_loop(loss_type: str) -> None:
    policy = cloning("continuous", 2, learn={"loss_type": loss_type})
    obs, action = torch.randn(4, 3), torch.rand(4, 2) * 4 - 2
    output, total = policy.model(obs)["logit"], 0.0
    for row in range(4):
        target = (action[row] / 2).tolist()  # half the box of [-2, 2]
        mu, log_sigma = output["mu"][row].tolist(), output["sigma"][row].log().tolist()
        errors = [t - m for t, m in zip(target, mu, strict=True)]
        squared, absolute = sum(e * e for e in errors) / 2, sum(abs(e) for e in errors) / 2
        total += {"nll": -log_density(mu, log_sigma, target), "mse_loss": squared, "l1_loss": absolute}[loss_type] / 4
    assert float(policy.loss({"obs": obs, "action": action})[0]) == pytest.approx(total, rel=1e-5)


def test_bc_of_hybrid_actions_adds_both_parts() -> None:
    policy = cloning("hybrid", {"action_type_shape": 3, "action_args_shape": 2})
    obs, action = torch.randn(4, 3), {"action_type": torch.tensor([0, 1, 2, 2]), "action_args": torch.rand(4, 2)}
    distribution = policy._distribution(policy._logit(obs), obs)
    assert_close(policy.loss({"obs": obs, "action": action})[0], -distribution.log_prob(action).mean())


def test_bc_refuses_options_without_an_effect() -> None:
    with pytest.raises(ValueError, match="loss_type must be 'nll' for discrete actions"):
        cloning("discrete", 3, learn={"loss_type": "mse_loss"})
    with pytest.raises(ValueError, match="ce_label_smooth must be 0 for continuous actions"):
        cloning("continuous", 2, learn={"ce_label_smooth": 0.1})


@pytest.mark.learns
def test_bc_imitates_the_mean_of_the_data(make_trainer: MakeTrainer, request: pytest.FixtureRequest) -> None:
    seed = learning_seed()
    torch.manual_seed(seed)
    policy = BCPolicy({"model": {"encoder_hidden_size_list": [32]}, "learn": {"batch_size": 64}})
    datamodule = OfflineDataModule(target_steps(2000, seed), TargetEnv, max_train_iter=400, seed=seed)
    make_trainer(limit_val_batches=0).fit(policy, datamodule)
    x = torch.linspace(-0.9, 0.9, 7)[:, None]
    error = (policy.eval_mode.forward(x)["action"] - 0.3 * x).abs().max()
    assert_reached(request, -float(error), -0.25)


# ---------------------------------------------------------------------- learning

NETWORK: Config = {"model": {"actor_head_hidden_size": 32, "critic_head_hidden_size": 32}, "learn": {"batch_size": 64}}
FAST = {"learning_rate_q": 3e-3, "learning_rate_policy": 3e-3}
CONFIGS: dict[str, Config] = {
    "td3_bc": {"learning_rate_actor": 3e-3, "learning_rate_critic": 3e-3},
    "iql": {**FAST, "learning_rate_value": 3e-3, "tau": 0.9},
    "awac": {**FAST, "beta": 3.0},
    "cql": {**FAST, "num_actions": 2},
}


@pytest.mark.learns
@pytest.mark.parametrize("name", CONFIGS)
def test_it_is_better_than_the_policy_that_made_the_data(
    name: str, make_trainer: MakeTrainer, request: pytest.FixtureRequest
) -> None:
    seed = learning_seed()
    torch.manual_seed(seed)
    changes = {"learn": CONFIGS[name], "eval": {"evaluator": {"n_episode": 100, "eval_freq": 100_000}}}
    policy = create_policy({"type": name, **deep_merge(NETWORK, changes)})
    datamodule = OfflineDataModule(target_steps(2000, seed), TargetEnv, max_train_iter=500, seed=seed)
    trainer = make_trainer(limit_val_batches=0)
    trainer.fit(policy, datamodule)
    (after,) = trainer.test(policy, datamodule, verbose=False)
    # the mean of the data's policy, 0.3 x, misses x by 0.7 x in units of 2: 1 - 0.49 / 4 / 3 = 0.959
    assert datamodule.statistics.return_mean < 0.9
    assert_reached(request, after["test/return_mean"], 0.94)
