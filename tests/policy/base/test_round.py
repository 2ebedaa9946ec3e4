"""A round is learned from: single minibatches, several, and prepared ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.testing import assert_close

from lightning_ding import nested
from lightning_ding.config import deep_merge
from lightning_ding.policy import DQNPolicy
from tests.policy.base.small_dqn import CFG, make_batch, make_policy, weights


def test_learning_from_a_list_of_transitions_is_learning_from_the_batch() -> None:
    batch = make_batch()
    rows = [{name: value[i] for name, value in batch.items()} for i in range(6)]
    from_batch, from_list = make_policy(), make_policy()
    reports = from_batch.learn_mode.forward(batch), from_list.learn_mode.forward(rows)
    assert_close(reports[1], reports[0])
    assert weights(from_list.model) == weights(from_batch.model)


def test_learning_from_whole_rewards_is_learning_from_the_same_rewards_as_floats() -> None:
    # gamma must not become the whole number 0
    batch = make_batch()
    rows = [{**{name: value[i] for name, value in batch.items()}, "reward": i, "terminated": i == 0} for i in range(6)]
    floats = [{**row, "reward": float(row["reward"])} for row in rows]
    targets = [make_policy().learn_mode.forward(data)["target_q_value"] for data in (rows, floats)]
    assert_close(targets[0], targets[1])


def test_learning_counts_updates(policy: DQNPolicy) -> None:
    for _ in range(3):
        policy.learn_mode.forward(make_batch())
    assert policy.progress.train_iter == 3


def test_learning_puts_the_policy_in_training(policy: DQNPolicy) -> None:
    policy.eval()
    policy.learn_mode.forward(make_batch())
    assert (policy.training, policy.model.training) == (True, True)


class Minibatches:
    """A round whose minibatches are given."""

    drawn = None

    def __init__(self, *batches: dict[str, Any]) -> None:
        self.batches = batches

    def __iter__(self) -> Any:
        return iter(self.batches)

    def prepare(self, function: Any) -> None:
        """Nothing is drawn beforehand."""

    def update_priority(self, batch: Any, priority: torch.Tensor) -> None:
        raise AssertionError("priorities must not be updated")


@pytest.mark.parametrize("one", ["batch", "list", "round"])
def test_training_step_makes_one_update_for_each_minibatch(one: str) -> None:
    batch = make_batch()
    rows = [{name: value[i] for name, value in batch.items()} for i in range(6)]
    rounds: dict[str, Any] = {"batch": batch, "list": rows, "round": Minibatches(batch)}
    policy, plain = make_policy(), make_policy()
    plain.learn_mode.forward(batch)
    policy.training_step(rounds[one], 0)
    assert (policy.progress.train_iter, weights(policy.model)) == (1, weights(plain.model))


def test_training_step_gives_the_priorities_of_each_minibatch_back_before_the_next() -> None:
    class Recording:
        drawn = None

        def __init__(self) -> None:
            self.events: list[Any] = []

        def __iter__(self) -> Any:
            for seed in range(2):
                self.events.append(("draw", seed))
                yield {**make_batch(seed), "number": seed}

        def prepare(self, function: Any) -> None:
            self.events.append("prepare")

        def update_priority(self, batch: Any, priority: torch.Tensor) -> None:
            self.events.append(("priority", batch["number"], tuple(priority.shape)))

    policy, recording = DQNPolicy({**CFG, "priority": True}), Recording()
    policy.training_step(recording, 0)
    assert recording.events == ["prepare", ("draw", 0), ("priority", 0, (6,)), ("draw", 1), ("priority", 1, (6,))]


def test_training_step_keeps_the_report_of_the_last_update_of_each_round() -> None:
    policy, plain = make_policy(), make_policy()
    losses = [plain.learn_mode.forward(make_batch(seed))["total_loss"] for seed in range(4)]
    policy.training_step(Minibatches(make_batch(0), make_batch(1)), 0)
    policy.training_step(Minibatches(make_batch(2), make_batch(3)), 1)
    assert_close(policy.metrics.flush()["total_loss"], ((losses[1] + losses[3]) / 2).item())


@pytest.mark.parametrize("freq", [3, 4])  # copied before the last of four updates, and after it
def test_training_step_with_a_prepared_round_equals_single_updates(freq: int) -> None:
    batches = [make_batch(seed) for seed in range(4)]
    policy, plain = (make_policy(cfg=deep_merge(CFG, {"learn": {"target_update_freq": freq}})) for _ in range(2))
    prepared = policy._prepare_round({name: torch.stack([b[name] for b in batches]) for name in batches[0]})
    assert ("target" in prepared) == (freq == 4)
    policy.training_step(Minibatches(*nested.unbind(prepared)), 0)  # type: ignore[arg-type]
    for batch in batches:
        plain.learn_mode.forward(batch)
    assert_close(weights(policy.model), weights(plain.model), rtol=1e-5, atol=1e-6)
