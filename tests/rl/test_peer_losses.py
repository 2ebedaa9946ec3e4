"""Losses and targets equal those of sb3-contrib and Tianshou on random numbers; ``make_peer_losses`` computed those."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.testing import assert_close

from lightning_ding import rl
from tests.rl.make_peer_losses import ALPHA, PREDICTED, SUBSET

FOLDER = Path(__file__).parent
STORED = {
    **load_file(FOLDER / "sb3_contrib_losses.safetensors"),
    **load_file(FOLDER / "tianshou_losses.safetensors"),
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
