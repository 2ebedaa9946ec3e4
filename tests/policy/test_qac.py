"""What DDPG, TD3 and SAC share, and each of them, against numbers worked out by hand.

In the small network the actor's output is a weight, w, whatever the observation, and the critics' values are v_e times
the sum of the normalised action: nothing is hidden.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor
from torch.testing import assert_close

from lightning_ding.policy import DDPGPolicy, SACPolicy, TD3Policy, create_policy
from lightning_ding.policy.qac import QACPolicy
from tests.policy.tables import TinyActor, make_box_batch

SHAPES = {"obs_shape": 3, "action_shape": 1}
BOX = spaces.Box(-1, 1, (3,))
TORQUE = spaces.Box(-2, 2, (1,))
NAMES = ["ddpg", "td3", "sac"]
SMALL = {**SHAPES, "actor_head_hidden_size": 8, "critic_head_hidden_size": 8}


class TinyQAC(TinyActor):
    """The network of the docstring above."""

    def __init__(self, actor: tuple[float, ...], critics: tuple[float, ...]) -> None:
        super().__init__(critics, actor)

    def compute_critic(self, obs: Tensor, action: Tensor, members: int | None = None) -> dict[str, Tensor]:
        return {"q_value": self.critic.values[:members].unsqueeze(1) * action.sum(1)}


def make_tiny(
    name: str,
    online: tuple[tuple[float, ...], tuple[float, ...]],
    target: tuple[tuple[float, ...], tuple[float, ...]] | None = None,
    **cfg: Any,
) -> Any:
    """Return a policy on weights, gamma 0.5, bounds [-2, 2]."""
    bounds = {"model": {"action_low": [-2.0], "action_high": [2.0]}}
    policy: Any = create_policy({"type": name, "discount_factor": 0.5, **bounds, **cfg}, model=TinyQAC(*online))
    if target is not None:
        policy.target_model.load_state_dict(TinyQAC(*target).state_dict())
    return policy


def make_batch(**changes: Any) -> dict[str, Any]:
    """Actions 1 and -2 of the env are 0.5 and -1."""
    return make_box_batch(**{"action": torch.tensor([[1.0], [-2.0]]), **changes})


def random_batch(size: int = 16) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    numbers = {name: torch.from_numpy(rng.standard_normal((size, 3), dtype=np.float32)) for name in ("obs", "next_obs")}
    flags = {name: torch.zeros(size, dtype=torch.bool) for name in ("terminated", "truncated")}
    return {**numbers, **flags, "action": torch.ones(size, 1), "reward": numbers["obs"][:, 0], "IS": torch.ones(size)}


def make_small(name: str, **cfg: Any) -> Any:
    torch.manual_seed(0)
    policy = create_policy({"type": name, **cfg, "model": SMALL | cfg.get("model", {})})
    policy.seed(0)
    return policy


# Bounds


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shapes_known", [False, True])
def test_actions_are_in_the_units_of_the_env_however_the_policy_came_to_know_it(name: str, shapes_known: bool) -> None:
    policy: Any = create_policy({"type": name, **({"model": SHAPES} if shapes_known else {})})
    policy.build(BOX, TORQUE)
    assert policy.action_bounds.scale.tolist() == [2.0]
    assert policy.config.model.action_low == (-2.0,)
    last = policy.model.actor.head.layers[-1]
    last.weight.data.zero_()
    last.bias.data.fill_(10.0)
    assert_close(policy.eval_mode.forward(torch.zeros(4, 3))["action"], torch.full((4, 1), 2.0))


@pytest.mark.parametrize("name", NAMES)
def test_random_exploration_stays_in_the_box(name: str) -> None:
    policy = create_policy({"type": name, "model": {**SHAPES, "action_low": [-3.0], "action_high": [1.0]}})
    actions = torch.cat([policy.collect_mode.forward(torch.randn(8, 3) * 100)["action"] for _ in range(20)])
    assert actions.min() >= -3
    assert actions.max() <= 1


@pytest.mark.parametrize("name", NAMES)
def test_the_network_sees_normalised_actions_of_the_batch(name: str) -> None:
    policy = make_tiny(name, ((0.0, 0.0), (1.0, 1.0)))
    assert policy.prepare(make_batch())["action"].tolist() == [[0.5], [-1.0]]


# Config


@pytest.mark.parametrize("head", ["actor", "critic"])
def test_less_than_no_hidden_layers_are_refused(head: str) -> None:
    with pytest.raises(ValueError, match=f"model.{head}_head_layer_num must be >= 0, got -1"):
        SACPolicy({"model": {f"{head}_head_layer_num": -1}})


# Critics


@pytest.mark.parametrize("name", ["ddpg", "td3"])
def test_the_critics_learn_the_smaller_value_of_the_target_actor(name: str) -> None:
    """The target actor says 0.25, the target critics 2 and 4 times that: 1 + 0.5 * 0.5 = 1.25; terminated: -1.

    Values of the actions 0.5 and -1 are v * a = 0.5, -1 and 1.5, -3; squared errors 0.75^2, 0 and 0.25^2, 2^2; their
    means 0.28125 and 2.03125.
    """
    policy = make_tiny(name, ((0.5,), (1.0, 3.0)), ((0.25,), (2.0, 4.0)))
    batch = policy.prepare(make_batch()) | {"next_noise": torch.zeros(2, 1)}
    loss, report = policy.critic_loss(batch)
    assert report["target_q_value"].tolist() == [1.25, -1.0]
    assert loss.item() == 2.3125
    assert not loss.isnan()


def test_the_target_of_td3_is_smoothed_in_normalised_units() -> None:
    """The target actor says 0.9: with noise 0.05 it is 0.95, with 0.5 it is held at 1; the target critic doubles it."""
    policy = make_tiny("td3", ((0.5,), (1.0,)), ((0.9,), (2.0,)))
    batch = policy.prepare(make_batch(terminated=torch.zeros(2, dtype=torch.bool)))
    batch["next_noise"] = torch.tensor([[0.05], [0.5]])
    assert_close(policy.critic_loss(batch)[1]["target_q_value"], torch.tensor([1 + 0.95, -1 + 1.0]))


def test_the_noise_of_the_target_is_clipped() -> None:
    policy = make_small("td3", learn={"noise_sigma": 9.0, "noise_range": {"min": -0.25, "max": 0.125}})
    noise = policy.prepare(random_batch(64))["next_noise"]
    assert noise.shape == (64, 1)
    assert (noise.min().item(), noise.max().item()) == (-0.25, 0.125)


def test_the_target_of_sac_holds_the_entropy_of_the_true_final_observation() -> None:
    """The target critic values tanh(0.5) of the online actor; the truncated item bootstraps with the entropy.

    log pi = -0.5 * 0.5^2 - log sqrt(2 pi) - log(1 - tanh(0.5)^2) at sigma 1, noise 0.5, mu 0.
    """
    policy = make_tiny("sac", ((0.0, 0.0), (1.0, 1.0)), ((9.0, 9.0), (2.0, 4.0)), learn={"alpha": 0.25})
    batch = policy.prepare(make_batch()) | {"next_noise": torch.full((2, 1), 0.5)}
    action = math.tanh(0.5)
    log_prob = -0.125 - 0.5 * math.log(2 * math.pi) - math.log(1 - action**2)
    expected = torch.tensor([1 + 0.5 * (2 * action - 0.25 * log_prob), -1.0])
    assert_close(policy.critic_loss(batch)[1]["target_q_value"], expected)


@pytest.mark.parametrize("name", NAMES)
def test_several_steps_use_the_discount_of_the_batch(name: str) -> None:
    policy = make_tiny(name, ((0.5, 0.0), (1.0,)), nstep=3)
    assert policy.prepare(make_batch(discount=torch.tensor([0.125, 0.25])))["discount_t"].tolist() == [0.125, 0.0]
    with pytest.raises(KeyError, match="a batch needs 'discount'"):
        policy.prepare(make_batch())


def test_terminal_states_bootstrap_with_ignore_done() -> None:
    policy = make_tiny("ddpg", ((0.5,), (1.0,)), learn={"ignore_done": True})
    assert policy.prepare(make_batch())["discount_t"].tolist() == [0.5, 0.5]


def test_mistakes_are_named() -> None:
    policy = SACPolicy({"model": {**SHAPES, "action_low": [-1.0], "action_high": [1.0]}})
    with pytest.raises(ValueError, match=r"model.action_low is \[-1.0\] in the config, but the env has -2.0"):
        policy.build(BOX, TORQUE)
    with pytest.raises(ValueError, match="dimension 0 of the action must have finite bounds"):
        SACPolicy().build(BOX, spaces.Box(-np.inf, np.inf, (1,)))
    with pytest.raises(TypeError, match="SACPolicy needs a one-dimensional Box"):
        SACPolicy().build(BOX, spaces.Discrete(2))
    with pytest.raises(ValueError, match=r"reward must have the shape \(2,\), got \(2, 1\)"):
        make_tiny("sac", ((0.5, 0.0), (1.0,))).prepare(make_batch(reward=torch.ones(2, 1)))


def test_weights_weigh_the_errors_and_priorities_are_reported_only_if_asked() -> None:
    """Targets 1 + 0.5 * 0.5 * 1 = 1.25 and -1, values 0.5 and -1: errors 0.75 and 0; half of the first: 0.140625."""
    policy = make_tiny("ddpg", ((0.5,), (1.0,)), priority=True, priority_IS_weight=True)
    loss, report = policy.critic_loss(policy.prepare(make_batch(IS=torch.tensor([0.5, 1.0]))))
    assert loss.item() == 0.140625
    assert report["priority"].tolist() == [0.75, 0.0]
    assert "priority" not in make_tiny("ddpg", ((0.5,), (1.0,))).learn_mode.forward(make_batch())


@pytest.mark.parametrize("name", NAMES)
def test_a_round_is_prepared_as_its_minibatches_are(name: str) -> None:
    policy, batch = make_small(name), random_batch()
    prepared = policy._prepare_round({key: torch.stack([value, value]) for key, value in batch.items()})
    single = policy.prepare(batch)
    for key in ("action", "discount_t"):
        assert_close(prepared[key][1], single[key])
    assert {key: value[1].shape for key, value in prepared.items()} == {k: v.shape for k, v in single.items()}
    assert policy.prepare(single)["action"] is single["action"]


# Actors


def test_the_actor_of_ddpg_climbs_the_first_critic() -> None:
    """-mean(3 * 0.5) = -1.5; Adam's first step is the learning rate, upwards."""
    policy = make_tiny(
        "ddpg", ((0.5,), (3.0, -9.0)), learn={"learning_rate_actor": 0.125, "learning_rate_critic": 1e-9}
    )
    report = policy.learn_mode.forward(make_batch())
    assert report["actor_loss"].item() == pytest.approx(-1.5, abs=1e-3)
    assert policy.model.actor.values.item() == pytest.approx(0.625, rel=1e-5)


