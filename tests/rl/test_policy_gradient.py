from __future__ import annotations

import pytest
import torch

from lightning_ding.rl import policy_gradient_loss


def test_policy_gradient_loss_is_minus_the_mean_of_the_weighed_log_probabilities() -> None:
    log_prob = torch.tensor([-1.0, -2.0], requires_grad=True)
    weight = torch.tensor([3.0, -0.5], requires_grad=True)
    loss = policy_gradient_loss(log_prob, weight)
    loss.backward()
    assert loss.item() == pytest.approx(1.0, rel=1e-6)  # -(-3 + 1) / 2
    assert log_prob.grad is not None
    assert log_prob.grad.tolist() == [-1.5, 0.25]
    assert weight.grad is None
