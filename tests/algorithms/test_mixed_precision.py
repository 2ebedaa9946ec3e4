"""Under mixed precision the layers of a network compute in 16 bits, and nothing else does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.utils import parameters_to_vector
from torch.testing import assert_close

from lightning_ding import nested, rl
from lightning_ding.config import deep_merge
from lightning_ding.policy import Policy, create_policy
from lightning_ding.policy.replay_policy import ReplayPolicy
from lightning_ding.registry import POLICY_REGISTRY
from tests.algorithms import half_batches_script
from tests.algorithms.sequences import to_sequences, with_memory
from tests.algorithms.table import (
    ALGORITHMS,
    CONTINUOUS_ONLY,
    TEAMS,
    TINY_DREAMER,
    TINY_TDMPC2,
    WITHOUT_COLLECTING,
    make_datamodule,
    make_policy,
    names_of,
    sample_of,
    with_actor,
    with_first_step,
)
from tests.conftest import MakeTrainer

Config = dict[str, Any]

SIZE = 64
RATES = {"learning_rate"} | {
    f"learning_rate_{part}" for part in ("actor", "critic", "q", "policy", "alpha", "embedding", "weights")
}
DISCRETE = {"obs_shape": 6, "action_shape": 3}
CONTINUOUS = {"obs_shape": 6, "action_shape": 2}
ON_POLICY = [{**DISCRETE, "action_space": "discrete"}, {**CONTINUOUS, "action_space": "continuous"}]
NARROW: dict[str, Config] = {  # 16 bits are slow on a CPU
    "crossq": {"critic_head_hidden_size": 64},
    "xqc": {"critic_head_hidden_size": 64, "actor_head_hidden_size": 64},
    "bro": {"critic_head_hidden_size": 64, "actor_head_hidden_size": 64},
    "cql": {"actor_head_hidden_size": 64, "critic_head_hidden_size": 64},
    **{name: {"core": {"hidden_size": 32}} for name in ("r2d2", "r2d3", "ngu")},
    "recurrent_ppo": {"core": {"hidden_size": 32}},
    "dreamerv3": TINY_DREAMER,
    "tdmpc2": {**TINY_TDMPC2, "hidden": 32},
}
CASES: list[tuple[str, Config]] = [
    (name, {**(CONTINUOUS if name in CONTINUOUS_ONLY else DISCRETE), **NARROW.get(name, {})})
    for name in names_of(ReplayPolicy)
]
CASES += [(name, {**model, **NARROW.get(name, {})}) for name in with_actor() for model in ON_POLICY]
CASES += [("pqn", DISCRETE)]
CASES += [("r2d2", {**DISCRETE, "core": {"type": "gtrxl", "hidden_size": 32, "memory_length": 8}})]
CASES += [("dt", {**model, "dropout_p": 0.0, "embed_dim": 16, "n_blocks": 1}) for model in ON_POLICY]
CASES += [("ppo", {**ON_POLICY[1], "sigma_type": "conditioned", "bound_type": "tanh"})]


def half() -> torch.autocast:
    return torch.autocast("cpu", torch.bfloat16)


def make(name: str, model: Config, **changes: Any) -> Any:
    torch.manual_seed(0)
    policy = create_policy({"type": name, **deep_merge({"model": model}, changes)})
    policy.seed(0)
    return policy


def transitions(policy: Policy[Any]) -> Config:
    """Return B transitions with rewards of several units."""
    rng = np.random.default_rng(0)
    obs, next_obs = (torch.from_numpy(rng.standard_normal((SIZE, 6), dtype=np.float32)) for _ in range(2))
    ended = torch.arange(SIZE) % 16 == 15  # of each env the last step
    data = {"obs": obs, "next_obs": next_obs, "reward": 5 * obs[:, 0], "terminated": ended}
    data |= {"truncated": torch.zeros_like(ended), "IS": torch.linspace(0.1, 1, SIZE)}
    data |= {"env_id": torch.arange(SIZE) // 16, "episode_id": torch.arange(SIZE) // 16}
    data |= {"discount": torch.full((SIZE,), 0.9)}
    if policy.trains_on == "dataset" and policy.learns_from_sequences:  # it does not collect
        return to_sequences(policy, {**data, "action": policy.eval_mode.forward(obs)["action"]})
    acted = policy.collect_mode.forward(obs)
    acting = {"action": acted.get("drawn", acted["action"]), "log_prob": acted.get("log_prob", torch.zeros(SIZE))}
    data = with_first_step(policy, sample_of(policy, {**data, **acting}))
    return with_memory(policy, data) if policy.on_policy else to_sequences(policy, data)


def losses(policy: Any, data: Config) -> list[tuple[Tensor, Mapping[str, Any]]]:
    """Return each loss of an algorithm and what it reports."""
    policy.seed(1)  # for the noise of actors
    if policy.on_policy:
        sequences = rl.time_major(data["env_id"], data["episode_id"])
        learned = policy._learning_data(dict(data), sequences)
        return [policy.loss(next(policy._minibatches(learned)) if "is_first" in data else learned)]
    prepared = policy.prepare(data) if hasattr(policy, "prepare") else data
    if hasattr(policy, "critic_loss"):
        return [policy.critic_loss(prepared), policy.actor_loss(prepared)]
    return [policy.loss(prepared)]


def test_the_cases_name_every_algorithm() -> None:
    assert {name for name, _ in CASES} == {*ALGORITHMS, *WITHOUT_COLLECTING} - {"acer"}  # which has gradients, no loss


@pytest.mark.parametrize(("name", "model"), CASES)
def test_losses_are_those_of_32_bits_but_for_the_rounding_of_the_network(name: str, model: Config) -> None:
    policy = make(name, model)
    check_losses(policy, transitions(policy))


@pytest.mark.parametrize("name", TEAMS)
def test_losses_of_teams_are_those_of_32_bits_but_for_the_rounding_of_the_network(name: str) -> None:
    policy = half_batches_script.make(name)
    data = half_batches_script.whole_batch(policy, name, 0)
    check_losses(policy, data, rtol=1e-2)  # measured: 4.7e-3, of QMIX, whose mixer has weights of 16 bits


def check_losses(policy: Policy[Any], data: Config, rtol: float = 2e-3) -> None:
    expected = losses(policy, data)
    with half():
        found = losses(policy, data)
    for (loss, report), (loss_32, _) in zip(found, expected, strict=True):
        assert {leaf.dtype for leaf in [loss, *nested.leaves(report)]} == {torch.float32}
        assert_close(loss, loss_32, rtol=rtol, atol=5e-3)  # measured: 1.5e-3 of losses up to 75


def learned(name: str, model: Config, cache_enabled: bool) -> Tensor:
    """Return the weights after a round of several updates."""
    rates = dict.fromkeys(RATES & set(vars(POLICY_REGISTRY.get(name).config_class().learn)), 0.1)
    if "learning_rate" in rates:  # that of all parameters
        rates = {"learning_rate": 0.1}
    policy = make(name, model, learn={**rates, "batch_size": 16})
    data = transitions(policy)
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=cache_enabled):
        for _ in range(1 if policy.on_policy else 2):
            policy._learn(dict(data))
    return parameters_to_vector(policy.model.parameters()).detach()


@pytest.mark.parametrize(("name", "model"), CASES[:-1])
def test_every_update_of_a_round_sees_the_weights_of_the_update_before(name: str, model: Config) -> None:
    # autocast keeps 16-bit copies of the weights until its context ends, which is that of the round
    assert_close(learned(name, model, cache_enabled=True), learned(name, model, cache_enabled=False), rtol=0, atol=0)


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
def test_first_ratio_of_ppo_is_one(env: str, make_trainer: MakeTrainer, monkeypatch: pytest.MonkeyPatch) -> None:
    distances, compute = [], rl.ppo_policy_loss

    def compute_and_note(log_prob: Tensor, old_log_prob: Tensor, *arguments: Any) -> rl.PPOPolicyLoss:
        distances.append((log_prob - old_log_prob).detach().abs())
        return compute(log_prob, old_log_prob, *arguments)

    monkeypatch.setattr(rl, "ppo_policy_loss", compute_and_note)
    torch.manual_seed(0)
    changes = {"batch_size": 64, "epoch_per_collect": 1, "ppo_param_init": False}
    policy = make_policy("ppo", learn=changes, collect={"n_sample": 64})
    datamodule = make_datamodule("ppo", env=env, max_env_step=256)
    make_trainer(precision="bf16-mixed", limit_val_batches=0).fit(policy, datamodule)
    is_one = torch.cat(distances) < 1e-5
    assert len(is_one) == 256
    assert is_one.float().mean() > 0.9  # a matrix product of 2 rows may round another way than one of 64


def test_a_policy_acts_in_full_precision_after_the_run(make_trainer: MakeTrainer) -> None:
    policy = make_policy("dqn")
    make_trainer(precision="bf16-mixed", limit_val_batches=0).fit(policy, make_datamodule("dqn", max_env_step=32))
    seen: list[bool] = []
    policy.model.register_forward_hook(lambda *_: seen.append(torch.is_autocast_enabled("cpu")))
    policy.eval_mode.forward(torch.zeros(1, 4))
    assert seen == [False]
