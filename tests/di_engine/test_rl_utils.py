"""DI-engine's functions for policy classes in its form give DI-engine's numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch.testing import assert_close

from lightning_ding.di_engine import rl_utils
from tests.di_engine.make_ding_rl_utils import results

EXPECTED = load_file(Path(__file__).with_name("ding_rl_utils.safetensors"))


def test_all_results_are_those_of_ding() -> None:
    found = results(rl_utils)
    assert found.keys() == EXPECTED.keys()
    assert len(found) == 79
    for name, value in found.items():
        assert_close(value, EXPECTED[name], rtol=1e-6, atol=1e-7)


def test_gradients_reach_values_and_not_targets() -> None:
    q, next_q = torch.zeros(1, 2, requires_grad=True), torch.ones(1, 2, requires_grad=True)
    action = torch.tensor([1])
    data = rl_utils.q_nstep_td_data(q, next_q, action, action, torch.ones(1, 1), torch.zeros(1), None)
    loss, _ = rl_utils.q_nstep_td_error(data, 0.5)
    loss.backward()
    assert q.grad is not None
    assert q.grad.tolist() == [[0.0, -3.0]]  # 2 (0 - (1 + 0.5))
    assert next_q.grad is None


def test_return_that_is_cut_short_has_the_discount_of_its_steps() -> None:
    rows: list[dict[str, Any]] = [
        {"reward": torch.ones(1), "next_obs": torch.full((1,), step + 1.0), "done": False} for step in range(3)
    ]
    rl_utils.get_nstep_return_data(rows, 2, gamma=0.5)
    assert [row["value_gamma"] for row in rows] == [0.25, 0.25, 0.5]
    assert [row["reward"].tolist() for row in rows] == [[1, 1], [1, 1], [1, 0]]
    assert [row["next_obs"].item() for row in rows] == [2, 3, 3]


def test_dual_clip_leaves_positive_advantages() -> None:
    logit = {"mu": torch.zeros(1, 1), "sigma": torch.ones(1, 1)}
    data = rl_utils.ppo_policy_data(logit, logit, torch.zeros(1, 1), torch.ones(1), None)
    assert rl_utils.ppo_policy_error(data, dual_clip=5.0)[0].policy_loss == -1


def test_samples_are_the_transitions() -> None:
    data = [{"obs": 1}]
    assert rl_utils.get_train_sample(data, 1) is data
    with pytest.raises(ValueError, match="unroll_len must be 1, because there are no recurrent policies here, got 2"):
        rl_utils.get_train_sample(data, 2)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda data: rl_utils.ppo_policy_error(data, dual_clip=0.5), "dual_clip must be > 1 or None, got 0.5"),
        (lambda data: rl_utils.ppo_policy_error(data, clip_ratio=0.0), "clip_ratio must be > 0, got 0.0"),
    ],
)
def test_argument_out_of_its_range_is_named(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(None)


def test_number_of_rewards_must_be_that_of_the_steps() -> None:
    data = rl_utils.nstep_return_data(torch.ones(2, 4), torch.ones(4), torch.zeros(4))
    with pytest.raises(
        ValueError, match=r"reward must be rewards of nstep = 3 steps, shape \(nstep, B\), got \(2, 4\)"
    ):
        rl_utils.nstep_return(data, 0.9, 3)


def test_a_list_of_discount_factors_has_one_for_each_sample() -> None:
    q, next_q = torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.tensor([[4.0, 0.0], [4.0, 0.0]])
    action = torch.zeros(2, dtype=torch.int64)
    reward = torch.tensor([[1.0, 1.0], [2.0, 2.0]])  # two steps
    data = rl_utils.q_nstep_td_data(q, next_q, action, action, reward, torch.tensor([0.0, 0.0]), None)
    loss, each = rl_utils.q_nstep_td_error(data, [torch.tensor(0.5), torch.tensor(1.0)], nstep=2)
    # targets: 1 + 0.5 * 2 + 0.25 * 4 = 3 and 1 + 2 + 4 = 7
    assert each.tolist() == [4.0, 36.0]
    assert loss.item() == 20.0
    ignored = rl_utils.q_nstep_td_error(data, [0.5, 1.0], nstep=2, value_gamma=torch.zeros(2))[1]
    assert torch.equal(ignored, each)  # as in DI-engine
    for gamma, expected in ((0.5, 4.0), (1.0, 36.0)):
        assert rl_utils.q_nstep_td_error(data, gamma, nstep=2)[1].tolist() == [expected] * 2
    with pytest.raises(ValueError, match="gamma must be one number, or a list of 2, got 3"):
        rl_utils.q_nstep_td_error(data, [0.5] * 3, nstep=2)
    with pytest.raises(ValueError, match="gamma must be one number with cum_reward"):
        rl_utils.q_nstep_td_error(data._replace(reward=reward[0]), [0.5, 1.0], nstep=2, cum_reward=True)


def test_advantages_of_several_agents_are_those_of_each_alone() -> None:
    generator = torch.Generator().manual_seed(0)
    value, next_value = (torch.randn(5, 3, 2, generator=generator) for _ in range(2))
    reward = torch.randn(5, 3, generator=generator)
    done = (torch.rand(5, 3, generator=generator) < 0.3).float()
    together = rl_utils.gae(rl_utils.gae_data(value, next_value, reward, done, None), 0.9, 0.8)
    for agent in range(2):
        alone = rl_utils.gae_data(value[..., agent], next_value[..., agent], reward, done, None)
        assert_close(together[..., agent], rl_utils.gae(alone, 0.9, 0.8))
    listed = [{"value": one[0], "reward": step[:1]} for one, step in zip(value, reward, strict=True)]
    advantages = torch.stack([one["adv"] for one in rl_utils.get_gae(listed, torch.zeros(2), 0.9, 0.8)])
    after = torch.cat([value[1:, :1, 0], torch.zeros(1, 1)])
    first = rl_utils.gae(rl_utils.gae_data(value[:, :1, 0], after, reward[:, :1], None, None), 0.9, 0.8)
    assert_close(advantages[:, 0], first[:, 0])


def test_a_single_step_whose_sequence_goes_on_gives_no_sample() -> None:
    step = {"value": torch.tensor([1.0]), "reward": torch.tensor([1.0])}
    assert rl_utils.get_gae_with_default_last_value([step], False, 0.9, 0.8) == []
    (ended,) = rl_utils.get_gae_with_default_last_value([dict(step)], True, 0.9, 0.8)
    assert ended["adv"].tolist() == [0.0]  # 1 - 1
