"""Losses and gradients of the second wave of algorithms equal those that ``make_ding_updates`` computed.

A comment says where DI-engine means something else. Its IQL has no target critics, a squashed distribution and half the
critics' loss, so only the losses of the values and of the critics are compared; d3rlpy has the same actor as here, see
``test_peer_losses``.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from lightning_ding import rl
from lightning_ding.policy import create_policy
from tests.di_engine import tiny_networks as tiny
from tests.di_engine.make_ding_updates import GAMMA, NSTEP, SAMPLES, network
from tests.di_engine.stored import parts_of
from tests.di_engine.test_same_numbers import floored_sample, record_gradients

pytestmark = pytest.mark.usefixtures("double_precision")

part = parts_of("ding_updates.safetensors")
Values = dict[str, Tensor]
_CQL = {"num_actions": SAMPLES, "min_q_weight": 1.5, "alpha": 0.2, "auto_alpha": False}
_SHAPES = {"obs_shape": tiny.OBS, "action_shape": tiny.DIMENSIONS}
_CLONED: dict[str, Any] = {"model": {**_SHAPES, "action_space": "continuous"}}
_DISCRETE: dict[str, Any] = {"obs_shape": tiny.OBS, "action_shape": tiny.ACTIONS}
CONFIGS: dict[str, dict[str, Any]] = {
    "d4pg": {"nstep": NSTEP, "model": {**_SHAPES, "v_min": tiny.V_MIN, "v_max": tiny.V_MAX, "n_atom": tiny.ATOMS}},
    "td3_bc": {"learn": {"alpha": 2.5}},
    "cql": {"learn": _CQL},
    "cql_entropy": {"learn": {**_CQL, "with_q_entropy": True}},
    "cql_lagrange": {"learn": {**_CQL, "with_lagrange": True, "lagrange_thresh": 3.0}},
    "discrete_cql": {"nstep": NSTEP, "learn": {"min_q_weight": 1.5}, "model": _DISCRETE},
    "iql": {"learn": {"tau": 0.7}},
    "bc": {"model": {**_DISCRETE, "action_space": "discrete"}},
    "bc_mse": {**_CLONED, "learn": {"loss_type": "mse_loss"}},
    "bc_l1": {**_CLONED, "learn": {"loss_type": "l1_loss"}},
}
CQL = ("cql", "cql_entropy", "cql_lagrange")


def make_policy(case: str) -> Any:
    """Return a policy with the stored weights."""
    kind = case if case in ("td3_bc", "discrete_cql") else case.partition("_")[0]
    discount = {} if kind == "bc" else {"discount_factor": GAMMA}
    policy: Any = create_policy(
        {"type": kind, "model": _SHAPES, **discount, **CONFIGS[case]}, model=network(case, is_theirs=False)
    )
    policy.model.load_state_dict(part(case, "model"))
    if kind != "bc":
        policy.target_model.load_state_dict(part(case, "target") or part(case, "model"))
    return policy.double()


def batch_of(case: str) -> dict[str, Any]:
    """Return a prepared minibatch."""
    given = part(case, "in")
    steps = given["reward"].shape[1]
    batch: dict[str, Any] = {name: given[name] for name in ("obs", "next_obs", "action")}
    batch |= {"terminated": given["done"], "reward": (given["reward"] * GAMMA ** torch.arange(steps)).sum(1)}
    batch["discount"] = given.get("value_gamma", torch.full((len(given["done"]),), GAMMA))
    batch["discount_t"] = batch["discount"] * ~given["done"]
    for name in ("gap_noise", "next_gap_noise", "uniform_noise"):
        if name in given:
            batch[name] = given[name].double().unflatten(0, (-1, SAMPLES))
    for name in ("noise", "next_noise", "IS"):
        if name in given:
            batch[name] = given[name]
    if case == "td3_bc":
        batch["next_noise"] = (0.2 * batch["next_noise"]).clamp(-0.5, 0.5)
    return batch


def check(ours: Tensor, theirs: Tensor) -> None:
    assert_close(ours.detach(), theirs, rtol=1e-5, atol=1e-9, check_dtype=False)


def check_gradients(case: str, module: Any, prefix: str, factor: float = 1.0) -> None:
    """Compare the gradients of all parameters whose names start with the prefix."""
    theirs = part(case, "out")
    names = [name for name, _ in module.named_parameters() if name.startswith(prefix)]
    assert names
    for name, parameter in module.named_parameters():
        if name in names:
            check(parameter.grad, factor * theirs[f"gradient.{name}"])


@pytest.mark.parametrize("case", ["d4pg", "td3_bc", *CQL])
def test_losses_and_gradients_of_actor_and_critics_equal_ding(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if case in CQL:
        monkeypatch.setattr(rl, "squashed_gaussian_sample", floored_sample)  # DI-engine adds 1e-6 to the slope of tanh
    policy, batch, theirs = make_policy(case), batch_of(case), part(case, "out")
    loss, report = policy.critic_loss(batch)
    expected = torch.stack([one for name, one in theirs.items() if name.startswith(("critic", "twin"))]).sum()
    constant = 2 * 3.0 if case == "cql_lagrange" else 0.0  # DI-engine subtracts the threshold, without a gradient
    check(loss, expected + constant)
    loss.backward()
    check_gradients(case, policy.model, "critic")
    if case == "cql_lagrange":
        policy.multiplier_loss(report)[0].backward()
        check(policy.log_multiplier.grad, theirs["gradient.log_multiplier"])
    policy.model.zero_grad()
    loss, _ = policy.actor_loss(batch)
    check(loss, theirs["policy_loss" if case in CQL else "actor_loss"])
    loss.backward()
    check_gradients(case, policy.model, "actor")
    if "priority" in report:
        check(report["priority"], theirs["priority"])


def test_losses_of_the_values_and_of_the_critics_of_iql_equal_ding() -> None:
    policy, batch, theirs = make_policy("iql"), batch_of("iql"), part("iql", "out")
    loss, _ = policy.value_loss(batch)
    check(loss, theirs["v_loss"])
    loss.backward()
    check_gradients("iql", policy.model, "critic.value")
    policy.model.zero_grad()
    loss, _ = policy.critic_loss(batch)
    check(loss, 2 * theirs["q_loss"])
    loss.backward()
    check_gradients("iql", policy.model, "critic.members", factor=2.0)


@pytest.mark.parametrize("case", ["discrete_cql", "bc", "bc_mse", "bc_l1"])
def test_loss_and_gradients_of_one_optimizer_equal_ding(case: str) -> None:
    policy = make_policy(case)
    loss, _ = policy.loss(policy.prepare(batch_of(case)))
    check(loss, part(case, "out")["total_loss"])
    loss.backward()
    check_gradients(case, policy.model, "")


@pytest.mark.parametrize("kind", ["discrete", "continuous"])
@pytest.mark.parametrize("nstep", [None, NSTEP])
def test_whole_loss_of_ppo_from_replay_equals_ding(kind: str, nstep: int | None) -> None:
    case = f"ppo_offpolicy{'_nstep' if nstep else ''}{'_continuous' if kind == 'continuous' else ''}"
    learn: dict[str, Any] = {"value_norm": False, "adv_norm": False, "ppo_param_init": False, "grad_clip_norm": None}
    learn |= {"clip_ratio": 0.2, "value_clip": 0.2, "value_weight": 0.5, "entropy_weight": 0.01}
    if nstep:  # DI-engine does not halve the squares of n-step returns, nor clip these values
        learn |= {"value_clip": None, "value_weight": 1.0}
    returns = {"nstep_return": True, "nstep": nstep} if nstep else {}
    model: dict[str, Any] = {"obs_shape": tiny.OBS, "action_shape": 2, "action_space": kind}
    config = {"type": "ppo_offpolicy", "discount_factor": GAMMA, "learn": learn, "model": model, **returns}
    policy: Any = create_policy(config, model=network(case, is_theirs=False)).double()
    policy.model.load_state_dict(part(case, "model"))
    given, theirs = part(case, "in"), part(case, "out")
    logit = given.get("logit", {name: given.get(f"logit.{name}") for name in ("mu", "sigma")})
    batch = {
        **batch_of(case),
        "value": given["value"],
        "advantage": given["adv"],
        "return": given["adv"] + given["value"],
    }
    steps = record_gradients(policy)
    report = policy.learn_mode.forward({**batch, "log_prob": rl.distribution_of(logit).log_prob(given["action"])})
    for name in ("total_loss", "policy_loss", "value_loss", "entropy_loss"):
        check(report[name] * (2 if nstep and name == "value_loss" else 1), theirs[name])
    for name, gradient in steps[0].items():
        check(gradient, theirs[f"gradient.{name}"])


def test_n_step_target_of_rescaled_values_equals_ding() -> None:
    given, theirs = part("functions", "in"), part("functions", "out")
    reward = (given["reward"] * GAMMA ** torch.arange(NSTEP)[:, None]).sum(0)
    value = rl.value_unscale(rl.take_action_value(given["next_q"], given["next_action"]), slope=0.01)
    target = rl.value_rescale(reward + GAMMA**NSTEP * ~given["done"] * value, slope=0.01)
    error = (rl.take_action_value(given["q"], given["action"]) - target).square()
    check(error, theirs["r2d2_error"])
    check(rl.weighted_mean(error, given["weight"]), theirs["r2d2_loss"])


def test_targets_of_sequences_equal_the_n_step_target_of_ding() -> None:
    given, theirs = part("functions", "in"), part("functions", "out")
    value = rl.value_unscale(rl.take_action_value(given["next_q"], given["next_action"]), slope=0.01)
    values = torch.cat([torch.zeros(NSTEP, len(value)), value[None]])  # only the last one is reached from the first
    terminated = torch.zeros(NSTEP, len(value), dtype=torch.bool)
    terminated[-1] = given["done"]
    targets = rl.sequence_targets(given["reward"], terminated, torch.ones_like(terminated), values, GAMMA, NSTEP)
    error = rl.take_action_value(given["q"], given["action"]) - rl.value_rescale(targets[0], slope=0.01)
    check(error.square(), theirs["r2d2_error"])


def test_smoothed_cross_entropy_of_two_actions_equals_ding() -> None:
    given = part("functions", "in")
    log_p = given["logit"].log_softmax(1)
    loss = rl.smoothed_cross_entropy(log_p, given["label"], 0.2).mean()  # 0.1 of each other action in DI-engine
    check(loss, part("functions", "out")["smoothed_loss"])