def test_td3_moves_actor_and_targets_every_second_update_only() -> None:
    policy = make_small("td3")
    seen = []
    for _ in range(4):
        policy.learn_mode.forward(random_batch())
        seen.append([next(m.actor.parameters()).detach().clone() for m in (policy.model, policy.target_model)])
        seen[-1].append(policy.target_model.critic.head.weights[0].detach().clone())
    for which in range(3):
        moved = [not torch.equal(seen[i][which], seen[i + 1][which]) for i in range(3)]
        assert moved == [True, False, True]


@pytest.mark.parametrize("name", ["ddpg", "sac"])
def test_targets_move_by_theta_after_every_update(name: str) -> None:
    policy = make_small(name, learn={"target_theta": 0.25})
    before = policy.target_model.critic.head.weights[0].clone()
    policy.learn_mode.forward(random_batch())
    online = policy.model.critic.head.weights[0].detach()
    assert_close(policy.target_model.critic.head.weights[0], 0.75 * before + 0.25 * online)


def test_the_actor_of_sac_weighs_entropy_against_the_smaller_critic() -> None:
    policy = make_tiny("sac", ((0.0, 0.0), (1.0, 4.0)), learn={"alpha": 0.25})
    batch = policy.prepare(make_batch()) | {"noise": torch.full((2, 1), 0.5)}
    action = math.tanh(0.5)
    log_prob = -0.125 - 0.5 * math.log(2 * math.pi) - math.log(1 - action**2)
    loss, report = policy.actor_loss(batch)
    assert loss.item() == pytest.approx(0.25 * log_prob - action, rel=1e-5)
    assert_close(report["log_prob"], torch.full((2,), log_prob))


