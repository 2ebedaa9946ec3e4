"""PPO's loss against numbers worked out by hand, and the other steps of a round.

State 0 has the probabilities (1/4, 3/4) and the value 1, state 1 has (1/2, 1/2) and 3. Row 0 took action 1 in state 0,
row 1 action 0 in state 1, when both had the probability 1/2: ratios 1.5 and 1. Advantages are 2 and -1, returns 2
and 1. The clipped objective is therefore (1.2 * 2 - 1) / 2 = 0.7, the critic's loss (1^2 + 2^2) / 2 / 2 = 1.25.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Normal
from torch.testing import assert_close

from lightning_ding.policy import PPOPolicy

PROBABILITY = [[0.25, 0.75], [0.5, 0.5]]
VALUE = [1.0, 3.0]
ENTROPY = -(0.25 * math.log(0.25) + 0.75 * math.log(0.75) + math.log(0.5)) / 2
Config = dict[str, Any]


class TableNet(nn.Module):
    """Looks up what describes the distribution over actions, and the value, of a state."""

    def __init__(self, logit: Any, value: list[float]) -> None:
        super().__init__()
        self.leaves = nn.ParameterList()
        self.logit = self._register(logit)
        self.value = nn.Parameter(torch.tensor(value))

    def _register(self, logit: Any) -> Any:
        if isinstance(logit, Mapping):
            return {name: self._register(below) for name, below in logit.items()}
        if isinstance(logit, list):
            return [self._register(below) for below in logit]
        self.leaves.append(nn.Parameter(logit))
        return len(self.leaves) - 1

    def _look_up(self, logit: Any, state: Tensor) -> Any:
        if isinstance(logit, Mapping):
            return {name: self._look_up(below, state) for name, below in logit.items()}
        if isinstance(logit, list):
            return [self._look_up(below, state) for below in logit]
        return self.leaves[logit][state]

    def compute_actor(self, obs: Any) -> Any:
        return {"logit": self._look_up(self.logit, state_of(obs))}

    def compute_critic(self, obs: Any) -> Any:
        return {"value": self.value[state_of(obs)]}

    def compute_actor_critic(self, obs: Any) -> Any:
        return self.compute_actor(obs) | self.compute_critic(obs)


class ScaledTableNet(TableNet):
    """The same tables, and a layer by which the scale of the values can change."""

    def __init__(self, logit: Any, value: Any) -> None:
        super().__init__(logit, value)
        self.critic_output = nn.Linear(1, 1)
        nn.init.ones_(self.critic_output.weight)
        nn.init.zeros_(self.critic_output.bias)

    def compute_critic(self, obs: Any) -> Any:
        return {"value": self.critic_output(self.value[state_of(obs)].unsqueeze(1)).squeeze(1)}


def state_of(obs: Any) -> Tensor:
    state: Tensor = obs["state"] if isinstance(obs, dict) else obs
    return state.long().reshape(-1)


def make_policy(logit: Any = None, model: Config | None = None, **learn: Any) -> PPOPolicy:
    """Return a policy on the tables above, that standardises nothing."""
    section = {"action_space": "discrete", "action_shape": 2, "obs_shape": 1, **(model or {})}
    settings = {"value_norm": False, "adv_norm": False, **learn}
    logit = torch.tensor(PROBABILITY).log() if logit is None else logit
    network = ScaledTableNet if settings["value_norm"] else TableNet
    return PPOPolicy({"model": section, "learn": settings}, model=network(logit, VALUE))


def make_batch(**changes: Any) -> Any:
    return {
        "obs": torch.tensor([[0.0], [1.0]]),
        "action": torch.tensor([1, 0]),
        "log_prob": torch.tensor([0.5, 0.5]).log(),
        "value": torch.tensor([0.0, 3.5]),
        "advantage": torch.tensor([2.0, -1.0]),
        "return": torch.tensor([2.0, 1.0]),
        **changes,
    }


def loss_of(policy: PPOPolicy, batch: Any) -> float:
    return policy.loss(batch)[0].item()


# Loss


@pytest.mark.parametrize(
    ("learn", "expected"),
    [
        ({}, -0.7 + 0.5 * 1.25),
        ({"clip_ratio": 0.6}, -1.0 + 0.5 * 1.25),  # nothing is clipped: (1.5 * 2 - 1) / 2
        ({"value_weight": 2.0}, -0.7 + 2.5),
        ({"entropy_weight": 0.1}, -0.7 + 0.5 * 1.25 - 0.1 * ENTROPY),
        # values may go from 0 to 0.5 and from 3.5 to 3: errors 1.5 and 2, (2.25 + 4) / 2 / 2
        ({"value_clip": 0.5}, -0.7 + 0.5 * 1.5625),
    ],
)
def test_loss_is_the_sum_of_its_weighed_parts(learn: Config, expected: float) -> None:
    assert loss_of(make_policy(**learn), make_batch()) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(("dual_clip", "expected"), [(None, 3.5), (2.0, 2.5), (4.0, 3.5)])
def test_dual_clip_bounds_the_loss_of_a_negative_advantage(dual_clip: float | None, expected: float) -> None:
    # row 0: ratio 3 and advantage -2 cost 6, or at most dual_clip * 2; row 1 costs 1
    batch = make_batch(log_prob=torch.tensor([0.25, 0.5]).log(), advantage=torch.tensor([-2.0, -1.0]))
    assert loss_of(make_policy(dual_clip=dual_clip, value_weight=0.0), batch) == pytest.approx(expected, rel=1e-6)


def test_loss_reports_its_parts_without_gradient() -> None:
    _, report = make_policy(entropy_weight=0.1).loss(make_batch())
    kl = (0.5 - math.log(1.5)) / 2  # of the ratios 1.5 and 1
    expected = {"total_loss": -0.075 - 0.1 * ENTROPY, "policy_loss": -0.7, "value_loss": 1.25}
    expected |= {"entropy_loss": ENTROPY, "approx_kl": kl, "clip_fraction": 0.5}
    assert {name: value.item() for name, value in report.items()} == pytest.approx(expected, rel=1e-5)
    assert not any(value.requires_grad for value in report.values())


def test_gradient_of_a_clipped_row_is_zero() -> None:
    policy = make_policy(value_weight=0.0)
    policy.loss(make_batch())[0].backward()
    model: Any = policy.model
    assert model.leaves[0].grad[0].tolist() == [0.0, 0.0]
    # row 1: minus the advantage of -1, halved, times grad log p = (1/2, -1/2)
    assert_close(model.leaves[0].grad[1], torch.tensor([0.25, -0.25]))


def test_loss_of_masked_actions_takes_probabilities_among_the_legal_ones() -> None:
    # row 0: only action 1 is legal, so its probability is 1, the ratio 2 and the entropy 0; row 1 is free
    mask = torch.tensor([[0, 1], [1, 1]])
    batch = make_batch(obs={"state": torch.tensor([[0.0], [1.0]]), "action_mask": mask})
    policy = make_policy(clip_ratio=3.0, entropy_weight=1.0, value_weight=0.0)
    assert loss_of(policy, batch) == pytest.approx(-(2 * 2 - 1) / 2 - math.log(2) / 2, rel=1e-6)


def surrogate(log_prob: Tensor, entropy: Tensor, batch: Config) -> float:
    """Return the loss row by row, with clip ratio 0.2, entropy weight 0.1 and the critic's loss of 1.25."""
    total = 0.0
    for new, old, advantage in zip(log_prob.tolist(), batch["log_prob"].tolist(), [2.0, -1.0], strict=True):
        ratio = math.exp(new - old)
        total += min(ratio * advantage, min(max(ratio, 0.8), 1.2) * advantage)
    return -total / 2 + 0.5 * 1.25 - 0.1 * entropy.mean().item()


