"""C51 and Rainbow against numbers worked out by hand, on networks that are tables of distributions.

The atoms are -4, 0 and 4, gamma is 0.5. State 0 is where the agent was, state 1 where it went. There the online values
are 0 and 1, so double Q-learning takes action 1; the target's are 4 and -1. Row 0 took action 0 for a reward of 1, row
1 action 1 for -1, and what was predicted of them is uniform, and (1/2, 1/4, 1/4).

The target of action 1 is (1/2, 1/4, 1/4). For row 0 its atoms move to -1, 1 and 3, positions 0.75, 1.25 and 1.75:
1/8 + 0 + 0, 3/8 + 3/16 + 1/16, 0 + 1/16 + 3/16 = (2, 10, 4) / 16. For row 1 they move to -3, -1 and 1, positions 0.25,
0.75 and 1.25: 6/16 + 1/16, 2/16 + 3/16 + 3/16, 1/16 = (7, 8, 1) / 16. Cross entropies: ln 3, and
(7/16) ln 2 + (9/16) ln 4 = (25/16) ln 2.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.testing import assert_close

from lightning_ding import nested
from lightning_ding.policy import C51Policy, QRDQNPolicy, RainbowConfig, RainbowPolicy, create_policy
from tests.policy.tables import IS, NEXT_WITHOUT_ACTION_1, SECOND_ONLY, make_batch, prepared_loss

LN2, LN3 = math.log(2), math.log(3)
UNIFORM = [1 / 3, 1 / 3, 1 / 3]
LOW = [0.5, 0.25, 0.25]  # worth -1
HIGH = [0.25, 0.25, 0.5]  # worth 1
TOP = [1e-6, 1e-6, 1 - 2e-6]  # worth 4
ONLINE = [[UNIFORM, LOW], [UNIFORM, HIGH]]
TARGET = [[UNIFORM, UNIFORM], [TOP, LOW]]
FIRST, SECOND = LN3, 25 / 16 * LN2  # the cross entropies of the two rows
MODEL = {"v_min": -4.0, "v_max": 4.0, "n_atom": 3}


class TableNet(nn.Module):
    """Looks up the distributions of a state; with noise it adds to the scores of the last action."""

    def __init__(self, table: list[list[list[float]]]) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.tensor(table).log())
        self.noise = 0.0
        self.asked: list[tuple[bool, float]] = []

    def forward(self, obs: Any, noisy: bool = False) -> dict[str, Tensor]:
        self.asked.append((noisy, self.noise))
        state = (obs["state"] if isinstance(obs, dict) else obs).long().reshape(-1)
        log_distribution = self.table[state].log_softmax(2)
        distribution = log_distribution.exp()
        logit = distribution @ torch.tensor([-4.0, 0.0, 4.0])
        return {"logit": logit, "distribution": distribution, "log_distribution": log_distribution}

    def reset_noise(self, rng: np.random.Generator) -> None:
        self.noise = float(rng.random())


def make_policy(
    policy_class: type[C51Policy] = C51Policy, learn: dict[str, Any] | None = None, **cfg: Any
) -> C51Policy:
    """Return a policy on the tables above."""
    cfg = {"discount_factor": 0.5, "model": MODEL, **cfg, "learn": {"learning_rate": 0.125, **(learn or {})}}
    policy = policy_class(cfg, model=TableNet(ONLINE))
    target: Any = policy.target_model
    target.table.data = torch.tensor(TARGET).log()
    return policy


def check_loss(policy: C51Policy, batch: dict[str, Any], expected: float) -> None:
    assert_close(prepared_loss(policy, batch)[0].item(), expected, rtol=1e-5, atol=1e-5)


# Loss


@pytest.mark.parametrize(
    ("changes", "cfg", "expected"),
    [
        ({}, {}, (FIRST + SECOND) / 2),
        # the best action of the target network: all at 4: row 0 at 3, position 1.75, row 1 at 1, position 1.25:
        # (0, 3/4, 1/4): ln 4
        ({}, {"learn": {"double_q": False}}, (LN3 + 2 * LN2) / 2),
        # row 1: -1 is at position 0.75: (1/4, 3/4, 0): (1/4) ln 2 + (3/4) ln 4
        ({"terminated": SECOND_ONLY}, {}, (FIRST + 1.75 * LN2) / 2),
        ({"terminated": SECOND_ONLY}, {"learn": {"ignore_done": True}}, (FIRST + SECOND) / 2),
        ({"truncated": torch.tensor([True, True])}, {}, (FIRST + SECOND) / 2),
        # row 1, 0.25: -2, -1, 0 at positions 0.5, 0.75 and 1: (1/4 + 1/16, 1/4 + 3/16 + 1/4, 0)
        # = (5, 11, 0) / 16: (5/16) ln 2 + (11/16) ln 4 = (27/16) ln 2
        ({"discount": torch.tensor([0.125, 0.25])}, {"nstep": 3}, (FIRST + 27 / 16 * LN2) / 2),
        # row 1: all below -4, the end of the support: ln 2
        ({"reward": torch.tensor([1.0, -9.0])}, {}, (FIRST + LN2) / 2),
        # row 1 may not take action 1: action 0 is worth 4 to the target: ln 4 as above
        ({"next_obs": NEXT_WITHOUT_ACTION_1}, {}, (FIRST + 2 * LN2) / 2),
        ({"IS": IS}, {"priority": True, "priority_IS_weight": True}, (0.5 * FIRST + 2 * SECOND) / 2),
        ({"IS": IS}, {"priority": True}, (FIRST + SECOND) / 2),
        ({"IS": IS}, {}, (FIRST + SECOND) / 2),
    ],
)
def test_loss_is_the_mean_cross_entropy_to_the_projected_target(
    changes: dict[str, Any], cfg: dict[str, Any], expected: float
) -> None:
    check_loss(make_policy(**cfg), make_batch(**changes), expected)


def test_the_gradient_reaches_the_action_taken_only() -> None:
    # probability less target, over two rows: (1/3 - 2/16, ...) / 2
    policy = make_policy()
    prepared_loss(policy, make_batch())[0].backward()
    model: Any = policy.model
    expected = torch.tensor([[1 / 3 - 2 / 16, 1 / 3 - 10 / 16, 1 / 3 - 4 / 16], [1 / 16, -4 / 16, 3 / 16]]) / 2
    assert_close(model.table.grad[0], expected, rtol=1e-5, atol=1e-6)
    assert model.table.grad[1].abs().max() == 0
    assert [p.grad for p in policy.target_model.parameters()] == [None]


# Report


def test_report_holds_loss_value_target_and_priority_without_gradient() -> None:
    # targets: (-2 + 4) / 16 * 4 and (-7 + 1) / 16 * 4, which are 1 - 0.5 and -1 - 0.5
    report = prepared_loss(make_policy(priority=True), make_batch())[1]
    assert not any(value.requires_grad for value in report.values())
    assert_close(report["q_value"], torch.tensor([0.0, -1.0]), rtol=0, atol=1e-6)
    assert_close(report["target_q_value"], torch.tensor([0.5, -1.5]))
    assert_close(report["priority"], torch.tensor([FIRST, SECOND]))
    assert "priority" not in prepared_loss(make_policy(), make_batch())[1]


# Rounds


@pytest.mark.parametrize("double_q", [True, False])
@pytest.mark.parametrize("policy_class", [C51Policy, QRDQNPolicy, RainbowPolicy])
def test_a_prepared_round_equals_single_updates(policy_class: Any, double_q: bool) -> None:
    cfg = {"nstep": 1, "model": {"obs_shape": 1, "action_shape": 2}}
    cfg |= {"priority": False, "priority_IS_weight": False, "learn": {"double_q": double_q, "target_update_freq": 4}}
    seen = []
    for is_prepared in (True, False):
        torch.manual_seed(0)
        policy = policy_class(cfg)
        policy.seed(0)
        data: Any = nested.stack([make_batch(reward=torch.randn(2)) for _ in range(4)])
        prepared = policy._prepare_round(data)
        assert ("target" in prepared) == (policy_class is not RainbowPolicy)  # its noise changes
        for batch in nested.unbind(prepared if is_prepared else data):
            policy.learn_mode.forward(batch)
        seen.append(list(policy.model.parameters()))
    assert_close(*seen, rtol=1e-5, atol=1e-6)


# Acting, config


@pytest.mark.parametrize("name", ["c51", "qrdqn", "rainbow"])
def test_actions_are_legal_and_one_number_for_each_env(name: str) -> None:
    policy = create_policy({"type": name})
    mask = spaces.MultiBinary(3)
    policy.build(spaces.Dict({"state": spaces.Box(-1, 1, (2,)), "action_mask": mask}), spaces.Discrete(3))
    obs = {"state": torch.randn(60, 2), "action_mask": torch.tensor([[0, 1, 0], [1, 0, 1]]).repeat(30, 1)}
    for actions in (policy.eval_mode.forward(obs), policy.collect_mode.forward(obs, eps=0.5)):
        taken = obs["action_mask"].gather(1, actions["action"][:, None])
        assert (actions["action"].shape, taken.min().item()) == ((60,), 1)


@pytest.mark.parametrize("name", ["c51", "qrdqn", "rainbow"])
def test_a_space_of_several_dimensions_is_refused(name: str) -> None:
    with pytest.raises(
        TypeError, match=r"^\w+Policy needs a Discrete action space, got MultiDiscrete.*; dqn takes both"
    ):
        create_policy({"type": name}).build(spaces.Box(0, 1, (1,)), spaces.MultiDiscrete([2, 3]))


@pytest.mark.parametrize(
    ("name", "cfg", "message"),
    [
        ("c51", {"model": {"v_min": 10.0}}, r"model.v_min must be below v_max \(10.0\), got 10.0"),
        ("c51", {"model": {"n_atom": 1}}, "model.n_atom must be >= 2, got 1"),
        ("rainbow", {"model": {"n_atom": 1}}, "model.n_atom must be >= 2, got 1"),
        ("rainbow", {"model": {"noise_std": 0.0}}, "model.noise_std must be > 0, got 0.0"),
        ("rainbow", {"priority": False}, "priority_IS_weight must be False without priority, got True"),
        ("rainbow", {"model": {"dueling": True}}, "unknown config key 'model.dueling'"),
        ("c51", {"learn": {"loss": "mse"}}, "unknown config key 'learn.loss'"),
        ("qrdqn", {"model": {"num_quantiles": 0}}, "model.num_quantiles must be >= 1, got 0"),
        ("qrdqn", {"learn": {"kappa": 0.0}}, "learn.kappa must be > 0, got 0.0"),
        ("qrdqn", {"learn": {"batch_size": 0}}, "learn.batch_size must be >= 1, got 0"),
    ],
)
def test_a_value_out_of_its_range_is_refused(name: str, cfg: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        create_policy({"type": name, **cfg})


# Rainbow


def make_rainbow(**cfg: Any) -> Any:
    """Return Rainbow on the tables above; batches need ``IS`` and ``discount``."""
    return make_policy(RainbowPolicy, **cfg)


BATCH = {"IS": torch.tensor([0.5, 2.0]), "discount": torch.tensor([0.5, 0.5])}


def test_rainbow_is_prioritised_of_three_steps_and_explores_a_little_by_default() -> None:
    cfg = RainbowConfig()
    assert (cfg.nstep, cfg.priority, cfg.priority_IS_weight, cfg.other.replay_buffer.type) == (
        3,
        True,
        True,
        "advanced",
    )
    assert [RainbowPolicy().config.other.eps.value(step, 100) for step in (0, 10**6)] == [0.05, 0.05]


def test_the_loss_of_rainbow_is_that_of_c51_with_weights() -> None:
    loss, report = prepared_loss(make_rainbow(), make_batch(**BATCH))
    assert_close(loss.item(), (0.5 * FIRST + 2 * SECOND) / 2)
    assert_close(report["priority"], torch.tensor([FIRST, SECOND]))


def test_rainbow_learns_with_noise_that_is_another_for_each_update_and_network() -> None:
    policy = make_rainbow()
    for _ in range(2):
        policy.learn_mode.forward(make_batch(**BATCH))
    asked = [*policy.model.asked, *policy.target_model.asked]
    # the network predicts and chooses with one noise
    assert all(noisy for noisy, _ in asked)
    assert (len(asked), len({noise for _, noise in asked})) == (6, 4)


def test_rainbow_collects_with_a_new_noise_each_time_and_evaluates_without() -> None:
    policy = make_rainbow()
    for _ in range(2):
        policy.collect_mode.forward(torch.zeros(3, 1))
    policy.eval_mode.forward(torch.zeros(3, 1))
    (first, a), (second, b), (third, _) = policy.model.asked
    assert (first, second, third, a == b) == (True, True, False, False)


def test_the_noise_of_rainbow_comes_from_the_generator_of_the_policy() -> None:
    seen = []
    for seed in (0, 1):
        torch.manual_seed(7)
        policy = RainbowPolicy({"model": {"obs_shape": 1, "action_shape": 2}})
        torch.manual_seed(seed)
        policy.seed(3)
        policy.learn_mode.forward(make_batch(**BATCH))
        seen.append(list(policy.model.parameters()))
    assert_close(*seen, rtol=0, atol=0)


def test_the_noise_of_rainbow_explores_even_without_epsilon() -> None:
    torch.manual_seed(0)
    policy = RainbowPolicy({"model": {"obs_shape": 1, "action_shape": 2, "noise_std": 20.0}})
    obs = torch.zeros(1, 1)
    collected = {policy.collect_mode.forward(obs, eps=0.0)["action"].item() for _ in range(50)}
    evaluated = {policy.eval_mode.forward(obs)["action"].item() for _ in range(50)}
    assert (len(collected), len(evaluated)) == (2, 1)
