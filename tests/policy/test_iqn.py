"""IQN and FQF: random levels and their source, targets worked out by hand, and the two steps of FQF.

The network's value at level tau is a table's slope of the state and action times tau. State 0 is where the agent was,
state 1 where it went; gamma is 0.5. There the online slopes are (0, 1), so double Q-learning takes action 1, and the
target's are (8, 2).
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from lightning_ding import nested
from lightning_ding.model import FQF, IQN
from lightning_ding.policy import FQFPolicy, IQNPolicy, create_policy
from tests.policy.base.small_dqn import make_batch as random_batch
from tests.policy.tables import make_batch

ONLINE, TARGET = [[3.0, 4.0], [0.0, 1.0]], [[0.0, 0.0], [8.0, 2.0]]
MODEL = {"obs_shape": 4, "action_shape": 3, "encoder_hidden_size_list": [16]}


class SlopeNet(nn.Module):
    """Values that rise linearly with the level."""

    def __init__(self, table: list[list[float]]) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.tensor(table))

    def forward(self, obs: Any, tau: Tensor | None = None) -> dict[str, Tensor]:
        slope = self.table[(obs["state"] if isinstance(obs, dict) else obs).long().reshape(-1)]
        tau = torch.full((len(slope), 1), 0.5) if tau is None else tau
        q = slope[:, :, None] * tau[:, None]
        return {"logit": q.mean(2), "q": q, "tau": tau}


def make_policy(**cfg: Any) -> Any:
    """Return IQN on the tables above."""
    policy: Any = IQNPolicy({"discount_factor": 0.5, **cfg}, model=SlopeNet(ONLINE))
    policy.target_model.table.data = torch.tensor(TARGET)
    policy.seed(0)
    return policy


LEVELS = {"tau": torch.tensor([[0.5], [0.25]]), "tau_t": torch.tensor([[0.5, 0.25]] * 2)}


def with_levels(policy: Any, **changes: Any) -> dict[str, Any]:
    """Return a prepared minibatch with the levels above in place of random ones."""
    found: dict[str, Any] = policy.prepare(policy._with_discount(make_batch(**changes)) | LEVELS)
    return found


@pytest.mark.parametrize(("double_q", "slope"), [(True, 2.0), (False, 8.0)])
def test_target_is_taken_at_its_own_levels(double_q: bool, slope: float) -> None:
    policy = make_policy(learn={"double_q": double_q})
    target = policy._target(with_levels(policy))
    expected = [[1 + 0.25 * slope, 1 + 0.125 * slope], [-1 + 0.25 * slope, -1 + 0.125 * slope]]
    assert_close(target, torch.tensor(expected))


def test_loss_is_divided_by_kappa() -> None:
    # predictions 3 / 2 and 4 / 4; targets (1.5, 1.25) and (-0.5, -0.75): errors (0, -0.25) and (-1.5, -1.75)
    # kappa 0.5: row 0: 0.5 * 0.25^2 / 2 / 2 = 1/128; row 1: 0.75 * 0.5 * ((1.5 - 0.25) + (1.75 - 0.25)) / 2 = 0.515625
    policy = make_policy(learn={"kappa": 0.5})
    loss, _ = policy.loss(with_levels(policy))
    assert_close(loss.item(), (1 / 128 + 0.515625) / 2 / 0.5)


def test_value_ends_at_a_terminal_state_but_not_at_a_time_limit() -> None:
    ends = {"terminated": torch.tensor([True, False]), "truncated": torch.tensor([False, True])}
    policy = make_policy()
    target = policy._target(with_levels(policy, **ends))
    assert_close(target, torch.tensor([[1.0, 1.0], [-0.5, -0.75]]))


def test_next_action_is_legal() -> None:
    next_obs = {"state": torch.ones(2), "action_mask": torch.tensor([[1, 0], [0, 1]])}
    policy = make_policy()
    target = policy._target(with_levels(policy, next_obs=next_obs))
    assert_close(target, torch.tensor([[1 + 2.0, 1 + 1.0], [-0.5, -0.75]]))


def test_levels_come_from_the_generator_of_the_policy_and_are_uniform() -> None:
    policy, other = make_policy(learn={"num_target_quantiles": 5}), make_policy(learn={"num_target_quantiles": 5})
    data = {"reward": torch.zeros(300, 16), "terminated": torch.zeros(300, 16, dtype=torch.bool)}
    torch.manual_seed(1)
    prepared = policy._with_discount(data)
    torch.manual_seed(2)
    again = other._with_discount(data)
    for name, number in (("tau", 8), ("tau_t", 5)):
        assert prepared[name].shape == (300, 16, number)
        assert torch.equal(prepared[name], again[name])
        assert 0 <= prepared[name].min() < 0.01
        assert 0.99 < prepared[name].max() <= 1
        assert prepared[name].mean().item() == pytest.approx(0.5, abs=0.01)
    assert not torch.equal(policy._with_discount(data)["tau"], prepared["tau"])


def test_prepared_minibatch_keeps_its_levels() -> None:
    policy = make_policy()
    prepared = policy.prepare(make_batch())
    assert torch.equal(policy.prepare(prepared)["tau"], prepared["tau"])


def test_prepared_round_gives_the_targets_of_single_minibatches() -> None:
    policy: Any = IQNPolicy({"model": MODEL})
    stacked = {name: torch.stack([column, column.flip(0)]) for name, column in random_batch().items()}
    prepared = policy._prepare_round(stacked)
    for number in range(2):
        batch = nested.index(prepared, number)
        alone = policy.prepare({name: value for name, value in batch.items() if name != "target"})
        assert_close(policy._target(batch), policy._target(alone))


def test_acting_needs_no_random_levels() -> None:
    policy: Any = IQNPolicy({"model": MODEL})
    policy.seed(0)
    before = policy.rng.bit_generator.state
    policy.eval_mode.forward(torch.randn(5, 4))
    assert policy.rng.bit_generator.state == before


# FQF


def test_proposed_levels_divide_the_unit_interval() -> None:
    policy: Any = FQFPolicy({"model": {**MODEL, "num_quantiles": 6}})
    output, proposed = policy.model(torch.randn(5, 4)), policy.model.propose(torch.randn(5, 4))
    ends = proposed["ends"]
    assert_close(ends[:, [0, -1]], torch.tensor([[0.0, 1.0]]).expand(5, 2))
    assert (ends.diff(dim=1) > 0).all()
    assert_close(output["tau"], ((torch.arange(6) + 0.5) / 6).expand(5, 6), rtol=0, atol=0.03)  # nearly equal at first
    assert proposed["entropy"].mean().item() == pytest.approx(torch.tensor(6.0).log().item(), abs=0.01)


def test_action_value_weighs_the_values_with_the_sizes_of_the_parts() -> None:
    policy: Any = FQFPolicy({"model": {**MODEL, "num_quantiles": 3}})
    layer, obs = policy.model.fraction.layer, torch.randn(5, 4)
    nn.init.zeros_(layer.weight)
    layer.bias.data = torch.tensor([0.2, 0.3, 0.5]).log()
    output = policy.model(obs)
    assert_close(output["tau"], torch.tensor([[0.1, 0.35, 0.75]]).expand(5, 3))
    assert_close(output["logit"], (output["q"] * torch.tensor([0.2, 0.3, 0.5])).sum(2))


def test_each_loss_trains_its_part_of_the_network() -> None:
    policy: Any = FQFPolicy({"model": MODEL})
    batch = policy.prepare(random_batch())
    for loss, is_fraction in ((policy.fraction_loss, True), (policy.loss, False)):
        policy.zero_grad()
        loss(batch)[0].backward()
        trained = {name for name, one in policy.model.named_parameters() if one.grad is not None}
        assert trained == {
            name for name, _ in policy.model.named_parameters() if name.startswith("fraction.") == is_fraction
        }
    (first, second) = policy.updater.optimizers
    sizes = [sum(one.numel() for group in kind.param_groups for one in group["params"]) for kind in (first, second)]
    assert sum(sizes) == sum(one.numel() for one in policy.model.parameters())


def test_entropy_keeps_the_parts_equal() -> None:
    learn = {"learning_rate_fraction": 0.05, "ent_coef": 10.0}
    policy: Any = FQFPolicy({"model": {**MODEL, "num_quantiles": 4}, "learn": learn})
    nn.init.normal_(policy.model.fraction.layer.weight)
    batch = random_batch()
    entropies = [policy.learn_mode.forward(dict(batch))["fraction_entropy"].mean().item() for _ in range(30)]
    assert entropies[-1] > entropies[0] + 0.1


@pytest.mark.parametrize(
    ("name", "config", "message"),
    [
        ("iqn", {"model": {"num_quantiles": 0}}, "model.num_quantiles must be >= 1, got 0"),
        ("iqn", {"model": {"quantile_embedding_size": 0}}, "model.quantile_embedding_size must be >= 1, got 0"),
        ("iqn", {"learn": {"num_quantiles": 0}}, "learn.num_quantiles must be >= 1, got 0"),
        ("iqn", {"learn": {"num_target_quantiles": 0}}, "learn.num_target_quantiles must be >= 1, got 0"),
        ("fqf", {"learn": {"learning_rate_fraction": 0.0}}, "learn.learning_rate_fraction must be > 0, got 0.0"),
        ("fqf", {"learn": {"ent_coef": -1.0}}, "learn.ent_coef must be >= 0, got -1.0"),
    ],
)
def test_wrong_options_are_refused(name: str, config: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        create_policy({"type": name, **config})


@pytest.mark.parametrize("model", [IQN, FQF])
@pytest.mark.parametrize(
    ("options", "widths"),
    [
        ({}, [16, 16, 3]),  # a hidden layer after the product with the embedding
        ({"head_hidden_size": 8}, [16, 8, 3]),
        ({"head_layer_num": 0}, [16, 3]),
        ({"head_layer_num": 2}, [16, 16, 16, 3]),
    ],
)
def test_head_has_a_hidden_layer_after_the_embedding(model: Any, options: dict[str, Any], widths: list[int]) -> None:
    layers = model(**MODEL, **options).head.values.layers
    assert [layers[0].in_features, *(layer.out_features for layer in layers)] == widths
