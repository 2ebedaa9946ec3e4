"""The bare loops do the work of their workloads."""

from __future__ import annotations

import dataclasses
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from benchmarks import bare_iqn, bare_ppo, bare_r2d2, bare_sac, bare_tensor_dqn, bare_tensor_ppo, r2d2
from benchmarks.workload import W1, W2, W3, W5, W7, W8
from lightning_ding import rl
from lightning_ding.policy import R2D2Policy


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


def test_bare_r2d2_makes_five_updates_a_round_after_the_warm_up() -> None:
    result = bare_r2d2.run(dataclasses.replace(W5, env_steps=104, warm_up=80, batch_size=4))
    assert (result["env_steps"], result["updates"]) == (104, 3 * 5)


def test_bare_r2d2_has_the_loss_of_the_policy() -> None:
    torch.manual_seed(0)
    w, rng = dataclasses.replace(W5, env_steps=320, burn_in=2, unroll=5, batch_size=16), np.random.default_rng(0)
    replay = bare_r2d2.Replay(w)
    replay.count, shape = 40, (41, 8)
    for column in (replay.obs, replay.next_obs, replay.reward, replay.state):
        column[:] = rng.normal(size=column.shape)
    replay.action[:], replay.ended[:] = rng.integers(2, size=shape), rng.random(shape) < 0.2
    replay.first[1:], replay.first[0] = replay.ended[:-1], True
    replay.terminated[:] = replay.ended & (rng.random(shape) < 0.5)
    batch = replay.sample(w.batch_size, w.length, rng)
    obs, next_obs, action, reward, terminated, mask, state, first = batch
    assert (mask.sum(0) > w.burn_in)[~first].all()
    assert first.any()
    assert not first.all()
    assert not mask.all()

    config = r2d2.our_config(w)
    policy = R2D2Policy({**config, "model": {**config["model"], "obs_shape": 4, "action_shape": 2}})
    q, target = (bare_r2d2.Network(w.hidden, w.core) for _ in range(2))
    for ours, bare in ((policy.model, q), (policy.target_model, target)):
        for mine, theirs in zip(ours.parameters(), bare.parameters(), strict=True):
            assert mine.shape == theirs.shape
            mine.data.copy_(theirs.data)
    columns: Any = {"obs": obs, "next_obs": next_obs, "action": action, "reward": reward, "mask": mask}
    columns |= {"terminated": terminated.bool(), "recurrent_state": state, "is_first": first}
    expected, _ = policy.loss(columns)
    torch.testing.assert_close(bare_r2d2.loss_of(w, q, target, batch), expected, rtol=1e-4, atol=1e-6)


def test_loop_in_tensor_envs_makes_the_updates_of_the_workload() -> None:
    w = dataclasses.replace(W7, num_envs=16, num_steps=8, env_steps=256, batch_size=64, hidden=(8,))
    result, steps_an_episode = bare_tensor_ppo.train(w)
    assert (result["env_steps"], result["updates"]) == (256, 2 * 4 * 2)
    assert steps_an_episode > 1


def test_dqn_in_tensor_envs_makes_the_updates_of_the_workload() -> None:
    w = dataclasses.replace(W8, num_envs=16, env_steps=256, warm_up=64, batch_size=32, buffer_size=128, hidden=(8,))
    result, steps_an_episode = bare_tensor_dqn.train(w)
    assert (result["env_steps"], result["updates"]) == (256, 12 * 4)
    assert steps_an_episode > 1


def test_replay_of_the_loop_in_tensor_envs_keeps_the_newest_steps() -> None:
    replay = bare_tensor_dqn.TensorReplay(4)
    for step in range(3):
        number = torch.full((2,), float(step))
        replay.push(number[:, None].expand(2, 4), number.long(), number, number[:, None].expand(2, 4) + 1, number > 1)
    obs, action, reward, next_obs, terminated = replay.sample(3, 5)
    assert obs.shape == (3, 5, 4)
    assert set(reward.flatten().tolist()) <= {1.0, 2.0}
    assert torch.equal(obs[..., 0] + 1, next_obs[..., 0])
    assert torch.equal(terminated, action == 2)
