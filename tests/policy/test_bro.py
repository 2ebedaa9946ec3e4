"""BRO against numbers worked out by hand: its targets, both actors, and the weights of the explorer's objective.

Two critics predict two quantiles each, which are weights times the action's sum. The outputs of the actor and the shift
of the explorer are weights.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from lightning_ding.config import deep_merge
from lightning_ding.policy import BROPolicy
from tests.policy.tables import TinyActor, Weights, make_box_batch

ONLINE = [[0.0, 1.0], [4.0, -1.0]]
TARGET = [[1.0, 9.0], [3.0, 5.0]]
SHIFT = 0.3
ACTION = math.tanh(0.5)
LOG_PROB = -0.125 - 0.5 * math.log(2 * math.pi) - math.log(1 - ACTION**2)
SMALL: dict[str, Any] = {"actor_head_hidden_size": 8, "critic_head_hidden_size": 8, "num_quantiles": 3}
HYBRID = {"obs_shape": 3, "action_shape": {"action_type_shape": 2, "action_args_shape": 1}}


class TinyBRO(TinyActor):
    """The network of the docstring above."""

    def __init__(self, critics: Any) -> None:
        super().__init__(critics)
        self.explorer = Weights([SHIFT])

    def compute_explorer(self, obs: Tensor, mu: Tensor) -> Tensor:
        return mu + self.explorer.values

    def compute_critic(self, obs: Tensor, action: Tensor, members: int | None = None) -> dict[str, Tensor]:
        quantile = self.critic.values[:, None] * action.sum(1)[:, None]
        return {"q_value": quantile.mean(2), "quantile": quantile, "tau": torch.tensor([0.25, 0.75])}


def make_policy(**cfg: Any) -> BROPolicy:
    model = {"action_low": [-1.0], "action_high": [1.0], "num_quantiles": 2}
    learn = {"alpha": 0.25, "reset_at": [], **cfg.pop("learn", {})}
    policy = BROPolicy({"discount_factor": 0.5, "model": model, "learn": learn, **cfg}, model=TinyBRO(ONLINE))
    policy.target_model.load_state_dict(TinyBRO(TARGET).state_dict())
    return policy


def make_network_policy(**changes: Any) -> BROPolicy:
    torch.manual_seed(0)
    return BROPolicy(deep_merge({"model": {"obs_shape": 3, "action_shape": 2, **SMALL}}, changes))


def make_batch(policy: BROPolicy, **changes: Any) -> Any:
    """Return two transitions with action 1, the second of which terminates, and noise of half a standard deviation."""
    noise = {name: torch.full((2, 1), 0.5) for name in ("noise", "next_noise", "explorer_noise")}
    return policy.prepare(make_box_batch(**changes)) | noise


@pytest.mark.parametrize(("pessimism", "weights"), [(0.0, (2.0, 7.0)), (1.0, (1.0, 5.0)), (0.5, (1.5, 6.0))])
def test_the_target_is_the_mean_of_the_critics_less_their_spread(pessimism: float, weights: Any) -> None:
    """The critics' quantiles are 1 and 9, and 3 and 5, times the action: means 2 and 7, spreads 1 and 2."""
    policy = make_policy(learn={"pessimism": pessimism})
    kept = [1 + 0.5 * (weight * ACTION - 0.25 * LOG_PROB) for weight in weights]
    assert_close(policy._targets(make_batch(policy)), torch.tensor([kept, [-1.0, -1.0]]))


def test_the_targets_of_the_quantile_loss_ascend() -> None:
    policy = make_policy()
    policy.target_model.load_state_dict(TinyBRO([[5.0, 1.0], [5.0, 1.0]]).state_dict())
    first, second = policy._targets(make_batch(policy))[0].tolist()
    assert (first, second) == pytest.approx(
        (1 + 0.5 * (ACTION - 0.25 * LOG_PROB), 1 + 0.5 * (5 * ACTION - 0.25 * LOG_PROB))
    )


@pytest.mark.parametrize(("pessimism", "weight"), [(0.0, 1.0), (1.0, -0.5)])
def test_the_actor_climbs_the_mean_less_the_spread_of_each_quantile(pessimism: float, weight: float) -> None:
    """Quantile 1: mean 2, spread 2; quantile 2: mean 0, spread 1; so (2 + 0) / 2, and (0 - 1) / 2 with pessimism 1."""
    policy = make_policy(learn={"pessimism": pessimism})
    loss, _ = policy.actor_loss(make_batch(policy))
    assert loss.item() == pytest.approx(0.25 * LOG_PROB - weight * ACTION, rel=1e-5)


