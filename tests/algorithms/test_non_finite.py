"""A minibatch whose loss is not finite changes nothing of an algorithm, and is reported."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from lightning_ding import nested
from lightning_ding.config import deep_merge
from lightning_ding.policy import NonFiniteError
from tests.algorithms.half_batches_script import make, whole_batch
from tests.algorithms.table import ALGORITHMS, TEAMS, WITHOUT_COLLECTING

Config = dict[str, Any]

VARIANTS: dict[str, Config] = {  # with parts that learn by other rules than the network
    "cql, multiplier": {"learn": {"with_lagrange": True}},
    "redq, dropout": {"model": {"critic_dropout": 0.1}},
    "crossq, renormalised": {"model": {"renorm_warmup": 0}},
    "a2c, PopArt": {"learn": {"value_norm": "popart"}},
    "ppo, apart": {
        "model": {"share_encoder": False},
        "learn": {"value_norm": False, "learning_rate_actor": 1e-3, "learning_rate_critic": 1e-3},
    },
}
EVERY = pytest.mark.parametrize("name", [*ALGORITHMS, *TEAMS, *WITHOUT_COLLECTING, *VARIANTS])
MOVE_AS_USUAL = ("target_model.", "return_statistics.")  # in skipped updates; the latter by their finite returns
RESCALED = {
    **dict.fromkeys(
        ("ppo", "ppg", "recurrent_ppo", "a2c, PopArt", "trpo"), ("return_statistics.", "model.critic.layers.0.")
    ),
    **dict.fromkeys(
        ("mappo", "ippo", "recurrent_mappo", "happo"), ("return_statistics.", "model.critic.net.layers.0.")
    ),
    "coma": ("return_statistics.", "model.critic.net.layers.0.", "target_model.critic.net.layers.0."),
    "mat": ("return_statistics.", "model.critic.net.layers.1."),
}
"""What follows the returns of a round before its first update, such that values stay the same."""


def trained(name: str, mode: str) -> Any:
    """Return a policy after one update."""
    algorithm = name.split(",")[0]
    policy = make(algorithm, **deep_merge({"on_non_finite": mode}, VARIANTS.get(name, {})))
    policy.updater.guard.writes_dump = False
    policy.learn_mode.forward(whole_batch(policy, algorithm, 0))
    return policy


def bad_batch(policy: Any, name: str, column: str) -> Config:
    """Return a minibatch with one NaN in a column."""
    batch = whole_batch(policy, name.split(",")[0], 1)
    values = nested.apply(torch.clone, batch[column])
    nested.leaves(values)[0].view(-1)[3] = math.nan
    return {**batch, column: values}


def state_of(policy: Any) -> dict[str, Tensor]:
    """Return copies of all weights, targets, statistics and states of optimizers."""
    state = {key: value.clone() for key, value in policy.state_dict().items()}
    for number, optimizer in enumerate(policy.updater.optimizers):
        for place, moments in enumerate(optimizer.state.values()):
            state |= {f"optimizer {number}.{place}.{key}": torch.as_tensor(x).clone() for key, x in moments.items()}
    return state


def changed(policy: Any, before: dict[str, Tensor]) -> list[str]:
    after = state_of(policy)
    return [
        key for key in before.keys() | after.keys() if key not in before or not torch.equal(after[key], before[key])
    ]


@EVERY
def test_an_update_that_raises_changes_nothing(name: str) -> None:
    policy = trained(name, "raise")
    before, done = state_of(policy), policy.progress.train_iter
    with pytest.raises(NonFiniteError, match=f"update {done}: the loss") as caught:
        policy.learn_mode.forward(bad_batch(policy, name, "obs"))
    assert [key for key in changed(policy, before) if not key.startswith(RESCALED.get(name, ()))] == []
    assert caught.value.update == policy.progress.train_iter == done


@EVERY
def test_a_skipped_update_changes_no_weight_and_no_state_of_an_optimizer(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    policy = trained(name, "skip_update")
    before, done = state_of(policy), policy.progress.train_iter
    report = policy.learn_mode.forward(bad_batch(policy, name, "obs"))
    allowed = (*MOVE_AS_USUAL, *RESCALED.get(name, ()))
    assert [key for key in changed(policy, before) if not key.startswith(allowed)] == []
    assert "priority" not in report
    assert policy.updater.guard.skipped_updates >= 1
    assert policy.progress.train_iter > done
    assert "the optimizer step was skipped" in caplog.text
    policy.learn_mode.forward(whole_batch(policy, name.split(",")[0], 2))
    assert any(key.startswith("model.") for key in changed(policy, before))


@pytest.mark.parametrize(("name", "optimizer", "made"), [("fqf", 0, "model.fraction."), ("iql", 0, "model.value.")])
def test_an_earlier_finite_loss_of_the_same_minibatch_is_learned_from(name: str, optimizer: int, made: str) -> None:
    policy = trained(name, "raise")
    before = state_of(policy)
    with pytest.raises(NonFiniteError, match=f"of optimizer {optimizer} is nan"):
        policy.learn_mode.forward(bad_batch(policy, name, "reward"))
    found = changed(policy, before)
    assert any(key.startswith(made) for key in found)
    assert not [key for key in found if key.startswith(("target_model.", "model.critic.", f"optimizer {optimizer}."))]


def test_statistics_of_a_skipped_loss_of_crossq_are_left_out() -> None:
    policy = trained("crossq", "skip_update")
    before = state_of(policy)
    policy.learn_mode.forward(bad_batch(policy, "crossq", "reward"))  # the actor's loss is finite, the critics' is not
    found = changed(policy, before)
    assert not [key for key in found if key.startswith(("model.critic.", "optimizer 0."))]
    assert {"model.actor.head.renorms.0.mean", "model.actor.head.renorms.0.updates"} <= set(found)
