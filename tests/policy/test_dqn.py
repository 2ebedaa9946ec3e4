"""DQN against numbers worked out by hand, on networks that are tables of action values.

State 0 is where the agent was, state 1 where it went. The online values are (1, 2) and (3, 5), the target's (0, 0) and
(10, 4), gamma is 0.5; row 0 took action 0 for a reward of 1, row 1 action 1 for -1. Double Q-learning therefore takes
action 1 in state 1, worth 4 to the target: targets 1 + 0.5 * 4 = 3 and -1 + 2 = 1, errors 3 - 1 = 2 and 1 - 2 = -1.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn
from torch.testing import assert_close

from lightning_ding import nested
from lightning_ding.policy import DQNPolicy, create_policy
from tests.policy.tables import IS, SECOND_ONLY, make_batch, prepared_loss

ONLINE = [[1.0, 2.0], [3.0, 5.0]]
TARGET = [[0.0, 0.0], [10.0, 4.0]]
ONLINE_2 = [[0.0, 1.0, 2.0], [0.0, 0.0, 1.0]]
TARGET_2 = [[0.0, 0.0, 0.0], [1.0, 2.0, 3.0]]
JOINT_ACTION = torch.tensor([[0, 2], [1, 0]])
DISCOUNT = torch.tensor([0.25, 0.125])


def next_with_mask(mask: list[list[int]]) -> dict[str, Any]:
    return {"state": torch.ones(2, 1), "action_mask": torch.tensor(mask)}


class TableNet(nn.Module):
    """Looks up the action values of a state; of several dimensions if there are several tables."""

    def __init__(self, *tables: list[list[float]]) -> None:
        super().__init__()
        self.tables = nn.ParameterList(nn.Parameter(torch.tensor(table)) for table in tables)

    def forward(self, obs: Any) -> dict[str, Any]:
        state = (obs["state"] if isinstance(obs, dict) else obs).long().reshape(-1)
        values = [table[state] for table in self.tables]
        return {"logit": values if len(values) > 1 else values[0]}

    def set(self, *tables: list[list[float]]) -> None:
        for table, new in zip(self.tables, tables, strict=True):
            table.data = torch.tensor(new)


def make_policy(joint: bool = False, learn: dict[str, Any] | None = None, **cfg: Any) -> DQNPolicy:
    """Return a policy on the tables above, with the squared error."""
    policy = DQNPolicy(
        {"discount_factor": 0.5, **cfg, "learn": {"loss": "mse", "learning_rate": 0.125, **(learn or {})}},
        model=TableNet(*([ONLINE, ONLINE_2] if joint else [ONLINE])),
    )
    target: Any = policy.target_model
    target.set(*([TARGET, TARGET_2] if joint else [TARGET]))
    return policy


def loss_of(policy: DQNPolicy, batch: dict[str, Any]) -> float:
    return prepared_loss(policy, batch)[0].item()


def tables(model: Any) -> Any:
    """Return the first table as a list."""
    return model.tables[0].tolist()


# Loss


@pytest.mark.parametrize(
    ("changes", "cfg", "expected"),
    [
        ({}, {}, 2.5),  # (2^2 + 1^2) / 2
        ({}, {"learn": {"loss": "huber"}}, 1.0),  # ((2 - 0.5) + 0.5 * 1^2) / 2
        # the target's own best is 10: targets 6 and 4, errors 5 and 2
        ({}, {"learn": {"double_q": False}}, 14.5),  # (25 + 4) / 2
        ({}, {"learn": {"double_q": False, "loss": "huber"}}, 3.0),  # (4.5 + 1.5) / 2
        # row 1 does not bootstrap: target -1, error -3: (4 + 9) / 2
        ({"terminated": SECOND_ONLY}, {}, 6.5),
        ({"terminated": torch.tensor([0.0, 1.0])}, {}, 6.5),
        ({"terminated": SECOND_ONLY, "truncated": SECOND_ONLY}, {}, 6.5),
        ({"terminated": SECOND_ONLY}, {"learn": {"ignore_done": True}}, 2.5),
        ({"truncated": torch.tensor([True, True])}, {}, 2.5),
        # gamma^2 and gamma^3: targets 1 + 0.25 * 4 = 2 and -1 + 0.125 * 4 = -0.5, errors 1 and -2.5: (1 + 6.25) / 2
        ({"discount": DISCOUNT}, {"nstep": 3}, 3.625),
        ({"discount": DISCOUNT, "terminated": SECOND_ONLY}, {"nstep": 3}, 5.0),  # error -3 in row 1: (1 + 9) / 2
        ({"discount": DISCOUNT, "terminated": SECOND_ONLY}, {"nstep": 3, "learn": {"ignore_done": True}}, 3.625),
        ({"IS": IS}, {"priority": True, "priority_IS_weight": True}, 2.0),  # (0.5 * 4 + 2 * 1) / 2
        ({"IS": IS}, {"priority": True, "priority_IS_weight": True, "learn": {"loss": "huber"}}, 0.875),
        ({"IS": IS}, {"priority": True}, 2.5),
        ({"IS": IS}, {}, 2.5),
        # the online network may not choose action 1 in row 0; action 0 is worth 10: targets 6 and 1, (25 + 1) / 2
        ({"next_obs": next_with_mask([[1, 0], [1, 1]])}, {}, 13.0),
        # the target may not take its 10 in row 0: targets 3 and 4, (4 + 4) / 2
        ({"next_obs": next_with_mask([[0, 1], [1, 1]])}, {"learn": {"double_q": False}}, 4.0),
        # no legal action at terminal states: targets 1 and -1, errors 0 and -3: 9 / 2
        ({"next_obs": next_with_mask([[0, 0]] * 2), "terminated": torch.tensor([True, True])}, {}, 4.5),
        (
            {"next_obs": next_with_mask([[0, 0]] * 2), "terminated": torch.tensor([True, True])},
            {"learn": {"double_q": False}},
            4.5,
        ),
        # the mask of the observation does not touch the value of the action taken
        ({"obs": {"state": torch.zeros(2, 1), "action_mask": torch.tensor([[0, 1], [1, 0]])}}, {}, 2.5),
        # second dimension: action 2 is worth 3, targets 2.5 and 0.5, values 2 and 0, errors 0.5: (2.5 + 0.25) / 2
        ({"action": JOINT_ACTION}, {"joint": True}, 1.375),
        # first: without action 1 in row 0, 13 as above; second: without action 2 the first of two zeros, action 0,
        # worth 1: targets 1.5 and -0.5, errors -0.5: (13 + 0.25) / 2
        (
            {"action": JOINT_ACTION, "next_obs": next_with_mask([[1, 0, 1, 1, 0], [1, 1, 1, 1, 0]])},
            {"joint": True},
            6.625,
        ),
    ],
)
def test_loss_is_the_mean_error_to_the_target(changes: dict[str, Any], cfg: dict[str, Any], expected: float) -> None:
    assert loss_of(make_policy(**cfg), make_batch(**changes)) == expected


@pytest.mark.parametrize("name", ["dqn", "c51", "qrdqn"])
def test_batches_in_which_something_is_missing_or_would_broadcast_are_refused(name: str) -> None:
    cfg: dict[str, Any] = {"type": name, "model": {"obs_shape": 1, "action_shape": 2}}
    with pytest.raises(KeyError, match="a batch needs 'discount'"):
        prepared_loss(create_policy({**cfg, "nstep": 2}), make_batch())
    with pytest.raises(KeyError, match="IS"):
        prepared_loss(create_policy({**cfg, "priority": True, "priority_IS_weight": True}), make_batch())
    with pytest.raises(ValueError, match=r"reward must have the shape \(2,\), got \(2, 1\)"):
        prepared_loss(create_policy(cfg), make_batch(reward=torch.ones(2, 1)))


def test_a_prepared_round_has_the_same_loss() -> None:
    policy = make_policy()
    batch = make_batch(terminated=torch.tensor([False, True]))
    prepared = policy._prepare_round({name: value[None] for name, value in batch.items()})
    assert prepared["discount_t"].tolist() == [[0.5, 0.0]]
    first: Any = nested.index(prepared, 0)
    assert policy.loss(first)[0].item() == loss_of(policy, batch)


def test_the_gradient_reaches_the_values_of_the_actions_taken_only() -> None:
    # of the mean square: value - target, -2 and 1
    policy = make_policy()
    prepared_loss(policy, make_batch())[0].backward()
    model: Any = policy.model
    assert model.tables[0].grad.tolist() == [[-2.0, 1.0], [0.0, 0.0]]
    assert [p.grad for p in policy.target_model.parameters()] == [None]


def test_loss_of_a_batch_is_the_mean_of_its_rows() -> None:
    batch = make_batch(terminated=torch.tensor([False, True]))
    rows = [{name: value[i : i + 1] for name, value in batch.items()} for i in range(2)]
    assert loss_of(make_policy(), batch) == sum(loss_of(make_policy(), row) for row in rows) / 2


# Report


def test_report_holds_loss_value_and_target_and_the_sizes_of_the_errors_if_asked() -> None:
    report = prepared_loss(make_policy(), make_batch())[1]
    values: dict[str, Any] = {name: value.tolist() for name, value in report.items()}
    assert values == {"total_loss": 2.5, "q_value": [1.0, 2.0], "target_q_value": [3.0, 1.0]}
    report = prepared_loss(make_policy(priority=True), make_batch())[1]
    assert report["priority"].tolist() == [2.0, 1.0]
    assert not any(value.requires_grad for value in report.values())
    # the mean over the dimensions: (2 + 0.5) / 2 and (1 + 0.5) / 2
    report = prepared_loss(make_policy(joint=True, priority=True), make_batch(action=JOINT_ACTION))[1]
    assert report["priority"].tolist() == [1.25, 0.75]


def test_target_network_acts_as_in_evaluation_while_learning() -> None:
    policy, seen = make_policy(), []
    policy.target_model.register_forward_hook(lambda module, *_: seen.append(module.training))
    policy.train()
    policy.learn_mode.forward(make_batch())
    assert (seen, policy.target_model.training) == ([False], True)


# Updates


def test_an_update_moves_each_value_by_the_learning_rate() -> None:
    # the first step of Adam is the learning rate against the sign of the gradient: 1 + 0.125, 2 - 0.125
    policy = make_policy()
    policy.learn_mode.forward(make_batch())
    assert_close(torch.tensor(tables(policy.model)), torch.tensor([[1.125, 1.875], [3.0, 5.0]]), rtol=1e-6, atol=1e-6)


def test_the_target_is_copied_every_target_update_freq_updates() -> None:
    policy = make_policy(learn={"target_update_freq": 3})
    same = []
    for update in range(7):
        policy.learn_mode.forward(make_batch())
        same.append(tables(policy.target_model) == tables(policy.model))
        assert update > 1 or tables(policy.target_model) == TARGET
    assert same == [False, False, True, False, False, True, False]


def test_the_target_moves_by_theta_after_every_update() -> None:
    # 0.25 of the new values (1.125, 1.875), (3, 5) and 0.75 of (0, 0), (10, 4)
    policy = make_policy(learn={"target_theta": 0.25})
    policy.learn_mode.forward(make_batch())
    first = torch.tensor([[0.28125, 0.46875], [8.25, 4.25]])
    assert_close(torch.tensor(tables(policy.target_model)), first, rtol=1e-6, atol=1e-6)
    policy.learn_mode.forward(make_batch())
    second = 0.75 * first + 0.25 * torch.tensor(tables(policy.model))
    assert_close(torch.tensor(tables(policy.target_model)), second, rtol=1e-6, atol=1e-6)


def test_the_target_starts_as_a_copy_of_the_network() -> None:
    policy = DQNPolicy(model=TableNet(ONLINE))
    assert (tables(policy.target_model), policy.target_model is policy.model) == (ONLINE, False)


@pytest.mark.parametrize(
    ("limit", "norm"),
    [
        # the gradient is (-2, 1), of norm sqrt(5)
        (1.0, 1.0),
        (100.0, 5**0.5),
        (None, 5**0.5),
    ],
)
def test_grad_clip_norm_limits_the_gradient(limit: float | None, norm: float) -> None:
    policy = make_policy(learn={"grad_clip_norm": limit})
    policy.learn_mode.forward(make_batch())
    gradient: Any = next(p.grad for p in policy.model.parameters())
    assert_close(gradient[0], torch.tensor([-2.0, 1.0]) * norm / 5**0.5, rtol=1e-5, atol=1e-6)


def test_the_values_reach_the_fixed_point() -> None:
    # one action, reward 1, back to itself: Q = 1 + 0.5 Q = 2
    policy = DQNPolicy(
        {"discount_factor": 0.5, "learn": {"learning_rate": 0.05, "target_update_freq": 10}}, model=TableNet([[0.0]])
    )
    batch = {"obs": torch.zeros(1, 1), "next_obs": torch.zeros(1, 1), "action": torch.zeros(1, dtype=torch.int64)}
    batch |= {"reward": torch.ones(1), "terminated": torch.zeros(1), "truncated": torch.zeros(1)}
    for _ in range(600):
        policy.learn_mode.forward(batch)
    assert_close(torch.tensor(tables(policy.model)), torch.tensor([[2.0]]), rtol=0, atol=1e-2)


# Acting


def test_a_given_network_acts_with_one_number_for_each_env_without_knowing_the_action_space() -> None:
    policy = make_policy()
    obs = torch.tensor([[0.0], [1.0], [0.0]])
    actions = policy.eval_mode.forward(obs)["action"], policy.collect_mode.forward(obs, eps=0.0)["action"]
    assert [action.tolist() for action in actions] == [[1, 1, 1], [1, 1, 1]]


def test_a_joint_action_is_the_best_of_each_dimension() -> None:
    policy = make_policy(joint=True)
    obs = torch.tensor([[0.0], [1.0], [0.0]])
    actions = policy.eval_mode.forward(obs)["action"], policy.collect_mode.forward(obs, eps=0.0)["action"]
    assert [action.tolist() for action in actions] == [[[1, 2], [1, 2], [1, 2]]] * 2


@pytest.mark.parametrize("model", [None, nn.Sequential()])
def test_a_joint_action_of_one_dimension_keeps_its_axis(model: nn.Module | None) -> None:
    policy = DQNPolicy(model=None if model is None else TableNet(ONLINE))
    policy.build(spaces.Box(0, 1, (1,)), spaces.MultiDiscrete([2]))
    actions = policy.eval_mode.forward(torch.zeros(3, 1))["action"], policy.collect_mode.forward(torch.zeros(3, 1))
    assert (actions[0].shape, actions[1]["action"].shape) == ((3, 1), (3, 1))


def test_a_joint_action_of_one_dimension_is_learned_from() -> None:
    policy = make_policy().build(spaces.Box(0, 1, (1,)), spaces.MultiDiscrete([2]))
    assert isinstance(policy, DQNPolicy)
    assert loss_of(policy, make_batch(action=torch.tensor([[0], [1]]))) == 2.5


def test_greedy_actions_are_legal() -> None:
    # action 1 is best in both states
    obs = {"state": torch.zeros(3, 1), "action_mask": torch.tensor([[1, 0], [1, 1], [1, 0]])}
    assert make_policy().eval_mode.forward(obs)["action"].tolist() == [0, 1, 0]


@pytest.mark.parametrize("eps", [0.0, 0.5, 1.0])
def test_exploring_actions_are_legal_in_every_dimension(eps: float) -> None:
    mask = torch.tensor([[1, 0, 0, 1, 1]]).expand(300, 5)
    policy = make_policy(joint=True)
    actions = policy.collect_mode.forward({"state": torch.zeros(300, 1), "action_mask": mask}, eps=eps)["action"]
    found = {(first, second) for first, second in actions.tolist()}
    assert found == ({(0, 2)} if eps == 0 else {(0, 1), (0, 2)})


def test_the_dimensions_of_a_joint_action_explore_on_their_own() -> None:
    # the first is greedy (1) in 0.5 + 0.25 of the rows, the second (2) in 0.5 + 1 / 6; both in their product, 0.5
    policy = make_policy(joint=True)
    policy.seed(0)
    actions = policy.collect_mode.forward(torch.zeros(20_000, 1), eps=0.5)["action"]
    greedy = actions == torch.tensor([1, 2])
    shares = [*greedy.float().mean(0).tolist(), greedy.all(1).float().mean().item()]
    assert_close(torch.tensor(shares), torch.tensor([0.75, 2 / 3, 0.5]), rtol=0, atol=0.02)


@pytest.mark.parametrize("eps", [{"type": "linear"}, {"type": "exp"}])
def test_the_command_mode_gives_the_epsilon_that_collecting_uses(eps: dict[str, Any]) -> None:
    policy = make_policy(other={"eps": {**eps, "start": 0.9, "end": 0.1, "decay": 100}})
    # halfway 0.5; 0.1 + 0.8 / sqrt(e)
    expected = [0.9, 0.5 if eps["type"] == "linear" else 0.5852245, 0.1]
    steps = [0, 50, 10**9]
    settings = [policy.command_mode.get_setting_collect({"envstep": step})["eps"] for step in steps]
    assert_close(torch.tensor(settings), torch.tensor(expected))


# Config


@pytest.mark.parametrize(
    ("cfg", "message"),
    [
        ({"nstep": 0}, "nstep must be >= 1 or None, got 0"),
        ({"discount_factor": 1.01}, r"discount_factor must be in \[0, 1\], got 1.01"),
        ({"discount_factor": -0.1}, r"discount_factor must be in \[0, 1\], got -0.1"),
        ({"priority_IS_weight": True}, "priority_IS_weight must be False without priority, got True"),
        ({"random_collect_size": -1}, "random_collect_size must be >= 0, got -1"),
        ({"learn": {"update_per_collect": 0}}, "learn.update_per_collect must be >= 1, got 0"),
        ({"learn": {"batch_size": 0}}, "learn.batch_size must be >= 1, got 0"),
        ({"learn": {"learning_rate": 0.0}}, "learn.learning_rate must be > 0, got 0.0"),
        ({"learn": {"target_update_freq": 0}}, "learn.target_update_freq must be >= 1, got 0"),
        (
            {"learn": {"target_update_freq": 100, "target_theta": 0.1}},
            r"learn.target_update_freq must be None with target_theta \(0.1\), got 100",
        ),
        (
            {"learn": {"target_update_freq": None, "target_theta": 0.0}},
            r"learn.target_theta must be in \(0, 1\], got 0.0",
        ),
        (
            {"learn": {"target_update_freq": None, "target_theta": 1.5}},
            r"learn.target_theta must be in \(0, 1\], got 1.5",
        ),
        ({"learn": {"grad_clip_norm": 0.0}}, "learn.grad_clip_norm must be > 0 or None, got 0.0"),
        ({"collect": {"n_sample": 0}}, "collect.n_sample must be >= 1 .*, got 0"),
        ({"collect": {"unroll_len": 2}}, "collect.unroll_len must be 1 for networks without memory, got 2"),
        ({"eval": {"evaluator": {"eval_freq": 0}}}, "eval_freq must be >= 1, got 0"),
        ({"eval": {"evaluator": {"n_episode": 0}}}, "n_episode must be >= 1, got 0"),
        ({"other": {"eps": {"start": 1.1}}}, r"other.eps.start must be in \[0, 1\], got 1.1"),
        ({"other": {"eps": {"end": -0.1}}}, r"other.eps.end must be in \[0, 1\], got -0.1"),
        ({"other": {"eps": {"decay": 0}}}, "other.eps.decay must be > 0 or None, got 0"),
        ({"other": {"eps": {"unit": "budget"}}}, "other.eps.unit must be left at its default without other.eps.decay"),
        (
            {"other": {"eps": {"start": 0.05, "decay": 100}}},
            r"other.eps.decay must be left at its default where start and end are equal \(0.05\), got 100",
        ),
        (
            {"other": {"eps": {"start": 0.05, "type": "exp"}}},
            r"other.eps.type must be left at its default where start and end are equal \(0.05\), got 'exp'",
        ),
        ({"other": {"replay_buffer": {"replay_buffer_size": 0}}}, "replay_buffer_size must be >= 1, got 0"),
    ],
)
def test_a_value_out_of_its_range_is_refused(cfg: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        DQNPolicy(cfg)


class NoisyNet(TableNet):
    """Records for each forward pass the noise it is asked for, or None for the mean weights."""

    def __init__(self, *tables: list[list[float]]) -> None:
        super().__init__(*tables)
        self.noise, self.asked = 0.0, list[float | None]()

    def forward(self, obs: Any, noisy: bool = False) -> dict[str, Any]:
        self.asked.append(self.noise if noisy else None)
        return super().forward(obs)

    def reset_noise(self, rng: np.random.Generator) -> None:
        self.noise = float(rng.random())


def test_noise_is_drawn_for_each_step_of_the_envs_and_each_update_and_not_for_evaluations() -> None:
    policy = DQNPolicy({"model": {"noise": True}, "learn": {"update_per_collect": 2}}, model=NoisyNet(ONLINE))
    model, target = cast(NoisyNet, policy.model), cast(NoisyNet, policy.target_model)
    for _ in range(2):
        policy.collect_mode.forward(torch.zeros(3, 1))
    first, second = model.asked
    assert None not in (first, second)
    assert first != second
    policy.eval_mode.forward(torch.zeros(3, 1))
    assert model.asked.pop() is None
    policy.learn_mode.forward(make_batch())
    (in_update,) = set(model.asked[2:])
    assert in_update not in (None, first, second)
    assert target.asked != [in_update]
    assert None not in target.asked


def test_the_scale_of_noise_is_checked() -> None:
    with pytest.raises(ValueError, match=r"^model.noise_std must be > 0, got 0"):
        DQNPolicy({"model": {"noise_std": 0.0}})


def test_a_noisy_dqn_explores_without_epsilon() -> None:
    torch.manual_seed(0)
    policy = DQNPolicy({"model": {"obs_shape": 1, "action_shape": 2, "noise": True, "noise_std": 20.0}})
    obs = torch.zeros(1, 1)
    collected = {policy.collect_mode.forward(obs, eps=0.0)["action"].item() for _ in range(50)}
    evaluated = {policy.eval_mode.forward(obs)["action"].item() for _ in range(50)}
    assert (len(collected), len(evaluated)) == (2, 1)
