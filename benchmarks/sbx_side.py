"""SBX, Stable-Baselines3 in JAX, as a peer of the learning benchmarks: ``pip install sbx-rl``.

Settings are those of RL Baselines3 Zoo, as for Stable-Baselines3. XLA computes with one thread, and the time in which
it compiles counts, as it does for a user.
"""

from __future__ import annotations

from typing import Any

from benchmarks import sbx_models, zoo
from benchmarks.proofs import Plan, Run

CLASSES = {"ppo": "PPO", "dqn": "DQN", "sac": "SAC", "td3": "TD3", "ddpg": "DDPG", "tqc": "TQC", "crossq": "CrossQ"}
ENVS = ("CartPole-v1", "Pendulum-v1")


def has(algorithm: str, env_id: str) -> bool:
    """Return whether SBX has an algorithm, and the zoo values for it that SBX takes, on an env."""
    return algorithm in CLASSES and env_id in ENVS and zoo.has(algorithm, env_id)


def settings(algorithm: str, env_id: str) -> dict[str, Any]:
    """Return the zoo's values for an algorithm on an env."""
    return zoo.settings(algorithm, env_id)


def train(algorithm: str, env_id: str, plan: Plan, seed: int) -> Run:
    """Train with SBX, and return its curve and the score of its best policy; see :func:`benchmarks.zoo.train`."""
    model_class = getattr(sbx_models.sbx_package(), CLASSES[algorithm])
    model = model_class(**zoo.arguments(algorithm, env_id, seed))
    return zoo.run(model, env_id, plan, seed, _states, _load_states)


def _states(policy: Any) -> dict[str, Any]:
    """Return the states of a policy's networks; JAX never changes them in place, so they need no copy."""
    return {name: state for name, state in vars(policy).items() if name.endswith("_state")}


def _load_states(policy: Any, states: dict[str, Any]) -> None:
    for name, state in states.items():
        setattr(policy, name, state)
