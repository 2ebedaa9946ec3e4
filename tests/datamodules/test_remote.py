from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from gymnasium import spaces
from lightning import LightningDataModule, Trainer
from lightning.pytorch import Callback

from lightning_ding.callbacks import RunCheckpoint
from lightning_ding.callbacks.remote import LearningReporter
from lightning_ding.datamodules.remote import RemoteReplayDataModule
from lightning_ding.datamodules.remote_feed import RemoteData, RemoteFeed, RemoteRound
from lightning_ding.datamodules.replay_round import ReplayRound
from lightning_ding.datamodules.trainer_setup import Stream
from lightning_ding.policy import DQNPolicy, DTPolicy, IMPALAPolicy
from tests.conftest import MakeTrainer
from tests.datamodules.remote_source import BATCH, UPDATES, Source, minibatches

Config = dict[str, Any]

DEADLINE = 30.0


class LocalRounds(LightningDataModule):
    """The same rounds out of a buffer of this process."""

    single_observation_space = spaces.Box(-1.0, 1.0, (4,))
    single_action_space = spaces.Discrete(2)

    def __init__(self, rounds: int) -> None:
        super().__init__()
        self.rounds = rounds

    def train_dataloader(self) -> Any:
        numbers = iter(range(self.rounds))

        class Buffer:
            is_prioritised = False

            def sample(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
                return minibatches(next(numbers))

        buffer: Any = Buffer()
        return Stream(lambda: ReplayRound(buffer, UPDATES, BATCH, 0, {}), self.rounds)


class Watch(Callback):
    """Notes what callbacks see of a run."""

    def __init__(self) -> None:
        self.evaluated_at: list[int] = []
        self.metrics: dict[str, float] = {}
        self.rounds = self.env_step = 0

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.rounds += batch is not None

    def on_validation_end(self, trainer: Trainer, pl_module: Any) -> None:
        self.evaluated_at.append(pl_module.progress.train_iter)
        self.env_step = pl_module.progress.env_step
        self.metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}


def policy_of(small: Config, **more: Any) -> DQNPolicy:
    torch.manual_seed(7)
    return DQNPolicy({**small, **more})


def test_rounds_are_learned_from_exactly_as_they_were_sent(make_trainer: MakeTrainer, small: Config) -> None:
    remote, local = policy_of(small), policy_of(small)
    for policy in (remote, local):
        torch.manual_seed(1)
        policy.build(LocalRounds.single_observation_space, LocalRounds.single_action_space)
    module = RemoteReplayDataModule(Source(5), "CartPole-v1", validate=False)
    make_trainer(limit_val_batches=0, max_epochs=-1).fit(remote, module)
    make_trainer(limit_val_batches=0, max_epochs=1).fit(local, LocalRounds(5))
    assert remote.progress.train_iter == local.progress.train_iter == 10
    for name, tensor in local.state_dict().items():
        assert torch.equal(tensor, remote.state_dict()[name]), name