MU, SIGMA = torch.tensor([[0.5, -1.0], [0.0, 2.0]]), torch.tensor([[2.0, 0.5], [1.0, 0.3]])
DRAWN = torch.tensor([[1.5, -1.2], [0.3, 2.2]])
PARTS = [torch.tensor([[0.1, 0.9, -0.4], [0.2, 0.0, 1.0]]), torch.tensor([[1.0, 0.0], [0.3, 0.8]])]


def test_loss_of_a_continuous_action_takes_its_density_over_all_dimensions() -> None:
    policy = make_policy(
        {"mu": MU, "sigma": SIGMA}, {"action_space": "continuous", "action_shape": 2}, entropy_weight=0.1
    )
    batch = make_batch(action=DRAWN, log_prob=torch.tensor([-2.3, -1.2]))
    normal = Normal(MU, SIGMA)
    expected = surrogate(normal.log_prob(DRAWN).sum(1), normal.entropy().sum(1), batch)
    assert loss_of(policy, batch) == pytest.approx(expected, rel=1e-5)


def test_loss_of_a_multi_discrete_action_takes_the_probability_of_all_parts() -> None:
    policy = make_policy(list(PARTS), {"action_shape": [3, 2]}, entropy_weight=0.1)
    action = torch.tensor([[1, 0], [2, 1]])
    batch = make_batch(action=action, log_prob=torch.tensor([-1.2, -0.9]))
    parts = [Categorical(logits=logit) for logit in PARTS]
    log_prob = sum((part.log_prob(action[:, i]) for i, part in enumerate(parts)), torch.zeros(2))
    expected = surrogate(log_prob, sum((part.entropy() for part in parts), torch.zeros(2)), batch)
    assert loss_of(policy, batch) == pytest.approx(expected, rel=1e-5)