def test_the_explorer_climbs_the_mean_and_the_spread_and_stays_near_the_actor() -> None:
    """sigma is 1: the explorer acts with 0.3 + 0.6 * 0.5, and its divergence is 0.3^2 / 2.

    Bound: mean 2 + 0.5 * 2 and mean 0 + 0.5 * 1, so 1.75 times the action.
    """
    policy = make_policy(learn={"optimism": 0.5, "kl_weight": 2.0, "std_multiplier": 0.6})
    loss, report = policy.explorer_loss(make_batch(policy))
    action = math.tanh(0.6)
    assert loss.item() == pytest.approx(2.0 * 0.045 - 1.75 * action, rel=1e-5)
    assert [report[name].item() for name in ("kl", "optimism", "kl_weight")] == pytest.approx([0.045, 0.5, 2.0])
    (gradient,) = torch.autograd.grad(loss, policy.model.explorer.values)
    assert gradient.item() == pytest.approx(2.0 * SHIFT - 1.75 * (1 - action**2), rel=1e-5)


def test_the_divergence_is_that_of_the_explorer_without_its_smaller_deviation() -> None:
    policy = make_network_policy()
    with torch.no_grad():
        for parameter in policy.model.explorer.parameters():
            parameter.add_(0.1)
    obs = torch.randn(7, 3)
    batch: Any = {"obs": obs, "explorer_noise": torch.randn(7, 2)}
    loss, report = policy.explorer_loss(batch)
    output = policy.model.compute_actor(obs)
    mu, sigma = policy.model.compute_explorer(obs, output["mu"]), output["log_sigma"].exp()
    expected = [
        torch.distributions.kl_divergence(
            torch.distributions.Normal(mu[row], sigma[row]), torch.distributions.Normal(output["mu"][row], sigma[row])
        ).sum()
        for row in range(7)
    ]
    kl = sum(one.item() for one in expected) / 7
    assert report["kl"].item() == pytest.approx(kl / 2, rel=1e-4)
    action = (mu + 0.75 * sigma * batch["explorer_noise"]).tanh()
    quantile = policy.model.compute_critic(obs, action)["quantile"]
    bound = (quantile.mean(0) + (quantile[0] - quantile[1]).abs() / 2).mean()
    assert loss.item() == pytest.approx(0.25 * kl - bound.item(), rel=1e-4)


@pytest.mark.parametrize(("kl", "grows"), [(0.02, "optimism"), (0.5, "kl_weight")])
def test_one_weight_grows_while_the_divergence_is_too_small_and_the_other_while_it_is_too_large(
    kl: float, grows: str
) -> None:
    policy = make_policy()
    before = policy.weights
    loss, _ = policy.weights_loss({"kl": torch.tensor(kl)})
    assert loss.item() == pytest.approx((1.0 - 0.25) * (kl - 0.05), rel=1e-4)
    policy.updater.step(loss, policy._explorer_index + 1)
    optimism, kl_weight = (policy.weights - before).tolist()
    assert (optimism > 0, kl_weight > 0) == (grows == "optimism", grows == "kl_weight")


def test_the_weights_begin_as_in_the_config_and_stay_in_their_range() -> None:
    policy = make_policy(learn={"optimism": 3.0, "kl_weight": 1e-3})
    assert policy.weights.tolist() == pytest.approx([3.0, 1e-3], rel=1e-4)
    with torch.no_grad():
        policy.raw_weights.copy_(torch.tensor([100.0, -100.0]))
    assert policy.weights.tolist() == pytest.approx([math.exp(7.5), math.exp(-10.0)], rel=1e-4)


def test_the_explorer_collects_and_the_actor_is_evaluated(monkeypatch: pytest.MonkeyPatch) -> None:
    """The explorer acts with its mean of 0.3 and half of its deviation of 0.75, the actor with its mean of 0."""
    policy = make_policy()
    monkeypatch.setattr(policy, "_standard_normal", lambda shape: np.full(shape, 0.5, dtype=np.float32))
    obs = torch.zeros(2, 3)
    assert policy.eval_mode.forward(obs)["action"].tolist() == [[0.0], [0.0]]
    collected = policy.collect_mode.forward(obs)["action"]
    assert_close(collected, torch.full((2, 1), math.tanh(SHIFT + 0.75 * 0.5)))


def test_the_explorer_begins_near_the_actor() -> None:
    policy = make_network_policy()
    obs = torch.randn(20, 3)
    mu = policy.model.compute_actor(obs)["mu"]
    shift = (policy.model.compute_explorer(obs, mu) - mu).abs().max()
    assert 0 < shift < 0.1
    last = policy.model.explorer.head.output
    assert_close(last.weight[0].T @ last.weight[0], 1e-4 * torch.eye(2))
    assert not last.bias.any()