@pytest.mark.parametrize("name", NAMES)
def test_the_loss_of_the_actor_gives_the_critics_no_gradient(name: str) -> None:
    policy = make_small(name)
    batch = policy.prepare(random_batch())
    policy.updater.minimise(policy.actor_loss, batch, 1)
    assert all(parameter.grad is None for parameter in policy.model.critic.parameters())
    assert all(parameter.grad is not None for parameter in policy.model.actor.parameters())


# Temperature


@pytest.mark.parametrize("log_space", [True, False])
@pytest.mark.parametrize(("target_entropy", "rises"), [(9.0, True), (-9.0, False)])
def test_the_temperature_rises_while_the_entropy_is_too_low(
    log_space: bool, target_entropy: float, rises: bool
) -> None:
    learn = {"log_space": log_space, "target_entropy": target_entropy, "learning_rate_alpha": 0.1, "alpha": 0.5}
    policy = make_small("sac", learn=learn)
    policy.learn_mode.forward(random_batch())
    sign = 1 if rises else -1
    assert policy.alpha.item() == pytest.approx(0.5 * math.exp(sign * 0.1) if log_space else 0.5 + sign * 0.1, rel=1e-4)


def test_the_temperature_does_not_fall_below_zero() -> None:
    learn = {"log_space": False, "target_entropy": -9.0, "learning_rate_alpha": 1.0}
    policy = make_small("sac", learn=learn)
    policy.learn_mode.forward(random_batch())
    assert policy.alpha.item() == 0.0