@pytest.mark.parametrize("prefetch", [0, 1, 2])
def test_that_many_rounds_are_asked_for_ahead(make_trainer: MakeTrainer, small: Config, prefetch: int) -> None:
    source = Source(8)

    class AheadOfLearning(Callback):
        lead = 0

        def on_train_batch_start(self, trainer: Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
            until, wanted = time.monotonic() + DEADLINE, min(batch_idx + 1 + prefetch, 9)
            while len(source.asked) < wanted and time.monotonic() < until:
                time.sleep(0.005)
            time.sleep(0.02)  # whoever asks too early has the time for it
            self.lead = max(self.lead, len(source.asked) - (batch_idx + 1))

    ahead = AheadOfLearning()
    module = RemoteReplayDataModule(source, "CartPole-v1", validate=False, prefetch=prefetch)
    make_trainer(limit_val_batches=0, callbacks=[ahead]).fit(policy_of(small), module)
    assert ahead.lead == prefetch
    assert source.asked[0] == (BATCH, UPDATES, 0, {"n_step": 3, "discount_factor": 0.99}, 0)
    if not prefetch:
        assert [iteration for _, _, iteration, _, _ in source.asked] == list(range(0, 18, 2))


def test_the_end_of_the_run_comes_with_an_evaluation_and_a_checkpoint(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path
) -> None:
    waits = RemoteData(wait=0.01, progress={"env_step": 130})
    source, watch = Source(3, waits), Watch()
    policy = policy_of(small)
    module = RemoteReplayDataModule(source, "CartPole-v1", rounds_per_epoch=100, n_evaluator_episode=2)

    def end_while_it_waits() -> None:
        until = time.monotonic() + DEADLINE
        while (len(source.asked) < 6 or watch.rounds < 3) and time.monotonic() < until:
            time.sleep(0.01)
        source.afterwards = RemoteData(stop=True, progress={"env_step": 140, "episode": 9, "sample": 77})

    thread = threading.Thread(target=end_while_it_waits)
    thread.start()
    trainer = make_trainer(callbacks=[watch], enable_checkpointing=True, max_epochs=-1)
    trainer.fit(policy, module)
    thread.join()
    assert trainer.state.finished
    assert watch.rounds == 3
    assert watch.evaluated_at == [6]
    assert policy.progress.state_dict() == {"train_iter": 6, "env_step": 140, "episode": 9, "sample": 77}
    (saved,) = tmp_path.glob("checkpoints/last-*/run.ckpt")
    checkpoint = torch.load(saved, weights_only=True)
    assert checkpoint["progress"]["env_step"] == 140
    assert [file.name for file in (saved.parent / "rank_0").iterdir()] == ["rng.pt"]


def test_what_the_answers_say_is_logged(make_trainer: MakeTrainer, small: Config) -> None:
    watch = Watch()
    module = RemoteReplayDataModule(Source(4), "CartPole-v1", rounds_per_epoch=4, n_evaluator_episode=2, prefetch=0)
    make_trainer(callbacks=[watch], max_epochs=1).fit(policy_of(small), module)
    assert watch.metrics["collect/return_mean"] == 1.5  # of 0, 1, 2, 3
    assert watch.metrics["collect/length_mean"] == 2.5
    assert watch.metrics["remote/policy_lag"] == 3.5
    assert watch.metrics["remote/prefetched"] == 0
    assert watch.metrics["remote/round_wait"] > 0
    assert watch.metrics["collect/dropped_episode"] == 4
    assert "remote/collector_wait" not in watch.metrics
    assert watch.metrics["collect/eps"] == pytest.approx(policy_of(small)._epsilon_at(watch.env_step))


def test_rounds_per_epoch_say_how_often_it_is_evaluated(make_trainer: MakeTrainer, small: Config) -> None:
    watch = Watch()
    module = RemoteReplayDataModule(Source(6), "CartPole-v1", rounds_per_epoch=2, n_evaluator_episode=2)
    make_trainer(callbacks=[watch], max_epochs=3).fit(policy_of(small), module)
    assert watch.evaluated_at == [4, 8, 12]


def test_without_validation_no_env_is_stepped_and_the_trainer_has_to_know(
    make_trainer: MakeTrainer, small: Config
) -> None:
    watch = Watch()
    module = RemoteReplayDataModule(Source(3), "CartPole-v1", validate=False, rounds_per_epoch=1)
    make_trainer(callbacks=[watch], limit_val_batches=0).fit(policy_of(small), module)
    assert watch.evaluated_at == []
    assert module.evaluator is None
    with pytest.raises(ValueError, match="limit_val_batches must be 0 if validate is False"):
        make_trainer().fit(policy_of(small), RemoteReplayDataModule(Source(3), "CartPole-v1", validate=False))


def test_budgets_end_the_run(make_trainer: MakeTrainer, small: Config) -> None:
    policy = policy_of(small)
    module = RemoteReplayDataModule(Source(50), "CartPole-v1", validate=False, max_env_step=130)
    make_trainer(limit_val_batches=0).fit(policy, module)
    assert policy.progress.env_step == 130  # of the fourth answer
    assert policy.progress.train_iter == 8
    policy = policy_of(small)
    module = RemoteReplayDataModule(Source(50), "CartPole-v1", validate=False, max_train_iter=6)
    make_trainer(limit_val_batches=0).fit(policy, module)
    assert policy.progress.train_iter == 6


@pytest.mark.parametrize("prefetch", [0, 2])
def test_an_error_of_the_thread_that_fetches_ends_the_fit(
    make_trainer: MakeTrainer, small: Config, prefetch: int
) -> None:
    source = Source(3, OSError("the cable is cut"))
    module = RemoteReplayDataModule(source, "CartPole-v1", validate=False, prefetch=prefetch)
    policy = policy_of(small)
    with pytest.raises(OSError, match="the cable is cut"):
        make_trainer(limit_val_batches=0).fit(policy, module)
    assert policy.progress.train_iter == 6  # what had come is learned from
    assert not [one for one in threading.enumerate() if one.name == "remote feed"]


def test_no_data_for_too_long_is_an_error(make_trainer: MakeTrainer, small: Config) -> None:
    source = Source(1, RemoteData(wait=0.01, progress={"env_step": 100}))
    module = RemoteReplayDataModule(source, "CartPole-v1", validate=False, patience=0.3)
    with pytest.raises(TimeoutError, match=r"no env step for 0.3 s, at env step 100: is a collector running\?"):
        make_trainer(limit_val_batches=0).fit(policy_of(small), module)


def test_every_env_step_restarts_the_timeout() -> None:
    steps = iter(range(1, 1000))

    def ask() -> RemoteData:
        step = next(steps)
        return RemoteData({} if step == 12 else None, 0.05, False, {"env_step": step})

    feed = RemoteFeed(ask, 0, patience=0.25)  # twelve answers, 50 ms apart, take longer
    found = feed.next()
    assert found is not None
    assert found.progress == {"env_step": 12}
    feed.close()


def test_who_gives_up_waits_no_longer(make_trainer: MakeTrainer, small: Config) -> None:
    module = RemoteReplayDataModule(Source(2, RemoteData(wait=0.01)), "CartPole-v1", validate=False)
    timer = threading.Timer(0.5, lambda: setattr(module, "cancel_requested", True))
    timer.start()
    policy = policy_of(small)
    make_trainer(limit_val_batches=0).fit(policy, module)
    assert policy.progress.train_iter == 4


def test_a_run_resumes_from_its_checkpoint_with_the_counters_of_the_coordinator(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path
) -> None:
    def fit(policy: DQNPolicy, source: Source, **kwargs: Any) -> None:
        module = RemoteReplayDataModule(source, "CartPole-v1", validate=False, rounds_per_epoch=2)
        checkpoint = RunCheckpoint(tmp_path / "run")
        trainer = make_trainer(limit_val_batches=0, max_epochs=-1, callbacks=[checkpoint], enable_checkpointing=True)
        trainer.fit(policy, module, **kwargs)

    first, second = policy_of(small), policy_of({**small, "model": {**small["model"]}})
    fit(first, Source(4))
    resumed = Source(3)
    resumed.progress = lambda number: {"env_step": 5000 + number, "episode": 1, "sample": 2}  # type: ignore[method-assign]
    fit(second, resumed, ckpt_path=str(next(tmp_path.glob("run/last-*/run.ckpt"))))
    assert resumed.asked[0][2] == 8  # updates
    assert second.progress.train_iter == 8 + 6
    assert second.progress.env_step == 130  # what the answer said that ended the run
    assert any(not torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


def test_priorities_come_back_for_the_very_rows_of_a_round() -> None:
    round_ = RemoteRound(minibatches(0, prioritised=True), UPDATES)
    assert round_.drawn is None
    assert round_.priorities() is None
    for number, batch in enumerate(round_):
        round_.update_priority(batch, torch.arange(BATCH) + 10.0 * number)
    told = round_.priorities()
    assert told is not None
    assert told["priority"].tolist() == [*range(8), *range(10, 18)]
    assert told["replay_buffer_idx"].tolist() == list(range(16))
    assert told["replay_unique_id"].tolist() == list(range(100, 116))


def test_priorities_of_a_fit_are_reported_with_its_rounds(make_trainer: MakeTrainer, small: Config) -> None:
    told: list[Mapping[str, Any]] = []
    module = RemoteReplayDataModule(Source(3, prioritised=True), "CartPole-v1", validate=False)
    reporter = LearningReporter(told.append, every_n_rounds=100)
    policy = policy_of(small, priority=True, priority_IS_weight=True)
    make_trainer(limit_val_batches=0, callbacks=[reporter]).fit(policy, module)
    assert [info["learner_step"] for info in told] == [2, 4, 6]
    assert all(len(info["priority_info"]["priority"]) == 16 for info in told)
    assert all((info["priority_info"]["priority"] > 0).all() for info in told)


def test_a_round_of_another_size_is_refused() -> None:
    with pytest.raises(ValueError, match="minibatches of a round must be 3, as requested, got 2"):
        RemoteRound(minibatches(0), 3)


def test_rounds_of_sequences_are_learned_from_and_normalised_without_their_padding(make_trainer: MakeTrainer) -> None:
    policy = IMPALAPolicy({"unroll_len": 3, "learn": {"batch_size": BATCH, "update_per_collect": UPDATES}})
    source = Source(2, in_sequences=3)
    make_trainer().fit(policy, RemoteReplayDataModule(source, "CartPole-v1", norm_obs=True, prefetch=0))
    assert [asked[3] for asked in source.asked] == [{"sequence": 3, "period": 3, "across_episodes": True}] * 3
    assert policy.progress.train_iter == 2 * UPDATES
    real = 2 * UPDATES * BATCH * 2  # of three steps, the last one is padding
    assert policy.normaliser.state_dict()["obs.count"].item() == real


def test_with_a_reward_model_observations_are_normalised_by_those_that_were_collected(
    make_trainer: MakeTrainer, small: Config
) -> None:
    collected = {0: [1.0, 3.0], 2: [5.0]}  # the second round comes without new transitions

    class Collecting(Source):
        def get_data(self, *args: Any) -> RemoteData:
            number, answer = len(self.asked), super().get_data(*args)
            if answer.data is not None and number in collected:
                obs = torch.tensor(collected[number])[:, None].repeat(1, 4)
                others = {"action": obs[:, 0].long() * 0, "reward": obs[:, 0], "env_id": obs[:, 0].long() * 0}
                answer.data["collected"] = {"obs": obs, "next_obs": obs, **others}
            return answer

    policy = policy_of(small, reward_model={"type": "rnd", "hidden_size_list": [8], "batch_size": 1})
    module = RemoteReplayDataModule(Collecting(3), "CartPole-v1", norm_obs=True, prefetch=0, validate=False)
    make_trainer(limit_val_batches=0).fit(policy, module)
    state = policy.normaliser.state_dict()
    assert state["obs.count"].item() == 3
    assert state["obs.mean"].tolist() == [3.0] * 4


def test_mistakes_are_named(make_trainer: MakeTrainer) -> None:
    with pytest.raises(ValueError, match="norm_reward must be False with a policy that learns from replay, got True"):
        make_trainer().fit(DQNPolicy(), RemoteReplayDataModule(Source(1), "CartPole-v1", norm_reward=True))
    with pytest.raises(ValueError, match=r"policy must be one that collects \(use OfflineDataModule"):
        make_trainer().fit(DTPolicy(), RemoteReplayDataModule(Source(1), "CartPole-v1"))


def test_arguments_that_do_not_fit_are_refused() -> None:
    for wrong in ({"prefetch": -1}, {"patience": 0.0}, {"validate": False, "stop_value": 1.0}):
        with pytest.raises(ValueError, match="must be"):
            RemoteReplayDataModule(Source(1), "CartPole-v1", **wrong)


def test_steps_made_are_those_that_were_reported(make_trainer: MakeTrainer, small: Config) -> None:
    class Steps(Callback):
        seen: list[int] = []  # noqa: RUF012 - of one test

        def on_train_batch_end(self, trainer: Trainer, *args: Any) -> None:
            self.seen.append(trainer.datamodule.steps_made())  # type: ignore[attr-defined]

    module = RemoteReplayDataModule(Source(3), "CartPole-v1", validate=False, prefetch=0)
    make_trainer(callbacks=[Steps()], limit_val_batches=0).fit(policy_of(small), module)
    assert Steps.seen[:3] == [100, 110, 120]


def test_infos_of_other_processes_are_logged_as_means() -> None:
    answers = [
        RemoteData(progress={"env_step": 9}, returns=[1.0, 2.0], lengths=[4, 5], infos=[{"laps": 3.0}, {}]),
        RemoteData(stop=True, progress={"env_step": 12}, returns=[0.0], lengths=[3], infos=[{"laps": 4.0, "x": 1.0}]),
    ]
    feed = RemoteFeed(iter(answers).__next__, 0, 30.0, ["laps"], keeps_records=True)
    assert feed.next() is answers[1]
    assert feed.pop_infos() == {"success_rate": (0.0, 0), "laps": (7.0, 2)}
    assert feed.pop_infos() == {"success_rate": (0.0, 0), "laps": (0.0, 0)}
    nan: Any = pytest.approx(float("nan"), nan_ok=True)
    assert feed.pop_records() == [(9, 1.0, 4, nan, 3.0), (9, 2.0, 5, nan, nan), (12, 0.0, 3, nan, 4.0)]
    feed.close()
