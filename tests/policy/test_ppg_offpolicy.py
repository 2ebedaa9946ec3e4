"""PPG from replay: when its auxiliary phases are, what they learn from, and what is kept between them.

Its losses are those of ``ppo_offpolicy`` and ``ppg``, which have their own tests.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from lightning_ding.policy import create_policy
from tests.algorithms.table import make_datamodule, make_policy
from tests.conftest import MakeTrainer

MODEL = {"obs_shape": 4, "action_shape": 2, "action_space": "discrete"}


def make(**changes: Any) -> Any:
    torch.manual_seed(0)
    return make_policy("ppg_offpolicy", model=MODEL, **changes)


def minibatch(returns: Tensor) -> dict[str, Tensor]:
    """Return a prepared minibatch, with returns in units of the critic's output."""
    size = len(returns)
    generator = torch.Generator().manual_seed(1)
    one = {"obs": torch.randn(size, 4, generator=generator), "action": torch.arange(size) % 2}
    zeros = {name: torch.zeros(size) for name in ("value", "advantage")}
    return {**one, **zeros, "log_prob": torch.full((size,), -0.7), "return": returns}


def test_updates_of_the_policy_phase_are_counted_and_the_rest_of_a_phase_is_kept(make_trainer: MakeTrainer) -> None:
    policy: Any = make_policy("ppg_offpolicy")
    make_trainer(limit_val_batches=0).fit(policy, make_datamodule("ppg_offpolicy", max_env_step=64))
    made, waiting = policy.progress.train_iter, len(policy._rollouts)
    assert waiting == made % 4  # aux_freq
    assert made > 4


def test_phase_makes_its_passes_over_the_minibatches_since_the_last_one() -> None:
    policy = make(learn={"aux_freq": 3, "aux_train_epoch": 2, "batch_size": 4, "value_norm": False})
    seen: list[dict[str, Tensor]] = []

    def note(one: dict[str, Tensor]) -> dict[str, Tensor]:
        seen.append(one)
        return {"cloning_loss": torch.zeros(())}

    policy._auxiliary_update = note
    returns = [torch.arange(4.0) + 10 * number for number in range(4)]
    reports = [policy._forward_learn(minibatch(one)) for one in returns]
    assert ["cloning_loss" in report for report in reports] == [False, False, True, False]
    assert len(seen) == 2 * 3  # passes, and minibatches of 4 of the 12 transitions
    for part in (seen[:3], seen[3:]):
        assert_close(torch.cat([one["return"] for one in part]).sort().values, torch.cat(returns[:3]))
    assert_close(policy._rollouts[0]["return"], returns[3])


def test_phase_learns_returns_in_the_units_that_the_critic_has_at_its_end() -> None:
    policy = make(learn={"aux_freq": 2, "aux_train_epoch": 1, "value_norm": "popart"})
    seen: list[Tensor] = []

    def note(one: dict[str, Tensor]) -> dict[str, Tensor]:
        seen.append(policy._returns_of(one["return"]))
        return {}

    policy._auxiliary_update = note
    returns = [torch.linspace(-1, 1, 8), 50 * torch.linspace(0, 1, 8)]
    for one in returns:
        policy._forward_learn(policy.prepare({**minibatch(one), "advantage": torch.linspace(-1, 1, 8)}))
    assert_close(torch.cat(seen).sort().values, torch.cat(returns).sort().values, rtol=1e-4, atol=1e-3)


def test_phase_changes_actor_and_critic() -> None:
    policy = make(learn={"aux_freq": 1, "learning_rate_actor": 0.01, "learning_rate_critic": 0.02})
    before = {name: one.clone() for name, one in policy.model.state_dict().items()}
    report = policy._forward_learn(minibatch(torch.ones(8)))
    assert {"policy_loss", "auxiliary_value_loss", "auxiliary_critic_loss", "cloning_loss"} <= report.keys()
    assert not [name for name, one in policy.model.state_dict().items() if torch.equal(one, before[name])]


def test_minibatches_of_an_unfinished_phase_are_part_of_the_memory() -> None:
    policy, other = make(), make()
    assert policy.collect_memory() == {}
    policy._forward_learn(minibatch(torch.ones(8)))
    other.load_collect_memory(policy.collect_memory())
    assert_close(other._rollouts, policy._rollouts)
    other.load_collect_memory({})
    assert other._rollouts == []


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"learn": {"aux_freq": 0}}, "learn.aux_freq must be >= 1, got 0"),
        ({"model": {"share_encoder": True}}, "model.share_encoder must be False with ppg_offpolicy, got True"),
        ({"reward_model": {"type": "rnd"}}, "reward_model.type must be None with ppg_offpolicy, .* got 'rnd'"),
    ],
)
def test_wrong_options_are_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        create_policy({"type": "ppg_offpolicy", **config})
