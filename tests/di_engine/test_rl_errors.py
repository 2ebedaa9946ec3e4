"""Losses under DI-engine's names give DI-engine's numbers, and exploration and samplers what they say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch.testing import assert_close

from lightning_ding.di_engine import rl_utils
from tests.di_engine.make_ding_errors import results

EXPECTED = load_file(Path(__file__).with_name("ding_errors.safetensors"))


@pytest.mark.usefixtures("double_precision")
def test_all_losses_are_those_of_ding() -> None:
    found = results(rl_utils)
    assert found.keys() == EXPECTED.keys()
    assert len(found) == 78
    for name, value in found.items():
        assert_close(value, EXPECTED[name], rtol=1e-5, atol=1e-6, msg=name)


def test_quadratic_part_of_fqf_ends_at_kappa() -> None:
    one = torch.ones(1, dtype=torch.int64)
    q, next_q = torch.zeros(1, 1, 2), torch.full((1, 1, 2), 3.0)
    data = rl_utils.fqf_nstep_td_data(
        q, next_q, one, one, torch.zeros(1, 1), torch.zeros(1), torch.full((1, 1), 0.5), None
    )
    loss, each = rl_utils.fqf_nstep_td_error(data, 1.0, kappa=2.0)
    assert loss.item() == each.item() == 0.5 * 2.0 * (3.0 - 2.0 / 2) / 2.0


def test_levels_of_fqf_get_the_gradient_of_proposition_1() -> None:
    levels = torch.tensor([[0.0, 0.4, 1.0]], requires_grad=True)
    ends, middles, action = torch.full((1, 1, 2), 2.0), torch.tensor([[[0.0, 1.0], [0.0, 5.0]]]), torch.tensor([1])
    rl_utils.fqf_calculate_fraction_loss(ends, middles, levels, action).backward()
    assert levels.grad is not None
    assert levels.grad[0, 1].item() == 2 * 2.0 - 1.0 - 5.0


def test_divergence_of_ppg_is_that_of_the_old_policy() -> None:
    old, new = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 0.0]])
    data = rl_utils.ppg_data(new, old, torch.zeros(1), *torch.zeros(3, 1), None)
    p = old.softmax(1)[0]
    expected = (p * (p.log() - torch.tensor(0.5).log())).sum()
    assert_close(rl_utils.ppg_joint_error(data).behavioral_cloning_loss, expected)


def test_one_step_error_of_dqfd_is_left_out_with_a_sum_of_rewards() -> None:
    q, action, zero, one = torch.zeros(1, 2), torch.tensor([0]), torch.zeros(1), torch.ones(1)
    data = rl_utils.dqfd_nstep_td_data(q, q, action, action, 3 * one, zero, zero, None, q, action, zero)
    loss, each, parts = rl_utils.dqfd_nstep_td_error(data, 0.9, 1.0, 1.0, 0.8, cum_reward=True)
    assert (loss.item(), each.tolist(), [part.item() for part in parts]) == (9.0, [9.0], [9.0, 0.0, 0.0])


def test_a_third_policy_is_refused() -> None:
    pair = (torch.zeros(1, 2), torch.zeros(1, 2), torch.zeros(1, dtype=torch.int64))
    values: Any = (*torch.zeros(4, 1), None, torch.zeros(1, 2))
    data = rl_utils.ppo_data(*pair, *values)
    with pytest.raises(ValueError, match="logit_pretrained must be None: there is no third policy here"):
        rl_utils.ppo_error(data)
    of_policy: Any = rl_utils.ppo_policy_data(*pair, torch.zeros(1), None, torch.zeros(1, 2))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="logit_pretrained must be None: there is no third policy here"):
        rl_utils.ppo_policy_error(of_policy)


def test_samplers() -> None:
    torch.manual_seed(0)
    logit = torch.tensor([[0.0, 50.0], [50.0, 0.0]])
    gaussian = {"mu": torch.ones(2, 1), "sigma": torch.full((2, 1), 1e-6)}
    assert rl_utils.ArgmaxSampler()(logit).tolist() == rl_utils.MultinomialSampler()(logit).tolist() == [1, 0]
    assert rl_utils.MuSampler()(gaussian).tolist() == [[1], [1]]
    assert_close(rl_utils.ReparameterizationSampler()(gaussian), torch.ones(2, 1), atol=1e-4, rtol=0)
    hybrid = {"action_type": logit, "action_args": gaussian}
    for sampler in (rl_utils.HybridStochasticSampler(), rl_utils.HybridDeterminsticSampler()):
        action = sampler(hybrid)
        assert action["action_type"].tolist() == [1, 0]
        assert_close(action["action_args"], torch.ones(2, 1), atol=1e-4, rtol=0)


def test_noise_has_its_moments() -> None:
    torch.manual_seed(0)
    noise = rl_utils.GaussianNoise(mu=1.0, sigma=0.5)((20_000,), "cpu")
    assert_close(torch.stack([noise.mean(), noise.std()]), torch.tensor([1.0, 0.5]), atol=0.02, rtol=0)
    with pytest.raises(ValueError, match="sigma must be >= 0, got -1"):
        rl_utils.GaussianNoise(sigma=-1)