def test_the_temperature_stays_if_it_is_not_learned() -> None:
    policy = make_small("sac", learn={"auto_alpha": False, "alpha": 0.3})
    report = policy.learn_mode.forward(random_batch())
    assert policy.alpha.item() == pytest.approx(0.3)
    assert "alpha_loss" not in report


def test_the_target_entropy_is_minus_the_dimensions_of_the_action() -> None:
    policy = SACPolicy({"model": {"obs_shape": 3, "action_shape": 5}, "learn": {"alpha": math.e}})
    loss, _ = policy.alpha_loss({"log_prob": torch.tensor([1.0, 3.0])})
    assert loss.item() == pytest.approx(-(2 - 5))


# Exploration


def test_greedy_actions_have_no_noise_and_collected_ones_have() -> None:
    policy = make_tiny("ddpg", ((0.25,), (1.0,)), collect={"noise_sigma": 0.1})
    policy.seed(0)
    assert policy.eval_mode.forward(torch.zeros(2, 3))["action"].tolist() == [[0.5], [0.5]]
    actions = policy.collect_mode.forward(torch.zeros(10_000, 3))["action"]
    assert actions.std().item() == pytest.approx(0.2, rel=0.05)
    assert policy.collect_mode.forward(torch.zeros(1, 3), sigma=0.0)["action"].tolist() == [[0.5]]


