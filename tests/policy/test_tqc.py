"""TQC against numbers worked out by hand, and SAC's actor with the mean of the quantiles.

Two critics predict two quantiles each, which are weights times the action's sum. The actor's output is a weight.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from lightning_ding.policy import TQCPolicy
from tests.policy.tables import TinyActor, make_box_batch

ONLINE = [[0.0, 1.0], [4.0, 4.0]]
TARGET = [[1.0, 9.0], [3.0, 5.0]]


class TinyQuantiles(TinyActor):
    """The network of the docstring above."""

    def compute_critic(self, obs: Tensor, action: Tensor, members: int | None = None) -> dict[str, Tensor]:
        quantile = self.critic.values[:, None] * action.sum(1)[:, None]
        return {"q_value": quantile.mean(2), "quantile": quantile, "tau": torch.tensor([0.25, 0.75])}


def make_policy(**cfg: Any) -> TQCPolicy:
    model = {"action_low": [-1.0], "action_high": [1.0], "ensemble_num": 2, "num_quantiles": 2}
    learn = {"dropped_quantiles": 1, "alpha": 0.25, **cfg.pop("learn", {})}
    policy = TQCPolicy({"discount_factor": 0.5, "model": model, "learn": learn, **cfg}, model=TinyQuantiles(ONLINE))
    policy.target_model.load_state_dict(TinyQuantiles(TARGET).state_dict())
    return policy


def make_batch(policy: TQCPolicy, **changes: Any) -> Any:
    """Return two transitions with action 1, the second of which terminates, and no noise in the next action."""
    noise = {name: torch.full((2, 1), 0.5) for name in ("noise", "next_noise")}
    return policy.prepare(make_box_batch(**changes)) | noise


ACTION = math.tanh(0.5)
LOG_PROB = -0.125 - 0.5 * math.log(2 * math.pi) - math.log(1 - ACTION**2)


def test_the_target_leaves_out_the_largest_quantiles_and_holds_the_entropy() -> None:
    """Of the target's 1, 3, 5 and 9 times the action, 1 and 3 are left; the terminated item has the reward only."""
    policy = make_policy()
    found = policy._targets(make_batch(policy))
    kept = [1 + 0.5 * (weight * ACTION - 0.25 * LOG_PROB) for weight in (1.0, 3.0)]
    assert_close(found, torch.tensor([kept, [-1.0, -1.0]]))


def test_the_loss_is_the_sum_over_critics_of_the_mean_quantile_huber_loss() -> None:
    """Both targets of item 2, which alone has a weight, are -1.

    Critic 1 predicts 0 and 1: errors -1 and -2, Huber 0.5 and 1.5: (0.75 * 0.5 + 0.25 * 1.5) / 2. Critic 2 predicts 4
    twice: error -5, Huber 4.5: (0.75 + 0.25) * 4.5 / 2.
    """
    policy = make_policy(priority=True, priority_IS_weight=True)
    loss, report = policy.critic_loss(make_batch(policy, IS=torch.tensor([0.0, 1.0])))
    assert loss.item() == (0.375 + 2.25) / 2
    assert report["priority"][1].item() == (0.375 + 2.25) / 2
    assert report["q_value"].tolist() == [[0.5, 0.5], [4.0, 4.0]]
    assert report["target_q_value"][1].item() == -1.0


def test_the_actor_climbs_the_mean_of_all_quantiles() -> None:
    policy = make_policy()
    loss, _ = policy.actor_loss(make_batch(policy))
    assert loss.item() == pytest.approx(0.25 * LOG_PROB - (0 + 1 + 4 + 4) / 4 * ACTION, rel=1e-5)


@pytest.mark.parametrize(
    ("cfg", "message"),
    [
        ({"model": {"ensemble_num": 0}}, "model.ensemble_num must be >= 1, got 0"),
        ({"model": {"num_quantiles": 0}}, "model.num_quantiles must be >= 1, got 0"),
        ({"learn": {"dropped_quantiles": 25}}, r"learn.dropped_quantiles must be in \[0, 25\)"),
        ({"learn": {"dropped_quantiles": -1}}, r"learn.dropped_quantiles must be in \[0, 25\)"),
        ({"learn": {"kappa": 0.0}}, "learn.kappa must be > 0, got 0.0"),
    ],
)
def test_a_value_that_is_out_of_its_range_is_refused(cfg: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TQCPolicy(cfg)
