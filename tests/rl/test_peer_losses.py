"""Losses and targets equal those of other projects on random numbers; ``make_peer_losses`` computed those.

A comment says where they mean something else.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.testing import assert_close

from lightning_ding import rl
from lightning_ding.policy import AWACPolicy, CrossQPolicy, IQLPolicy
from tests.di_engine.tiny_networks import DIMENSIONS, OBS, TinyQAC
from tests.rl.make_peer_losses import ALPHA, BETA, GAMMA, PREDICTED, ROWS, SAMPLES, SUBSET, TARGET_ENTROPY, TinyBatchQAC

FOLDER = Path(__file__).parent
STORED = {
    **load_file(FOLDER / "sb3_contrib_losses.safetensors"),
    **load_file(FOLDER / "tianshou_losses.safetensors"),
    **load_file(FOLDER / "d3rlpy_losses.safetensors"),
}
TAU = (torch.arange(PREDICTED, dtype=torch.float64) + 0.5) / PREDICTED


def stored(name: str) -> Tensor:
    return STORED[name].clone()


def check(ours: Tensor, theirs: Tensor) -> None:
    assert_close(ours.detach(), theirs, rtol=1e-5, atol=1e-7)  # the levels of sb3-contrib are in single precision


def test_quantile_loss_of_an_ensemble_equals_sb3_contrib() -> None:
    quantile = stored("tqc/in/quantile").requires_grad_()
    loss = rl.ensemble_quantile_huber(quantile, stored("tqc/in/target").sort(1).values, TAU).mean()
    check(loss, stored("tqc/out/loss"))
    loss.backward()
    assert quantile.grad is not None
    check(quantile.grad, stored("tqc/out/gradient"))


def test_quantile_loss_equals_sb3_contrib() -> None:
    quantile = stored("qrdqn/in/quantile").requires_grad_()
    loss = rl.quantile_huber(quantile, stored("qrdqn/in/target"), TAU).mean()
    check(loss, stored("qrdqn/out/loss"))
    loss.backward()
    assert quantile.grad is not None
    check(quantile.grad, stored("qrdqn/out/gradient"))


def test_soft_value_of_some_critics_equals_tianshou() -> None:
    q, log_prob = stored("redq/in/q"), stored("redq/in/log_prob")
    nothing, alpha = torch.zeros_like(log_prob), torch.tensor(ALPHA, dtype=torch.float64)
    value = rl.soft_target(nothing, torch.ones_like(log_prob), q[SUBSET], log_prob, alpha)
    check(value, stored("redq/out/value"))


SHAPES = {"obs_shape": OBS, "action_shape": DIMENSIONS}


def part(case: str, name: str) -> dict[str, Tensor]:
    """Return the stored tensors ``case/name/...``."""
    prefix = f"{case}/{name}/"
    return {key.removeprefix(prefix): value.clone() for key, value in STORED.items() if key.startswith(prefix)}


def loaded(network: Any, case: str) -> Any:
    """Return the network in double precision with the stored parameters."""
    network.double().load_state_dict(part(case, "model"))
    return network


def check_gradients(case: str, network: Any, prefix: str, factor: Any = 1.0) -> None:
    """Compare the gradients of all parameters whose names start with the prefix."""
    named = {name: one for name, one in network.named_parameters() if name.startswith(prefix)}
    assert named
    for name, parameter in named.items():
        check(parameter.grad, factor * stored(f"{case}/out/gradient.{name}"))


def test_losses_and_gradients_of_crossq_equal_sb3_contrib() -> None:
    given = part("crossq", "in")
    config = {"model": SHAPES, "learn": {"alpha": ALPHA, "target_entropy": TARGET_ENTROPY}}
    policy: Any = CrossQPolicy(config, model=loaded(TinyBatchQAC("gaussian"), "crossq")).double()
    batch = {**given, "discount_t": GAMMA * ~given["terminated"]}
    loss, _ = policy.critic_loss(batch)
    check(loss, 2 * stored("crossq/out/critic_loss"))  # sb3-contrib takes half the squares
    loss.backward()
    check_gradients("crossq", policy.model, "critic", 2.0)
    policy.model.zero_grad()
    loss, report = policy.actor_loss(batch)
    check(loss, stored("crossq/out/actor_loss"))
    loss.backward()
    check_gradients("crossq", policy.model, "actor")
    loss, _ = policy.alpha_loss(report)
    check(loss, stored("crossq/out/ent_coef_loss"))
    loss.backward()
    check(policy.temperature.grad, stored("crossq/out/temperature"))


def test_loss_and_gradients_of_the_actor_of_iql_equal_d3rlpy() -> None:
    model = loaded(TinyQAC("gaussian", with_value=True), "iql")
    policy: Any = IQLPolicy({"model": SHAPES, "learn": {"beta": BETA}}, model=model).double()
    loss, report = policy.actor_loss(part("iql", "in"))
    check(loss, stored("iql/out/loss"))
    assert report["weight"].std() > 0
    loss.backward()
    check_gradients("iql", policy.model, "actor")


def test_loss_and_gradients_of_the_actor_of_awac_equal_d3rlpy() -> None:
    model = loaded(TinyQAC("gaussian", with_value=True), "awac")
    policy: Any = AWACPolicy({"model": SHAPES, "learn": {"beta": BETA, "num_actions": SAMPLES}}, model=model).double()
    loss, report = policy.actor_loss(part("awac", "in"))
    assert report["weight"].amax() < 100  # so that no weight is bounded
    scale = ROWS**2 / report["weight"].sum()  # in d3rlpy the weights add up to the number of rows, and so does the loss
    check(scale * loss, stored("awac/out/loss"))
    loss.backward()
    check_gradients("awac", policy.model, "actor", 1 / scale)
