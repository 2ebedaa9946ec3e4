"""The final observation of an episode counts in a loss after a time limit, and not after termination.

For the algorithms whose values test_learns.py does not compare with those of an env. The minibatches are those of the
replay buffer of each.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from lightning_ding import rl
from lightning_ding.utils.modes import IS_FIRST, STATE
from lightning_ding.worker import create_buffer
from tests.algorithms.table import CONTINUOUS_ONLY, make_policy, needs_demonstrations

Config = dict[str, Any]

SIZE = 12
NAMES = ("mdqn", "sql", "sqil", "dqfd", "fqf", "r2d2", "recurrent_ppo", "iql", "awac", "cql", "td3_bc")
CHANGES: dict[str, Config] = {"cql": {"learn": {"min_q_weight": 0.0}}}  # its conservative term reads every observation


def steps(name: str, final: float, is_terminated: bool) -> Config:
    """Return episodes of two steps of one env, which end at the observation ``final``."""
    rng = np.random.default_rng(0)
    is_last = np.arange(SIZE) % 2 == 1
    obs = rng.normal(size=(SIZE, 3)).astype(np.float32)
    next_obs = np.where(is_last[:, None], np.float32(final), np.roll(obs, -1, axis=0))
    action: Any = (
        rng.uniform(-1, 1, (SIZE, 1)).astype(np.float32) if name in CONTINUOUS_ONLY else rng.integers(2, size=SIZE)
    )
    ends = {"terminated": is_last & is_terminated, "truncated": is_last & (not is_terminated)}
    ids = {"env_id": np.zeros(SIZE, dtype=np.int64), "episode_id": np.arange(SIZE) // 2}
    return {"obs": obs, "next_obs": next_obs, "action": action, "reward": obs[:, 0], **ends, **ids}


def loss_of(name: str, final: float, is_terminated: bool) -> float:
    """Return the loss of the values, or the sum of the advantages of a rollout."""
    torch.manual_seed(0)
    shapes: Config = {"obs_shape": 3, "action_shape": 1 if name in CONTINUOUS_ONLY else 2}
    shapes |= {"action_space": "discrete"} if name == "recurrent_ppo" else {}
    policy: Any = make_policy(name, **CHANGES.get(name, {}), model=shapes)
    policy.seed(0)
    data = steps(name, final, is_terminated)
    if hasattr(policy.model, "first_state"):
        data |= {STATE: np.zeros((SIZE, policy.model.state_size), np.float32), IS_FIRST: np.arange(SIZE) % 2 == 0}
    if policy.on_policy:
        rollout = {key: torch.from_numpy(value) for key, value in data.items()} | {"log_prob": torch.zeros(SIZE)}
        sequences = rl.time_major(rollout["env_id"], rollout["episode_id"])
        return float(policy._learning_data(rollout, sequences)["advantage"].sum())
    buffer = create_buffer(policy.config.other.replay_buffer, seed=0)
    buffer.push({key: value for key, value in data.items() if key != "episode_id"})
    batch: Any = buffer.sample(SIZE, cur_learner_iter=0, **policy.get_attribute("sample_options"))
    batch |= {"is_expert": torch.zeros(SIZE, dtype=torch.bool)} if needs_demonstrations(name) else {}
    batch = policy.prepare(batch) if hasattr(policy, "prepare") else batch
    compute = policy.critic_loss if hasattr(policy, "critic_loss") else policy.loss
    loss: float = compute(batch)[0].item()
    return loss


@pytest.mark.parametrize("name", NAMES)
def test_a_time_limit_bootstraps_from_the_final_observation_and_termination_does_not(name: str) -> None:
    assert loss_of(name, 0.5, is_terminated=False) != loss_of(name, -2.0, is_terminated=False)
    assert loss_of(name, 0.5, is_terminated=True) == loss_of(name, -2.0, is_terminated=True)
    assert loss_of(name, 0.5, is_terminated=True) != loss_of(name, 0.5, is_terminated=False)