def test_ornstein_uhlenbeck_noise_is_reset_at_episode_ends_and_saved() -> None:
    policy = make_tiny("ddpg", ((0.0,), (1.0,)), collect={"noise_type": "ou", "noise_sigma": 0.1})
    policy.collect_mode.forward(torch.zeros(3, 3))
    policy.collect_mode.reset([1])
    state = policy.ou_noise.state.copy()
    assert (state == 0).ravel().tolist() == [False, True, False]
    other = make_tiny("ddpg", ((0.0,), (1.0,)), collect={"noise_type": "ou", "noise_sigma": 0.1})
    other.collect_mode.load_state_dict(policy.collect_mode.state_dict())
    assert_close(
        other.collect_mode.forward(torch.zeros(3, 3), sigma=0.0)["action"], torch.tensor(state * 0.85 * 2).float()
    )


# Options


@pytest.mark.parametrize(
    ("name", "cfg", "message"),
    [
        ("ddpg", {"learn": {"noise_sigma": 0.3}}, "left at their defaults without learn.noise"),
        ("ddpg", {"learn": {"noise_range": {"max": 0.3}}}, "left at their defaults without learn.noise"),
        ("ddpg", {"learn": {"actor_update_freq": 0}}, "learn.actor_update_freq must be >= 1, got 0"),
        ("ddpg", {"collect": {"noise_sigma": -1.0}}, "collect.noise_sigma must be >= 0"),
        ("ddpg", {"learn": {"discount_factor": 0.9}}, "set discount_factor at the top level"),
        ("td3", {"learn": {"noise_range": {"min": 0.5}}}, "learn.noise_range.min must be below"),
        ("td3", {"learn": {"learning_rate_actor": 0.0}}, "learn.learning_rate_actor must be > 0"),
        (
            "sac",
            {"learn": {"auto_alpha": False, "log_space": False}},
            "left at their defaults without learn.auto_alpha",
        ),
        (
            "sac",
            {"learn": {"auto_alpha": False, "target_entropy": -1.0}},
            "left at their defaults without learn.auto_alpha",
        ),
        ("sac", {"learn": {"alpha": 0.0}}, "learn.alpha must be > 0 to learn its logarithm"),
        ("sac", {"learn": {"target_theta": 0.0}}, r"learn.target_theta must be in \(0, 1\]"),
        ("sac", {"learn": {"grad_clip_norm": 0.0}}, "learn.grad_clip_norm must be > 0"),
        ("sac", {"priority_IS_weight": True}, "priority_IS_weight must be False without priority"),
        ("sac", {"nstep": 0}, "nstep must be >= 1"),
        ("sac", {"model": {"last_layer_init": 0.0}}, "model.last_layer_init must be > 0"),
        ("sac", {"model": {"actor_head_hidden_size": 0}}, "model.actor_head_hidden_size must be >= 1"),
        ("sac", {"collect": {"unroll_len": 2}}, "collect.unroll_len must be 1"),
    ],
)
def test_a_value_that_is_out_of_its_range_or_does_nothing_is_refused(
    name: str, cfg: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        create_policy({"type": name, **cfg})


def test_the_policies_tell_workers_how_to_collect() -> None:
    policies: list[QACPolicy[Any]] = [
        DDPGPolicy({"nstep": 2, "discount_factor": 0.5, "random_collect_size": 7}),
        TD3Policy({"learn": {"update_per_collect": 3, "batch_size": 9}, "collect": {"n_sample": 4}}),
    ]
    names = ("nstep", "discount_factor", "random_collect_size")
    assert [policies[0].get_attribute(name) for name in names] == [2, 0.5, 7]
    names = ("update_per_collect", "batch_size", "n_sample")
    assert [policies[1].get_attribute(name) for name in names] == [3, 9, 4]
