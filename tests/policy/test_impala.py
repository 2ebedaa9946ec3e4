"""IMPALA's loss against numbers worked out by hand, and the unrolls that it learns from.

State 0 has the probabilities (1/4, 3/4) and the value 1, state 1 has (1/2, 1/2) and the value 2, state 2 the value 4.
An unroll goes from state 0 with action 1 to state 1, and with action 0 to state 2. These actions had the probabilities
3/8 and 1 when they were drawn, so the ratios are 2 and 1/2. Rewards are 1 and gamma is 1/2. This is the unroll of
test_vtrace.py: targets 2.25 and 2.5, advantages 1.25 and 0.5.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from lightning_ding.datamodules import ReplayDataModule
from lightning_ding.policy import IMPALAPolicy
from tests.conftest import MakeTrainer
from tests.policy.tables import ActorCriticTable

Config = dict[str, Any]
PROBABILITY = [[0.25, 0.75], [0.5, 0.5], [0.5, 0.5]]
POLICY_LOSS = -(math.log(0.75) * 1.25 + math.log(0.5) * 0.5) / 2
VALUE_LOSS = (1.25**2 + 0.5**2) / 2
ENTROPY = -(0.25 * math.log(0.25) + 0.75 * math.log(0.75) + math.log(0.5)) / 2


def make_policy(unroll_len: int = 2, **learn: Any) -> IMPALAPolicy:
    settings = {"lambda_": 1.0, "entropy_weight": 0.0, "value_weight": 0.0, **learn}
    section = {"action_space": "discrete", "action_shape": 2, "obs_shape": 1}
    config = {"discount_factor": 0.5, "unroll_len": unroll_len, "model": section, "learn": settings}
    return IMPALAPolicy(config, model=ActorCriticTable(PROBABILITY, [1.0, 2.0, 4.0]))


def unroll(*steps: tuple[int, int, float, bool, bool], after: int = 2) -> Config:
    """Return one unroll of (state, action, old probability, terminated, real); a padded step repeats the last one."""
    states, actions, old, terminated, real = (torch.tensor(column).unsqueeze(1) for column in zip(*steps, strict=True))
    obs = states.unsqueeze(2).float()
    next_obs = torch.cat([obs[1:], torch.full((1, 1, 1), float(after))])
    ends = ~torch.cat([real[1:], torch.zeros(1, 1, dtype=torch.bool)])
    next_obs[ends.squeeze(1)] = float(after)
    data = {"obs": obs, "next_obs": next_obs, "action": actions, "log_prob": old.log(), "terminated": terminated}
    return data | {"reward": torch.ones(len(steps), 1), "mask": real}


TWO = ((0, 1, 0.375, False, True), (1, 0, 1.0, False, True))


def loss_of(policy: IMPALAPolicy, data: Config) -> float:
    return policy.loss(policy.prepare(data))[0].item()


@pytest.mark.parametrize(
    ("learn", "expected"),
    [
        ({}, POLICY_LOSS),
        ({"value_weight": 2.0}, POLICY_LOSS + 2 * VALUE_LOSS),
        ({"entropy_weight": 0.5}, POLICY_LOSS - 0.5 * ENTROPY),
        ({"rho_pg_clip_ratio": 2.0}, -(math.log(0.75) * 2.5 + math.log(0.5) * 0.5) / 2),
        # the first target is 3.25 with rho_clip_ratio 2, 2.5 with c_clip_ratio 2, and 2.125 with lambda 1/2
        ({"rho_clip_ratio": 2.0, "value_weight": 1.0}, POLICY_LOSS + (2.25**2 + 0.5**2) / 2),
        ({"c_clip_ratio": 2.0, "value_weight": 1.0}, POLICY_LOSS + (1.5**2 + 0.5**2) / 2),
        ({"lambda_": 0.5, "value_weight": 1.0}, POLICY_LOSS + (1.125**2 + 0.5**2) / 2),
    ],
)
def test_loss_is_the_sum_of_its_weighed_parts(learn: Config, expected: float) -> None:
    assert loss_of(make_policy(**learn), unroll(*TWO)) == pytest.approx(expected, rel=1e-5)


def test_report_has_the_parts_without_gradient() -> None:
    policy = make_policy(value_weight=1.0, entropy_weight=0.5)
    _, report = policy.loss(policy.prepare(unroll(*TWO)))
    expected = {"total_loss": POLICY_LOSS + VALUE_LOSS - 0.5 * ENTROPY, "policy_loss": POLICY_LOSS}
    expected |= {"value_loss": VALUE_LOSS, "entropy_loss": ENTROPY}
    assert {name: one.item() for name, one in report.items()} == pytest.approx(expected, rel=1e-5)
    assert not any(one.requires_grad for one in report.values())


def test_padding_after_the_end_of_an_unroll_changes_nothing() -> None:
    padded = unroll(*TWO, (*TWO[1][:4], False), (*TWO[1][:4], False))
    policy = make_policy(value_weight=1.0, entropy_weight=0.5)
    assert loss_of(policy, padded) == pytest.approx(loss_of(policy, unroll(*TWO)), rel=1e-5)


def test_a_terminated_step_has_no_next_value_and_a_truncated_one_that_of_its_next_observation() -> None:
    policy = make_policy()
    truncated, terminated = TWO[0], (*TWO[0][:3], True, True)
    # advantages of state 0: 1 + 4/2 - 1 if the unroll is cut before state 2, and 1 - 1 if it terminates
    assert loss_of(policy, unroll(truncated)) == pytest.approx(-math.log(0.75) * 2 / 2, rel=1e-5)  # 2 is unroll_len
    assert loss_of(policy, unroll(terminated)) == pytest.approx(0.0, abs=1e-6)


def test_nothing_passes_from_an_episode_to_the_one_before_it_in_an_unroll() -> None:
    # State 0 terminates with the advantage 1 - 1 = 0, whatever follows; that of the next episode's state 1 is 0.5.
    policy = make_policy(value_weight=1.0)
    crossing = unroll((*TWO[0][:3], True, True), TWO[1])
    assert loss_of(policy, crossing) == pytest.approx((-math.log(0.5) * 0.5 + 0.5**2) / 2, rel=1e-5)
    crossing["next_obs"][0] = 2.0  # the true final observation of the first episode
    assert loss_of(policy, crossing) == pytest.approx((-math.log(0.5) * 0.5 + 0.5**2) / 2, rel=1e-5)


def test_gradients_reach_the_policy_through_its_probability_and_the_critic_through_its_value() -> None:
    policy = make_policy(value_weight=1.0)
    policy.loss(policy.prepare(unroll(*TWO)))[0].backward()
    model: Any = policy.model
    # -advantage / 2 times grad log p, which is 1 - p for the action and -p for the other
    assert_close(model.logit.grad[0], -0.5 * 1.25 * torch.tensor([-0.25, 0.25]))
    assert_close(model.logit.grad[1], -0.5 * 0.5 * torch.tensor([0.5, -0.5]))
    assert_close(model.value.grad, torch.tensor([1 - 2.25, 2 - 2.5, 0.0]))  # nothing through targets


def test_illegal_actions_have_no_share_in_the_probabilities() -> None:
    data = unroll(*TWO)
    mask = torch.tensor([[[0, 1]], [[1, 1]]])
    data["obs"] = {"state": data["obs"], "action_mask": mask}
    data["next_obs"] = {"state": data["next_obs"], "action_mask": torch.ones_like(mask)}
    # the probability of the first action is 1, so its log is 0, and its ratio is clipped as before
    assert loss_of(make_policy(), data) == pytest.approx(-math.log(0.5) * 0.5 / 2, rel=1e-5)
    entropy = math.log(2) / 2
    assert loss_of(make_policy(entropy_weight=1.0), data) == pytest.approx(-math.log(0.5) / 4 - entropy, rel=1e-5)


@pytest.mark.parametrize("time_limit", [500, 7])
def test_minibatches_are_consecutive_unrolls_that_end_at_time_limits_only(
    make_trainer: MakeTrainer, time_limit: int
) -> None:
    policy = IMPALAPolicy(
        {
            "unroll_len": 6,
            "learn": {"batch_size": 16, "update_per_collect": 2},
            "collect": {"n_sample": 64},
            "model": {"encoder_hidden_size_list": [8]},
        }
    )
    seen: list[Config] = []
    prepare = policy.prepare
    policy.prepare = lambda data: seen.append(data) or prepare(data)  # type: ignore[method-assign, func-returns-value]
    env_kwargs = {"max_episode_steps": time_limit}
    data = ReplayDataModule("CartPole-v1", env_kwargs=env_kwargs, num_envs=4, max_env_step=256)
    make_trainer(limit_val_batches=0).fit(policy, data)
    assert len(seen) == 8
    for batch in seen:
        real, episode = batch["mask"], batch["episode_id"]
        assert batch["log_prob"].shape == (6, 16)
        assert (batch["log_prob"] < 0).all()
        assert real[0].all()
        assert torch.equal(batch["env_id"], batch["env_id"][:1].expand(6, 16))
        joined, same = real[1:], episode[1:] == episode[:-1]
        assert torch.equal(batch["obs"][1:][joined & same], batch["next_obs"][:-1][joined & same])
        assert batch["terminated"][:-1][joined & ~same].all()
        assert not (batch["truncated"][:-1] & joined).any()
    crossed = torch.cat([(batch["terminated"][:-1] & batch["mask"][1:]).any(0) for batch in seen])
    lengths = torch.cat([batch["mask"].sum(0) for batch in seen])
    assert lengths.max() == 6
    assert bool(crossed.any()) == (time_limit == 500)  # random policies do not fall within 7 steps
    assert set(lengths.tolist()) == ({6} if time_limit == 500 else {6, 1})


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"unroll_len": 0}, "unroll_len must be >= 1, got 0"),
        ({"learn": {"lambda_": 1.5}}, r"learn.lambda_ must be in \[0, 1\], got 1.5"),
        ({"learn": {"rho_clip_ratio": 0.0}}, "learn.rho_clip_ratio must be > 0, got 0.0"),
        ({"learn": {"value_weight": -1.0}}, "learn.value_weight must be >= 0, got -1.0"),
        ({"learn": {"update_per_collect": 0}}, "learn.update_per_collect must be >= 1, got 0"),
        ({"discount_factor": 1.5}, r"discount_factor must be in \[0, 1\], got 1.5"),
        ({"priority": True}, "minibatches are drawn uniformly"),
        ({"random_collect_size": 10}, "the probability of each action is needed"),
        ({"collect": {"unroll_len": 2}}, "collect.unroll_len must be 1"),
    ],
)
def test_values_out_of_range_are_refused(config: Config, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        IMPALAPolicy(config)


@pytest.mark.parametrize(
    ("buffer", "message"),
    [
        ({"type": "naive"}, "other.replay_buffer.type must be one whose samples are sequences, .* got 'naive'"),
        (
            {"type": "sequence", "burn_in": 1, "sequence_length": 4},
            "sequence_length must be None, because the",
        ),
    ],
)
def test_a_buffer_that_does_not_fit_is_refused(make_trainer: MakeTrainer, buffer: Config, message: str) -> None:
    policy = IMPALAPolicy({"other": {"replay_buffer": buffer}})
    with pytest.raises(ValueError, match=message):
        make_trainer().fit(policy, ReplayDataModule("CartPole-v1", num_envs=2, max_env_step=16))


def test_transitions_in_place_of_unrolls_are_refused() -> None:
    with pytest.raises(ValueError, match="batch must be of unrolls with a 'mask', which a buffer of the type"):
        make_policy().learn_mode.forward({"obs": torch.zeros(3, 1)})