def test_the_layers_of_the_explorer_are_normalised_as_the_actors_are() -> None:
    plain = {"actor_layers": {"type": "mlp"}, "critic_layers": {"type": "mlp"}}
    scales = []
    for layer_norm in (False, True):
        model = make_network_policy(model={**plain, "layer_norm": layer_norm}).model
        scales.append(len(model.explorer.head.scales))
        mu = model.compute_actor(torch.zeros(4, 3))["mu"]
        assert 0 < (model.compute_explorer(torch.zeros(4, 3), mu) - mu).abs().max() < 0.1
    assert scales == [0, 2]


def test_an_update_moves_all_parts_and_only_weights_of_networks_decay() -> None:
    policy = make_network_policy(learn={"reset_at": []})
    decays = [one.param_groups[0]["weight_decay"] for one in policy.updater.optimizers]
    assert decays == [1e-4, 1e-4, 0.0, 1e-4, 0.0]
    before = {name: value.clone() for name, value in policy.state_dict().items()}
    rows = {"obs": torch.randn(8, 3), "action": torch.rand(8, 2), "next_obs": torch.randn(8, 3)}
    batch = {**rows, "reward": torch.randn(8), "terminated": torch.zeros(8, dtype=torch.bool)}
    policy.learn_mode.forward(batch)
    changed = {
        name.split(".")[1] if "." in name else name
        for name, value in policy.state_dict().items()
        if not torch.equal(value, before[name])
    }
    assert changed == {"actor", "critic", "explorer", "temperature", "raw_weights"}


def test_a_reset_renews_the_weights_and_both_actors() -> None:
    policy = make_network_policy(learn={"reset_at": [1]})
    rows = {"obs": torch.randn(8, 3), "action": torch.rand(8, 2), "next_obs": torch.randn(8, 3)}
    explorer = policy.model.explorer.head.output.weight.clone()
    policy.raw_weights.data.add_(0.5)
    policy.learn_mode.forward({**rows, "reward": torch.randn(8), "terminated": torch.zeros(8, dtype=torch.bool)})
    assert policy.weights.tolist() == pytest.approx([1.0, 0.25], rel=1e-4)
    assert (policy.model.explorer.head.output.weight - explorer).abs().max() > 1e-3


def test_a_network_that_is_passed_needs_a_config_without_resets() -> None:
    allowed = r"learn.reset_freq and learn.reset_at must be None and \[\] with a network that is passed as model"
    with pytest.raises(ValueError, match=allowed):
        BROPolicy({"model": {"action_low": [-1.0], "action_high": [1.0]}}, model=TinyBRO(ONLINE))


def test_the_target_entropy_is_minus_half_the_dimensions() -> None:
    assert make_network_policy()._target_entropy({}) == -1.0
    assert make_network_policy(learn={"target_entropy": -3.0})._target_entropy({}) == -3.0


def test_learned_weights_are_part_of_the_learning_state() -> None:
    policy, other = make_network_policy(), make_network_policy()
    policy.raw_weights.data.add_(0.25)
    other.learn_mode.load_state_dict(policy.learn_mode.state_dict())
    assert torch.equal(other.raw_weights, policy.raw_weights)


@pytest.mark.parametrize(
    ("cfg", "message"),
    [
        ({"model": {"ensemble_num": 0}}, "model.ensemble_num must be >= 1, got 0"),
        ({"model": HYBRID}, "action_shape must be a number of dimensions for actions without a choice"),
        ({"model": {"num_quantiles": 0}}, "model.num_quantiles must be >= 1, got 0"),
        ({"model": {"actor_layers": {"type": "simba_v2"}}}, "model.actor_layers.type must be mlp, simba or bronet"),
        ({"learn": {"kappa": 0.0}}, "learn.kappa must be > 0, got 0.0"),
        ({"learn": {"std_multiplier": 0.0}}, "learn.std_multiplier must be > 0, got 0.0"),
        ({"learn": {"learning_rate_weights": 0.0}}, "learn.learning_rate_weights must be > 0, got 0.0"),
        ({"learn": {"pessimism": -1.0}}, "learn.pessimism must be >= 0, got -1.0"),
        ({"learn": {"kl_target": -1.0}}, "learn.kl_target must be >= 0, got -1.0"),
        ({"learn": {"optimism": 0.0}}, r"learn.optimism must be in \(e\^-10, e\^7.5\), got 0.0"),
        ({"learn": {"kl_weight": 2000.0}}, r"learn.kl_weight must be in \(e\^-10, e\^7.5\), got 2000.0"),
    ],
)
def test_a_value_that_is_out_of_its_range_is_refused(cfg: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BROPolicy(cfg)
