"""What a run learns at the ends of episodes, from its collector through its buffer to its loss.

The env notes every step that it makes, and no observation of it occurs twice. So a slow calculation, episode by
episode, knows the true reward, end and next observation of each step that a minibatch holds.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from lightning_ding.datamodules import ReplayDataModule
from lightning_ding.policy import IMPALAPolicy, PPOOffPolicy, R2D2Policy
from tests.conftest import MakeTrainer

Config = dict[str, Any]
Obs = NDArray[np.float32]
Key = tuple[float, ...]
GAMMA = 0.9
LIMIT = 6  # steps of an episode; neither a divisor nor a multiple of the unrolls, and of the rounds of an env
SMALL: Config = {"encoder_hidden_size_list": [8]}


class Step(NamedTuple):
    """What an env did in a step."""

    reward: float
    terminated: bool
    truncated: bool
    after: Key
    """The next observation, also where the episode ended."""


MADE: dict[Key, Step] = {}
"""The steps of all envs by the observation before them."""


class NotingEnv(gym.Env[Obs, Any]):
    """Observations and rewards are random; half of the steps with action 1 terminate, and the time limit is ``LIMIT``.

    Without ``terminates``, all episodes end at the time limit.
    """

    def __init__(self, terminates: bool = True) -> None:
        self.terminates = terminates
        self.observation_space = gym.spaces.Box(-1.0, 1.0, (3,), np.float32)
        self.action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Config | None = None) -> tuple[Obs, Config]:
        super().reset(seed=seed)
        self._step = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Obs, float, bool, bool, Config]:
        before, reward = key_of(self._seen), float(self.np_random.normal())
        self._step += 1
        terminated = self.terminates and int(action) == 1 and bool(self.np_random.random() < 0.5)
        truncated = not terminated and self._step == LIMIT
        after = self._observe()
        MADE[before] = Step(reward, terminated, truncated, key_of(after))
        return after, reward, terminated, truncated, {}

    def _observe(self) -> Obs:
        self._seen: Obs = self.np_random.uniform(-1, 1, 3).astype(np.float32)
        return self._seen


def key_of(obs: Any) -> Key:
    return tuple(float(x) for x in obs)


def run(policy: Any, make_trainer: MakeTrainer, max_env_step: int, **env_kwargs: Any) -> tuple[Any, list[Any]]:
    """Train, and return the datamodule, and each minibatch with what the loss reported of it and its calculation."""
    MADE.clear()
    torch.manual_seed(0)
    seen: list[Any] = []
    loss = policy.loss

    def noting(batch: Config) -> Any:
        expected = vtrace_by_loop(policy, batch) if isinstance(policy, IMPALAPolicy) else None
        result = loss(batch)
        seen.append((batch, result[1], expected))
        return result

    policy.loss = noting
    datamodule = ReplayDataModule(NotingEnv, env_kwargs=env_kwargs, num_envs=3, max_env_step=max_env_step)
    make_trainer(limit_val_batches=0).fit(policy, datamodule)
    return datamodule, seen


def episodes_of(batch: Config, column: int) -> list[list[tuple[int, Step]]]:
    """Return the real rows of a sequence and the steps that were made there, a list for each episode.

    Rewards and ends of the rows are compared with those steps.
    """
    parts: list[list[tuple[int, Step]]] = []
    for row in range(int(batch["mask"][:, column].sum())):
        key = key_of(batch["obs"][row, column])
        step = MADE[key]
        assert batch["reward"][row, column].item() == pytest.approx(step.reward)
        assert bool(batch["terminated"][row, column]) == step.terminated
        if not parts or parts[-1][-1][1].after != key:
            parts.append([])
        parts[-1].append((row, step))
    return parts


def values(policy: Any, obs: Any) -> list[float]:
    with torch.no_grad():
        found: list[float] = policy.model.compute_critic(torch.as_tensor(obs))["value"].tolist()
    return found


def vtrace_by_loop(policy: Any, batch: Config) -> dict[str, float]:
    """Return IMPALA's report (Espeholt et al. 2018, eq. 1), calculated within each episode of each unroll."""
    length, size = batch["mask"].shape
    total: dict[str, float] = defaultdict(float)
    for column in range(size):
        for part in episodes_of(batch, column):
            rows, steps = [row for row, _ in part], [step for _, step in part]
            obs, action = batch["obs"][rows, column], batch["action"][rows, column].flatten().tolist()
            with torch.no_grad():
                log_p = torch.log_softmax(policy.model.compute_actor(obs)["logit"], 1).tolist()
            log_prob = [of_all[one] for of_all, one in zip(log_p, action, strict=True)]
            old = batch["log_prob"][rows, column].tolist()
            ratio = [min(1.0, math.exp(new - before)) for new, before in zip(log_prob, old, strict=True)]
            value, target = values(policy, obs), targets_by_loop(policy, steps, values(policy, obs), ratio)
            following = [*target[1:], values(policy, [steps[-1].after])[0]]
            for i, step in enumerate(steps):
                ahead = 0.0 if step.terminated else GAMMA * following[i]
                total["policy_loss"] -= log_prob[i] * ratio[i] * (step.reward + ahead - value[i])
                total["value_loss"] += (value[i] - target[i]) ** 2
                total["entropy_loss"] -= sum(math.exp(x) * x for x in log_p[i])
    return {name: x / (length * size) for name, x in total.items()}