def test_loss_of_a_hybrid_action_takes_the_probability_of_type_and_arguments() -> None:
    logit = {"action_type": PARTS[0], "action_args": {"mu": MU, "sigma": SIGMA}}
    shape = {"action_type_shape": 3, "action_args_shape": 2}
    policy = make_policy(logit, {"action_space": "hybrid", "action_shape": shape}, entropy_weight=0.1)
    action = {"action_type": torch.tensor([1, 0]), "action_args": DRAWN}
    batch = make_batch(action=action, log_prob=torch.tensor([-3.1, -2.6]))
    choice, normal = Categorical(logits=PARTS[0]), Normal(MU, SIGMA)
    log_prob = choice.log_prob(action["action_type"]) + normal.log_prob(DRAWN).sum(1)
    expected = surrogate(log_prob, choice.entropy() + normal.entropy().sum(1), batch)
    assert loss_of(policy, batch) == pytest.approx(expected, rel=1e-5)


# A round


def make_rollout(rewards: list[float], terminated_at: int = -1) -> Config:
    """Return a rollout of one env that goes through the states 0, 1, 0, 1, ..."""
    size = len(rewards)
    state = torch.arange(size + 1).remainder(2).float().unsqueeze(1)
    terminated = torch.zeros(size, dtype=torch.bool)
    if terminated_at >= 0:
        terminated[terminated_at] = True
    return {
        "obs": state[:-1],
        "next_obs": state[1:],
        "action": torch.zeros(size, dtype=torch.long),
        "log_prob": torch.full((size,), math.log(0.5)),
        "reward": torch.tensor(rewards),
        "terminated": terminated,
        "truncated": torch.zeros_like(terminated),
        "env_id": torch.zeros(size, dtype=torch.long),
        "episode_id": torch.cat([torch.zeros(1), terminated[:-1].long().cumsum(0)]).long(),
    }


def watch(policy: PPOPolicy, kl: list[float] | None = None) -> list[Config]:
    """Return the minibatches that the policy will be given; with ``kl`` they change nothing but report it."""
    seen: list[Config] = []
    minimise = policy.updater.minimise

    def spy(loss: Any, batch: Config, *args: Any, **kwargs: Any) -> Any:
        seen.append(batch)
        return minimise(loss, batch, *args, **kwargs) if kl is None else {"approx_kl": torch.tensor(kl[len(seen) - 1])}

    policy.updater.minimise = spy  # type: ignore[method-assign]
    return seen


def policy_values(policy: PPOPolicy) -> list[list[float]]:
    """Return the critic's table before each update, from now on."""
    model: Any = policy.model
    found, minimise = [model.value.tolist()], policy.updater.minimise

    def spy(*args: Any, **kwargs: Any) -> Any:
        report = minimise(*args, **kwargs)
        found.append(model.value.tolist())
        return report

    policy.updater.minimise = spy  # type: ignore[method-assign]
    return found


@pytest.mark.parametrize("recompute", [True, False])
def test_advantages_are_those_of_the_newest_critic_in_each_pass_if_asked_for(recompute: bool) -> None:
    policy = make_policy(batch_size=None, epoch_per_collect=3, learning_rate=0.1, value_weight=1.0)
    policy.config = dataclasses.replace(policy.config, recompute_adv=recompute, discount_factor=0.5)
    seen, critics = watch(policy), policy_values(policy)
    policy._learn(make_rollout([1.0]))
    assert len(seen) == 3
    for critic, batch in zip(critics, seen, strict=False):
        newest = critic if recompute else VALUE
        # of one step from state 0 to 1 that is not over: 1 + 0.5 V(1) - V(0)
        assert batch["advantage"].item() == pytest.approx(1 + 0.5 * newest[1] - newest[0], rel=1e-5)
        assert batch["return"].item() == pytest.approx(1 + 0.5 * newest[1], rel=1e-5)
        assert batch["value"].item() == 1.0  # of the network that acted, in all passes
    assert critics[2] != critics[0]


def test_critic_predicts_returns_divided_by_their_root_mean_square_and_values_stay_as_they_are() -> None:
    policy = make_policy(batch_size=None, epoch_per_collect=2, learning_rate=1e-12, value_norm=True)
    seen = watch(policy)
    rollout = make_rollout([4.0, 0.0], terminated_at=0)
    rollout["terminated"][1] = True
    policy._learn(dict(rollout))
    # both steps are terminal, so the returns are the rewards 4 and 0, and the advantages 4 - 1 and 0 - 3
    size = 8**0.5  # root of (16 + 0) / 2
    for batch in seen:  # in both passes
        assert sorted(batch["return"].tolist()) == pytest.approx([0.0, 4 / size])
        assert sorted(batch["value"].tolist()) == pytest.approx([1 / size, 3 / size])
        assert sorted(batch["advantage"].tolist()) == pytest.approx([-3.0, 3.0])
    assert policy.return_statistics.count == 2
    policy._learn({**rollout, "reward": torch.tensor([8.0, 0.0])})
    size = ((16 + 64) / 4) ** 0.5
    assert policy.return_statistics.root_mean_square.item() == pytest.approx(size)
    assert sorted(seen[2]["return"].tolist()) == pytest.approx([0.0, 8 / size])
    assert sorted(seen[2]["advantage"].tolist()) == pytest.approx([-3.0, 7.0])


