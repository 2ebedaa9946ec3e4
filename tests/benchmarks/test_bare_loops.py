"""The bare loops do the work of their workloads."""

from __future__ import annotations

import dataclasses

import gymnasium as gym
import numpy as np
import torch

from benchmarks import bare_iqn, bare_ppo, bare_sac
from benchmarks.workload import W1, W2, W3
from lightning_ding import rl


def test_bare_ppo_makes_the_updates_of_its_rollouts() -> None:
    result = bare_ppo.run(dataclasses.replace(W2, env_steps=2500))
    assert (result["env_steps"], result["updates"]) == (2048, 2 * 4 * 4)


def test_bare_ppo_ends_an_episode_in_the_advantage() -> None:
    w = dataclasses.replace(W2, num_envs=1, num_steps=3, gamma=0.5, gae_lambda=0.5)
    data = bare_ppo.Rollout(w)
    data.reward[:, 0], data.value[:, 0] = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([4.0, 5.0, 6.0])
    data.starts[2] = 1  # the second step ended an episode

    advantage = bare_ppo.advantages(w, data, torch.tensor([8.0]), torch.zeros(1))

    # Step 3: 3 + 0.5 * 8 - 6 = 1. Step 2, last of its episode: 2 - 5 = -3. Step 1: 1 + 0.5 * 5 - 4 + 0.25 * -3 = -1.25.
    assert advantage[:, 0].tolist() == [-1.25, -3.0, 1.0]


def test_bare_sac_makes_one_update_a_step_after_the_warm_up() -> None:
    result = bare_sac.run(dataclasses.replace(W3, env_steps=60, warm_up=50, batch_size=8))
    assert (result["env_steps"], result["updates"]) == (60, 10)


def test_bare_sac_knows_the_probability_of_its_actions() -> None:
    torch.manual_seed(0)
    actor = bare_sac.Actor(3, gym.spaces.Box(-2.0, 2.0, (1,)), (8,))
    action, log_prob = actor(torch.zeros(1, 3).expand(200_000, 3))

    # The share of actions in a narrow bin divided by its width is the density in it.
    for place in (-1.0, 0.0, 1.0):
        inside = (action.squeeze(1) - place).abs() < 0.05
        density = float(inside.float().mean() / 0.1)
        assert np.isclose(density, log_prob[inside].exp().mean().item(), rtol=0.05)


def test_bare_sac_critics_are_two_networks() -> None:
    critics = bare_sac.Critics((3, 5, 1))
    x = torch.randn(4, 3)
    for number in range(2):
        hidden = (x @ critics.weights[0][number] + critics.biases[0][number]).relu()
        single = hidden @ critics.weights[1][number] + critics.biases[1][number]
        torch.testing.assert_close(critics(x)[number], single.squeeze(1))


def test_bare_iqn_makes_five_updates_a_round_after_the_warm_up() -> None:
    result = bare_iqn.run(dataclasses.replace(W1, env_steps=104, warm_up=80, batch_size=8))
    assert (result["env_steps"], result["updates"]) == (104, 3 * 5)


def test_bare_iqn_has_the_quantile_huber_loss() -> None:
    prediction, target, tau = torch.randn(6, 8) * 2, torch.randn(6, 5) * 2, torch.rand(6, 8)
    expected = rl.quantile_huber(prediction, target, tau).mean()
    torch.testing.assert_close(bare_iqn.loss_of(prediction, target, tau), expected)