def targets_by_loop(policy: Any, steps: list[Step], value: list[float], ratio: list[float]) -> list[float]:
    """Return the V-trace targets of consecutive steps of an episode, from its values and clipped ratios."""
    after = values(policy, [step.after for step in steps])
    error = [step.reward + GAMMA * v * (not step.terminated) for step, v in zip(steps, after, strict=True)]
    error = [c * (x - v) for c, x, v in zip(ratio, error, value, strict=True)]
    decay = GAMMA * 0.95  # times lambda_
    return [
        value[i] + sum(decay ** (j - i) * math.prod(ratio[i:j]) * error[j] for j in range(i, len(steps)))
        for i in range(len(steps))
    ]


@pytest.mark.parametrize("terminates", [True, False])
def test_losses_of_impala_are_those_of_each_episode_of_an_unroll_alone(
    make_trainer: MakeTrainer, terminates: bool
) -> None:
    policy = IMPALAPolicy(
        {
            "discount_factor": GAMMA,
            "unroll_len": 4,
            "model": SMALL,
            "learn": {"batch_size": 8, "update_per_collect": 3, "learning_rate": 0.01, "entropy_weight": 0.1},
            "collect": {"n_sample": 15},
            "other": {"replay_buffer": {"replay_buffer_size": 50}},
        }
    )
    _, seen = run(policy, make_trainer, 120, terminates=terminates)
    assert len(seen) == 24
    ends: Counter[str] = Counter()
    for batch, report, expected in seen:
        for name, value in expected.items():
            assert report[name].item() == pytest.approx(value, rel=1e-3, abs=1e-4), name
        for column in range(8):
            *before, last = episodes_of(batch, column)
            assert all(part[-1][1].terminated for part in before)
            assert last[-1][0] == 3 or last[-1][1].truncated
            assert key_of(batch["last_obs"][column]) == last[-1][1].after
            ends["crossed"] += bool(before)
            ends["cut"] += last[-1][0] < 3
    assert (ends["crossed"] > 20) == terminates
    assert ends["cut"] > (0 if terminates else 20)


def test_sequences_of_r2d2_hold_the_steps_of_one_episode_and_the_observation_after_its_end(
    make_trainer: MakeTrainer,
) -> None:
    policy = R2D2Policy(
        {
            "discount_factor": GAMMA,
            "nstep": 2,
            "burnin_step": 1,
            "learn_unroll_len": 3,
            "model": {**SMALL, "core": {"hidden_size": 8}},
            "learn": {"batch_size": 8, "update_per_collect": 3},
            "collect": {"n_sample": 15},
            "other": {"replay_buffer": {"replay_buffer_size": 50}},
        }
    )
    _, seen = run(policy, make_trainer, 120)
    ends: Counter[str] = Counter()
    for batch, _, _ in seen:
        length = len(batch["mask"])
        for column in range(8):
            (part,) = episodes_of(batch, column)
            for row, step in part:
                assert key_of(batch["next_obs"][row, column]) == step.after
            row, step = part[-1]
            assert row == length - 1 or step.terminated or step.truncated
            ends["terminated"] += step.terminated
            ends["truncated"] += step.truncated
            ends["padded"] += row < length - 1
    assert min(ends["terminated"], ends["truncated"], ends["padded"]) >= 5


def test_advantages_of_ppo_from_replay_are_those_of_each_episode_of_a_round_alone(make_trainer: MakeTrainer) -> None:
    learn = {"batch_size": 8, "value_norm": False, "learning_rate": 1e-12}
    policy = PPOOffPolicy(
        {"discount_factor": GAMMA, "model": SMALL, "learn": learn, "collect": {"n_sample": 15, "gae_lambda": 0.8}}
    )
    datamodule, _ = run(policy, make_trainer, 60)
    kept: Any = datamodule.buffer.transitions()
    place = {key_of(obs): row for row, obs in enumerate(kept["obs"])}
    assert len(place) == 60

    def advantage(row: int) -> float:
        """Return the sum of the errors up to the end of the episode, or of the round."""
        key = key_of(kept["obs"][row])
        step = MADE[key]
        value, after = values(policy, [key, step.after])
        error = step.reward + (0.0 if step.terminated else GAMMA * after) - value
        later = place.get(step.after)
        goes_on = not (step.terminated or step.truncated) and later is not None and later // 15 == row // 15
        return error + (GAMMA * 0.8 * advantage(later) if goes_on and later is not None else 0.0)

    expected = torch.tensor([advantage(row) for row in range(60)])
    torch.testing.assert_close(kept["advantage"], expected, rtol=1e-4, atol=1e-5)
    assert {(step.terminated, step.truncated) for step in MADE.values()} == {
        (False, False),
        (True, False),
        (False, True),
    }