def test_scale_of_the_critic_forgets_returns() -> None:
    policy: Any = make_policy(value_norm=True)
    policy._take_in_returns(torch.full((100_000,), 1e6))
    for _ in range(20):
        policy._take_in_returns(torch.full((1024,), -2.0))
    # older returns have the weight of 1,024 ones, so their share halves each time
    expected = (1e12 * 0.5**20 + 4 * (1 - 0.5**20)) ** 0.5
    assert policy.return_statistics.root_mean_square.item() == pytest.approx(expected)
    for _ in range(40):
        policy._take_in_returns(torch.full((1024,), -2.0))
    assert policy.return_statistics.root_mean_square.item() == pytest.approx(2.0, rel=1e-3)


def test_targets_of_returns_that_hardly_vary_stay_small() -> None:
    policy = make_policy(batch_size=None, epoch_per_collect=1, learning_rate=1e-12, value_norm=True)
    seen = watch(policy)
    rollout = make_rollout([-10.0, -10.0 + 1e-5], terminated_at=0)
    rollout["terminated"][1] = True
    policy._learn(dict(rollout))
    assert seen[0]["return"].abs().max().item() == pytest.approx(1.0, rel=1e-4)


def test_value_statistics_grow_once_a_round_whatever_the_number_of_passes() -> None:
    policy = make_policy(batch_size=2, epoch_per_collect=3, value_norm=True)
    policy._learn(make_rollout([1.0, 2.0, 3.0, 5.0]))
    assert policy.return_statistics.count == 4


@pytest.mark.parametrize(("adv_norm", "is_standard"), [(True, True), (False, False)])
def test_advantages_are_standardised_in_each_minibatch(adv_norm: bool, is_standard: bool) -> None:
    policy = make_policy(batch_size=3, epoch_per_collect=1, adv_norm=adv_norm)
    seen = watch(policy, kl=[0.0] * 9)
    policy._learn(make_rollout([1.0, -2.0, 3.0, 5.0, 0.5, 7.0]))
    assert len(seen) == 2
    for batch in seen:
        is_so = torch.allclose(batch["advantage"].mean(), torch.zeros(()), atol=1e-6)
        is_so &= torch.allclose(batch["advantage"].std(), torch.ones(()), atol=1e-5)
        assert is_so == is_standard


@pytest.mark.parametrize(
    ("target_kl", "passes"),
    [(None, 4), (0.2, 2), (0.05, 1), (0.9, 4)],  # the passes' means are 0.1, 0.3, 0.3 and 0.3
)
def test_passes_end_when_the_policy_has_moved_too_far_on_average(target_kl: float | None, passes: int) -> None:
    policy = make_policy(batch_size=2, epoch_per_collect=4, target_kl=target_kl)
    seen = watch(policy, kl=[0.0, 0.2, 0.1, 0.5, 0.3, 0.3, 0.3, 0.3])
    policy._learn(make_rollout([1.0, 2.0, 3.0, 4.0]))
    assert len(seen) == 2 * passes
    assert policy.progress.train_iter == 2 * passes


def test_initial_actor_is_nearly_uniform_and_weights_are_orthogonal() -> None:
    def layers(init: bool) -> list[Tensor]:
        torch.manual_seed(0)
        model = {"obs_shape": 4, "action_shape": 3, "action_space": "discrete", "encoder_hidden_size_list": [8]}
        policy = PPOPolicy({"model": model, "learn": {"ppo_param_init": init}})
        return [weight for name, weight in policy.model.named_parameters() if weight.ndim == 2]

    for weight in layers(True):
        small = weight if weight.shape[0] <= weight.shape[1] else weight.T
        gram = small @ small.T
        assert_close(gram, torch.eye(len(gram)) * gram[0, 0], atol=1e-5, rtol=1e-5)
    gains = sorted(torch.linalg.matrix_norm(weight, 2).item() for weight in layers(True))
    assert gains == pytest.approx([0.01, 1.0, math.sqrt(2)], rel=1e-4)
    assert all(not torch.equal(one, other) for one, other in zip(layers(True), layers(False), strict=True))


def test_a_model_of_ones_own_keeps_its_weights() -> None:
    assert_close(make_policy(ppo_param_init=True).model.state_dict()["value"], torch.tensor(VALUE))
