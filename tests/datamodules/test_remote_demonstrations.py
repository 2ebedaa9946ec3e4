"""Demonstrations that a distributed learner adds to the rounds that it gets."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback, Trainer

from lightning_ding import nested
from lightning_ding.callbacks import RunCheckpoint
from lightning_ding.callbacks.remote import LearningReporter, WeightPublisher
from lightning_ding.datamodules.dataset import Dataset
from lightning_ding.datamodules.demonstrations import Demonstrations
from lightning_ding.datamodules.remote import RemoteReplayDataModule
from lightning_ding.datamodules.remote_feed import RemoteData, RemoteRound
from lightning_ding.policy import DQfDPolicy, DQNPolicy, PPOPolicy, SQILPolicy
from lightning_ding.policy.base.spaces import ActionStart
from lightning_ding.worker import create_buffer
from tests.conftest import MakeTrainer
from tests.datamodules.remote_source import BATCH, UPDATES, Source, minibatches
from tests.datamodules.test_demonstrations import SMALL, demos

Config = dict[str, Any]
PLAIN_DQFD: Config = {**SMALL, "priority": False, "priority_IS_weight": False}


class PartSource(Source):
    """Rounds with as many transitions in a minibatch as are requested; ``reward_1`` is 5."""

    def get_data(self, batch_size: int, *args: Any) -> RemoteData:
        answer = super().get_data(batch_size, *args)
        if answer.data is not None:
            data = answer.data | {f"{name}_1": answer.data[name] for name in ("next_obs", "terminated")}
            answer.data.clear()
            answer.data.update(nested.apply(lambda x: x[:, :batch_size], data | {"reward_1": data["reward"] * 0 + 5}))
            answer.data["discount"] = torch.full_like(answer.data["reward"], 0.9)
        return answer


class AtRandom(DQNPolicy):
    rounds_share_at_random = True


def batches(make_trainer: MakeTrainer, policy_class: Any, config: Config, source: Source, **data: Any) -> list[Any]:
    """Return the minibatches that a policy learns from."""
    seen: list[Any] = []

    class Noting(policy_class):  # type: ignore[misc]
        def _forward_learn(self, batch: dict[str, Any]) -> dict[str, Any]:
            seen.append(nested.apply(lambda x: x.clone(), batch))
            return super()._forward_learn(batch)  # type: ignore[no-any-return]

    arguments: Config = {"validate": False, "demonstrations": demos(), **data}
    callbacks = arguments.pop("callbacks", [])
    datamodule = RemoteReplayDataModule(source, "CartPole-v1", **arguments)
    make_trainer(limit_val_batches=0, max_epochs=-1, callbacks=callbacks).fit(Noting(config), datamodule)
    return seen


@pytest.mark.parametrize("prefetch", [0, 2])
def test_minibatch_begins_with_what_came_and_ends_with_demonstrations(make_trainer: MakeTrainer, prefetch: int) -> None:
    source = PartSource(3)
    seen = batches(make_trainer, DQNPolicy, SMALL, source, demonstration_share=0.25, prefetch=prefetch)
    assert len(seen) == 3 * UPDATES
    assert {asked[:2] for asked in source.asked} == {(6, UPDATES)}
    for number, batch in enumerate(seen):
        sent, row = minibatches(number // UPDATES), number % UPDATES
        for name in ("obs", "action", "reward", "next_obs"):
            assert torch.equal(batch[name][:6], sent[name][row, :6].to(batch[name].dtype)), name
        assert batch["is_expert"].tolist() == [False] * 6 + [True] * 2
        assert (batch["obs"][6:, 0] >= 100).all()
        assert batch["reward"][6:].tolist() == [7.0, 7.0]


def test_number_of_demonstrations_follows_from_the_answer(make_trainer: MakeTrainer) -> None:
    source = PartSource(12)
    seen = batches(make_trainer, AtRandom, SMALL, source, demonstration_share=0.19, prefetch=2)  # 1.52 of 8
    sizes = [asked[0] for asked in source.asked[:12]]
    assert set(sizes) == {6, 7}
    assert [int((~batch["is_expert"]).sum()) for batch in seen] == [size for size in sizes for _ in range(UPDATES)]
    assert {len(batch["reward"]) for batch in seen} == {BATCH}


@pytest.mark.parametrize("policy_class", [SQILPolicy, DQfDPolicy])
def test_imitation_rewards_are_one_and_zero(make_trainer: MakeTrainer, policy_class: Any) -> None:
    given = {} if policy_class is SQILPolicy else {"imitation_reward": True}
    config = {**PLAIN_DQFD, "learn": {**SMALL["learn"], "per_train_iter_k": 0}} if given else SMALL
    seen = batches(make_trainer, policy_class, config, PartSource(2), **given)
    assert len(seen) == 4
    for batch in seen:
        for name in ("reward", "reward_1") if given else ("reward",):
            assert batch[name].tolist() == [0.0] * 4 + [1.0] * 4, name


def test_priorities_reach_the_buffer_of_their_part() -> None:
    config = create_buffer({"type": "advanced"}).config
    seed, data = np.random.SeedSequence(0), nested.apply(lambda x: x[:, :6], minibatches(0, prioritised=True))
    demo = Demonstrations(Dataset(demos()), 0.25, config, seed, ActionStart(), False)
    demo.fill(keeps_double=False)
    mixed = demo.alone()
    round_ = RemoteRound(mixed.complete(data, 2, num_batches=UPDATES), UPDATES, mixed)
    assert round_.drawn is None
    told: dict[int, float] = {}
    for number, batch in enumerate(round_):
        priority = torch.arange(8.0) + 10 * number + 1
        round_.update_priority(batch, priority)
        told |= dict(zip(batch["replay_buffer_idx"][6:].tolist(), priority[6:].tolist(), strict=True))
    own = round_.priorities()
    assert own is not None
    assert own["priority"].tolist() == [*range(1, 7), *range(11, 17)]
    assert own["replay_buffer_idx"].tolist() == [*range(6), *range(8, 14)]
    assert own["replay_unique_id"].tolist() == [*range(100, 106), *range(108, 114)]
    kept = demo.buffer.state_dict()["tensors"]["own/priority"]
    for row, priority_of_row in told.items():
        assert kept[row] == pytest.approx(priority_of_row, rel=1e-4)


def test_pretraining_comes_before_the_first_request_and_the_first_weights(make_trainer: MakeTrainer) -> None:
    published: list[int] = []
    reported: list[Mapping[str, Any]] = []

    class NotYetAsked(Callback):
        def on_train_batch_start(self, trainer: Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
            assert pl_module.progress.train_iter >= 5 or not source.asked

    source, config = PartSource(2, prioritised=True), {**SMALL, "learn": {**SMALL["learn"], "per_train_iter_k": 5}}
    config |= {"priority": True, "other": {"replay_buffer": {"type": "advanced"}}}
    publisher = WeightPublisher(lambda state: published.append(state["iter"]), every_n_rounds=100)
    callbacks = [NotYetAsked(), publisher, LearningReporter(reported.append)]
    seen = batches(make_trainer, DQfDPolicy, config, source, callbacks=callbacks)
    assert [float(batch["is_expert"].float().mean()) for batch in seen] == [1.0] * 5 + [0.5] * 4
    assert source.asked[0][2] == 5
    assert published == [5, 9]
    priorities = [info["priority_info"] for info in reported]
    assert [None if one is None else len(one["priority"]) for one in priorities] == [None, None, None, 8, 8]


def test_statistics_of_observations_begin_with_the_demonstrations(make_trainer: MakeTrainer) -> None:
    policy = DQfDPolicy({**PLAIN_DQFD, "learn": {**SMALL["learn"], "per_train_iter_k": 2}})
    counts: list[float] = []

    class Counting(Callback):
        def on_train_batch_start(self, trainer: Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
            counts.append(pl_module.normaliser.state_dict()["obs.count"].item())

    datamodule = RemoteReplayDataModule(
        PartSource(1), "CartPole-v1", demonstrations=demos(), validate=False, norm_obs=True
    )
    make_trainer(limit_val_batches=0, callbacks=[Counting()], max_epochs=-1).fit(policy, datamodule)
    assert counts[:2] == [40, 40 + UPDATES * 4]


def test_resumed_learner_continues_the_draws_and_the_priorities(make_trainer: MakeTrainer, tmp_path: Path) -> None:
    class Draws(Callback):
        states: list[Any] = []  # noqa: RUF012 - of one test
        priorities: list[Any] = []  # noqa: RUF012

        def note(self, trainer: Trainer) -> None:
            found = trainer.datamodule._demonstrations  # type: ignore[attr-defined]
            self.states.append(found._draws.bit_generator.state["state"])
            self.priorities.append(np.array(found.buffer.state_dict()["tensors"]["own/priority"]))

        def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
            self.note(trainer)

        def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
            self.note(trainer)

    def fit(file: Any = None, **data: Any) -> None:
        config = {**SMALL, "priority": True, "other": {"replay_buffer": {"type": "advanced"}}}
        source = PartSource(2, prioritised=True)
        arguments: Config = {"demonstrations": demos(), "validate": False, **data}
        datamodule = RemoteReplayDataModule(source, "CartPole-v1", **arguments)
        callbacks = [RunCheckpoint(tmp_path), Draws()]
        trainer = make_trainer(enable_checkpointing=True, limit_val_batches=0, callbacks=callbacks, max_epochs=-1)
        trainer.fit(DQNPolicy(config), datamodule, ckpt_path=file, weights_only=True if file else None)

    fit()
    fit(tmp_path / "last.ckpt")
    assert Draws.states[0] != Draws.states[1] == Draws.states[2] != Draws.states[3]
    assert not np.array_equal(Draws.priorities[0], Draws.priorities[1])
    assert np.array_equal(Draws.priorities[1], Draws.priorities[2])
    with pytest.raises(ValueError, match="demonstrations must be those of the checkpoint"):
        fit(tmp_path / "last.ckpt", demonstrations=demos(50))


def test_mistakes_are_named(make_trainer: MakeTrainer) -> None:
    def fit(policy: Any, **data: Any) -> None:
        make_trainer().fit(policy, RemoteReplayDataModule(Source(1), "CartPole-v1", **data))

    with pytest.raises(ValueError, match="demonstrations must be a data set, because SQILPolicy learns from demonst"):
        fit(SQILPolicy(SMALL))
    with pytest.raises(ValueError, match="demonstrations must be None, because PPOPolicy learns from"):
        fit(PPOPolicy(), demonstrations=demos())
    with pytest.raises(ValueError, match=r"demonstration_share must be in \(0, 1\), got 0"):
        fit(DQNPolicy(SMALL), demonstrations=demos(), demonstration_share=0)
    with pytest.raises(ValueError, match="demonstrations must be a data set with demonstration_share or imitation"):
        fit(DQNPolicy(SMALL), imitation_reward=True)
    her = {**SMALL, "other": {"replay_buffer": {"type": "her"}}}
    with pytest.raises(ValueError, match=r"other\.replay_buffer\.type must be one that needs no env"):
        fit(DQNPolicy(her), demonstrations=demos())
