from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, cast

import gymnasium as gym
import numpy as np
import pytest
import torch
from lightning import Trainer
from lightning.pytorch import Callback
from lightning.pytorch.plugins.precision import MixedPrecision

from lightning_ding.callbacks import RunCheckpoint
from lightning_ding.config import deep_merge
from lightning_ding.datamodules import ReplayDataModule, collecting
from lightning_ding.policy import DQNPolicy
from lightning_ding.policy.base.trainer import check_trainer_flags
from lightning_ding.registry import BUFFER_REGISTRY
from lightning_ding.worker import NaiveReplayBuffer, SampleSerialCollector
from tests.conftest import MakeTrainer
from tests.toys.envs import BreakingEnv, ChainEnv, CountingEnv

Config = dict[str, Any]


def columns(datamodule: ReplayDataModule) -> dict[str, torch.Tensor]:
    """Return everything in the buffer, in the order of pushing (while it has not wrapped)."""
    assert isinstance(datamodule.buffer, NaiveReplayBuffer)
    storage = datamodule.buffer._storage
    found: dict[str, torch.Tensor] = storage.gather(np.arange(storage.count), 1, 1.0)
    return found


class NewestVersion(Callback):
    """Notes, before each round is learned from, how many updates old its newest transition is."""

    def __init__(self) -> None:
        self.lags: list[int] = []

    def on_train_batch_start(self, trainer: Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        newest = columns(trainer.datamodule)["policy_version"].max().item()  # type: ignore[attr-defined]
        self.lags.append(pl_module.progress.train_iter - int(newest))


def test_round_is_collected_with_the_newest_weights(make_trainer: MakeTrainer, small: Config) -> None:
    lag = NewestVersion()
    trainer = make_trainer(callbacks=[lag], limit_val_batches=0)
    trainer.fit(DQNPolicy(small), ReplayDataModule("CartPole-v1", num_envs=2, max_env_step=150))
    assert len(lag.lags) > 10
    assert set(lag.lags) == {0}


def test_stream_continues_with_any_iterator(make_trainer: MakeTrainer, small: Config) -> None:
    def steps_seen(pattern: str) -> tuple[list[float], int]:
        policy = DQNPolicy(deep_merge(small, {"random_collect_size": 0, "learn": {"batch_size": 1}}))
        env = partial(CountingEnv, lengths=(5, 3))
        datamodule = ReplayDataModule(env, num_envs=1, seed=0)
        datamodule.trainer = make_trainer()
        policy.trainer = datamodule.trainer
        datamodule.trainer.strategy.connect(policy)
        datamodule.setup("fit")
        stream = datamodule.train_dataloader()
        iterators = [iter(stream), iter(stream)]
        for which in pattern:
            iter(stream)
            next(iterators[int(which)])
        data = columns(datamodule)
        datamodule.close()
        return data["obs"][:, 2].tolist(), policy.progress.env_step

    alone, count = steps_seen("0000")
    assert alone[:7] == [0, 1, 2, 3, 4, 0, 1]  # one episode of 5 steps, then one of 3
    assert count == len(alone) == 4 * 8
    assert steps_seen("0110") == (alone, count)


def test_round_is_collected_on_until_every_rank_has_a_minibatch(
    make_trainer: MakeTrainer, small: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This rank has 16 transitions after a round of 8, and needs 8; the other one lacks some for two rounds more."""
    policy = DQNPolicy(small)
    datamodule = ReplayDataModule("CartPole-v1", num_envs=2, seed=0)
    datamodule.trainer = policy.trainer = make_trainer()
    datamodule.trainer.strategy.connect(policy)
    datamodule.setup("fit")
    stream, others, sent = iter(datamodule.train_dataloader()), iter([0, 1, 1, 0]), []

    def sum_with_the_other_rank(values: torch.Tensor) -> torch.Tensor:
        sent.append(values.tolist())
        return values + torch.tensor([100, 0, 0, next(others)])

    monkeypatch.setattr(collecting, "world_size", lambda: 2)
    monkeypatch.setattr(collecting, "sum_over_ranks", sum_with_the_other_rank)
    next(stream)
    assert len(columns(datamodule)["obs"]) == 16 + 3 * 8
    assert [(env_step, lacks) for env_step, _, _, lacks in sent] == [(16, 0), (8, 0), (8, 0), (8, 0)]
    assert policy.progress.env_step == 40 + 4 * 100
    datamodule.close()


def q_of_chain(make_trainer: MakeTrainer, terminate: bool, nstep: int) -> tuple[list[float], list[float]]:
    """Learn a chain of 3 positions with gamma 0.5; return the values learned and the true ones."""
    torch.manual_seed(0)
    config = {
        "nstep": nstep,
        "discount_factor": 0.5,
        "random_collect_size": 64,
        "model": {"encoder_hidden_size_list": [32], "dueling": False},
        "learn": {"update_per_collect": 8, "batch_size": 32, "learning_rate": 0.01, "target_update_freq": 20},
    }
    policy, env = DQNPolicy(config), partial(ChainEnv, length=3, terminate=terminate)
    trainer = make_trainer(limit_val_batches=0)
    trainer.fit(policy, ReplayDataModule(env, num_envs=2, max_train_iter=800))
    q = policy.model(torch.eye(3))["logit"].mean(1)
    return q.tolist(), [env().value(position, 0.5) for position in range(3)]


@pytest.mark.parametrize("nstep", [1, 3])
@pytest.mark.parametrize("terminate", [True, False])
def test_target_bootstraps_at_an_episode_end_only_if_it_was_truncated(
    make_trainer: MakeTrainer, terminate: bool, nstep: int
) -> None:
    learned, true = q_of_chain(make_trainer, terminate, nstep)  # e.g. 1 against 1 / (1 - 0.5**3) = 1.14 at the last
    assert learned == pytest.approx(true, abs=0.03)


def test_run_ends_at_the_env_steps_asked_for_and_evaluates(make_trainer: MakeTrainer, small: Config) -> None:
    policy = DQNPolicy(small)
    trainer = make_trainer(check_val_every_n_epoch=100)
    trainer.fit(policy, ReplayDataModule("CartPole-v1", num_envs=2, max_env_step=200))
    # 16 random steps, then rounds of 8: 16 + 23 * 8 = 200
    assert (policy.progress.env_step, policy.progress.train_iter) == (200, 46)
    assert "eval/return_mean" in trainer.callback_metrics


@pytest.mark.parametrize(
    ("cfg", "flags", "limits", "updates"),
    [
        ({}, {"limit_val_batches": 0}, {"max_train_iter": 21}, 22),  # rounds are of two updates
        ({}, {}, {"stop_value": 1, "max_env_step": 5_000}, 20),  # the first evaluation, after eval_freq updates
        ({"eval": {"evaluator": {"stop_value": 1.0}}}, {}, {"max_env_step": 5_000}, 20),
        ({}, {"max_epochs": 2, "limit_val_batches": 0}, {"rounds_per_epoch": 3, "max_env_step": 10_000}, 12),
    ],
    ids=["updates", "return", "return of the policy's config", "epochs of the user"],
)
def test_run_ends_at_the_first_limit(
    make_trainer: MakeTrainer, small: Config, cfg: Config, flags: Config, limits: Config, updates: int
) -> None:
    policy = DQNPolicy(deep_merge(small, cfg))
    make_trainer(**flags).fit(policy, ReplayDataModule("CartPole-v1", **limits))
    assert policy.progress.train_iter == updates


def test_budget_goes_beyond_lightnings_thousand_epochs(make_trainer: MakeTrainer, small: Config) -> None:
    policy = DQNPolicy(deep_merge(small, {"learn": {"update_per_collect": 1}, "collect": {"n_sample": 1}}))
    datamodule = ReplayDataModule("CartPole-v1", num_envs=1, rounds_per_epoch=1, max_env_step=1_030)
    trainer = make_trainer(limit_val_batches=0)
    trainer.fit(policy, datamodule)
    assert policy.progress.env_step == 1_030
    assert trainer.current_epoch > 1_000


def test_same_seed_gives_the_same_run_and_another_seed_another(make_trainer: MakeTrainer, small: Config) -> None:
    def weights(seed: int) -> torch.Tensor:
        torch.manual_seed(0)
        policy = DQNPolicy(small)
        make_trainer(limit_val_batches=0).fit(policy, ReplayDataModule("CartPole-v1", seed=seed, max_env_step=200))
        return torch.nn.utils.parameters_to_vector(policy.parameters())

    assert torch.equal(weights(1), weights(1))
    assert not torch.equal(weights(1), weights(2))


def test_async_envs_give_the_same_run_as_sync_ones(make_trainer: MakeTrainer, small: Config) -> None:
    def data(mode: Any) -> torch.Tensor:
        torch.manual_seed(0)
        datamodule = ReplayDataModule("CartPole-v1", num_envs=2, mode=mode, max_env_step=100)
        make_trainer(limit_val_batches=0).fit(DQNPolicy(small), datamodule)
        return columns(datamodule)["next_obs"]

    torch.testing.assert_close(data("async"), data("sync"), rtol=0, atol=0)


def test_native_envs_train_too(make_trainer: MakeTrainer, small: Config) -> None:
    datamodule = ReplayDataModule("CartPole-v1", num_envs=3, mode="native", max_env_step=300)
    policy = DQNPolicy(small)
    make_trainer().fit(policy, datamodule)
    data = columns(datamodule)
    # a step that only resets an env is not a transition: every reward of CartPole is 1
    assert len(data["reward"]) == policy.progress.sample
    assert set(data["reward"].tolist()) == {1.0}


def test_evaluation_gives_the_same_on_any_number_of_envs(make_trainer: MakeTrainer, small: Config) -> None:
    policy = DQNPolicy(small)

    def evaluate(num_envs: int) -> float:
        datamodule = ReplayDataModule("CartPole-v1", evaluator_env_num=num_envs, n_evaluator_episode=6)
        (scores,) = make_trainer().validate(policy, datamodule, verbose=False)
        return float(scores["eval/return_mean"])

    assert evaluate(1) == evaluate(4) == evaluate(6)


def test_test_episodes_are_not_those_of_validation(make_trainer: MakeTrainer, small: Config) -> None:
    torch.manual_seed(0)  # with some other weights, both means are 9.75
    policy, trainer = DQNPolicy(small), make_trainer()
    datamodule = ReplayDataModule("CartPole-v1", n_evaluator_episode=8)
    (validated,) = trainer.validate(policy, datamodule, verbose=False)
    (tested,) = trainer.test(policy, datamodule, verbose=False)
    assert tested["test/return_mean"] != validated["eval/return_mean"]


class NotesSeeds(gym.Wrapper[Any, Any, Any, Any]):
    """Notes the seeds of resets while ``seeds`` is a list."""

    seeds: list[int] | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if NotesSeeds.seeds is not None and seed is not None:
            NotesSeeds.seeds.append(seed)
        return self.env.reset(seed=seed, options=options)


class StartsOfEvaluations(Callback):
    """Keeps the seeds of each evaluation's episodes by the updates that were made before it."""

    def __init__(self) -> None:
        self.by_update: dict[int, list[int]] = {}

    def on_validation_start(self, trainer: Trainer, pl_module: Any) -> None:
        NotesSeeds.seeds = []

    def on_validation_end(self, trainer: Trainer, pl_module: Any) -> None:
        self.by_update[pl_module.progress.train_iter] = sorted(NotesSeeds.seeds or [])
        NotesSeeds.seeds = None

    on_test_start, on_test_end = on_validation_start, on_validation_end


def test_each_validation_draws_its_starts_from_the_seed_and_the_updates_made(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path
) -> None:
    def fit(max_env_step: int, fixed_starts: bool = False, file: Path | None = None) -> dict[int, list[int]]:
        starts = StartsOfEvaluations()
        policy = DQNPolicy(deep_merge(small, {"eval": {"evaluator": {"fixed_starts": fixed_starts}}}))
        data = ReplayDataModule("CartPole-v1", num_envs=2, wrappers=[NotesSeeds], max_env_step=max_env_step)
        trainer = make_trainer(
            enable_checkpointing=True, callbacks=[starts, RunCheckpoint(tmp_path / str(max_env_step))]
        )
        trainer.fit(policy, data, ckpt_path=file)
        return starts.by_update

    whole = fit(300)
    assert len({seed for seeds in whole.values() for seed in seeds}) == 2 * len(whole) >= 6
    half = fit(150)  # whose last evaluation is one more than in the other run
    rest = fit(300, file=tmp_path / "150" / "last.ckpt")
    assert whole.items() <= (half | rest).items()
    assert len({tuple(seeds) for seeds in fit(300, fixed_starts=True).values()}) == 1


def test_every_test_has_the_same_starts(make_trainer: MakeTrainer, small: Config) -> None:
    policy, starts = DQNPolicy(small), StartsOfEvaluations()
    for policy.progress.train_iter in (0, 7):
        data = ReplayDataModule("CartPole-v1", wrappers=[NotesSeeds])
        make_trainer(callbacks=[starts]).test(policy, data, verbose=False)
    assert starts.by_update[0] == starts.by_update[7]


def test_second_fit_continues_with_buffer_and_counters(make_trainer: MakeTrainer, small: Config) -> None:
    policy, datamodule = DQNPolicy(small), ReplayDataModule("CartPole-v1", max_env_step=100)
    make_trainer(limit_val_batches=0).fit(policy, datamodule)
    datamodule.max_env_step = 200
    make_trainer(limit_val_batches=0).fit(policy, datamodule)
    assert policy.progress.env_step == len(columns(datamodule)["reward"]) == 200


def test_episodes_of_a_second_fit_have_ids_that_the_kept_buffer_does_not_know(
    make_trainer: MakeTrainer, small: Config
) -> None:
    policy, data = DQNPolicy(small), ReplayDataModule("CartPole-v1", num_envs=2, rounds_per_epoch=4, seed=0)
    make_trainer(max_epochs=1).fit(policy, data)
    assert data.buffer is not None
    pushed = data.buffer.count()
    first = data.buffer.sample(pushed)["episode_id"]
    make_trainer(max_epochs=1).fit(policy, data)
    every = torch.as_tensor(data.buffer.sample(data.buffer.count())["episode_id"])
    again = every[torch.isin(every, torch.as_tensor(first))]
    assert (pushed, len(every), len(again)) == (48, 80, 48)


def test_second_fit_of_a_trainer_has_the_budget_of_its_own_datamodule(make_trainer: MakeTrainer, small: Config) -> None:
    policy, trainer = DQNPolicy(small), make_trainer(limit_val_batches=0)
    for max_env_step in (100, 200):
        trainer.fit(policy, ReplayDataModule("CartPole-v1", max_env_step=max_env_step))
    assert policy.progress.env_step == 200


def test_datamodule_creates_a_new_buffer_for_another_policy(make_trainer: MakeTrainer, small: Config) -> None:
    datamodule = ReplayDataModule("CartPole-v1", max_env_step=100)
    make_trainer(limit_val_batches=0).fit(DQNPolicy(small), datamodule)
    other = DQNPolicy(deep_merge(small, {"other": {"replay_buffer": {"replay_buffer_size": 64}}}))
    make_trainer(limit_val_batches=0).fit(other, datamodule)
    assert len(columns(datamodule)["reward"]) == 64


def test_run_that_max_epochs_ends_is_evaluated_and_leaves_the_trainer_as_it_was(
    make_trainer: MakeTrainer, small: Config
) -> None:
    trainer = make_trainer(max_epochs=3, check_val_every_n_epoch=2)
    trainer.fit(policy := DQNPolicy(small), ReplayDataModule("CartPole-v1", rounds_per_epoch=2))
    assert trainer.callback_metrics["step"].item() == policy.progress.env_step
    assert trainer.check_val_every_n_epoch == 2


def test_update_after_a_failed_run_is_made_without_its_trainer(make_trainer: MakeTrainer, small: Config) -> None:
    class Failing(Callback):
        def on_train_batch_end(self, *args: Any) -> None:
            raise RuntimeError("on purpose")

    policy, datamodule = DQNPolicy(small), ReplayDataModule("CartPole-v1", max_env_step=100)
    trainer = make_trainer(callbacks=[Failing()])
    with pytest.raises(RuntimeError, match="on purpose"):
        trainer.fit(policy, datamodule)
    steps = trainer.global_step
    assert datamodule.buffer is not None
    policy.learn_mode.forward(datamodule.buffer.sample(8))
    assert trainer.global_step == steps


def test_envs_are_closed_after_a_run_and_after_an_error(make_trainer: MakeTrainer, small: Config) -> None:
    closed: list[int] = []

    class Closing(CountingEnv):
        def close(self) -> None:
            closed.append(1)

    class Failing(Callback):
        def on_train_batch_end(self, *args: Any) -> None:
            raise RuntimeError("on purpose")

    def make() -> gym.Env[Any, Any]:
        return Closing(lengths=(4,))

    make_trainer().fit(DQNPolicy(small), ReplayDataModule(make, num_envs=2, max_env_step=50))
    assert len(closed) == 5  # two to collect, two to evaluate, and one more that was checked
    with pytest.raises(RuntimeError, match="on purpose"):
        make_trainer(callbacks=[Failing()]).fit(DQNPolicy(small), ReplayDataModule(make, num_envs=2, max_env_step=50))
    assert len(closed) == 10


class Recorded(NaiveReplayBuffer):
    """A buffer that says it is prioritised, and notes in which order it is used."""

    is_prioritised = True
    events: list[str] = []  # noqa: RUF012 - shared with the test on purpose

    def sample(self, batch_size: int, cur_learner_iter: int = 0, **kwargs: Any) -> Any:  # type: ignore[override]
        self.events.append(f"sample at {cur_learner_iter}")
        batch = super().sample(batch_size, cur_learner_iter, **kwargs)
        return batch | {"IS": torch.ones(batch_size), "replay_unique_id": torch.arange(batch_size)}

    def update(self, info: Any) -> None:
        assert (info["priority"] > 0).all()
        self.events.append(f"update {len(info['priority'])} of {len(info['replay_unique_id'])}")


def test_prioritised_round_draws_each_minibatch_after_the_priorities_of_the_one_before(
    make_trainer: MakeTrainer, small: Config
) -> None:
    BUFFER_REGISTRY.register("recorded", force_overwrite=True)(Recorded)
    Recorded.events.clear()
    prioritised = {"priority": True, "priority_IS_weight": True, "other": {"replay_buffer": {"type": "recorded"}}}
    policy = DQNPolicy(deep_merge(small, prioritised))
    make_trainer(limit_val_batches=0).fit(policy, ReplayDataModule("CartPole-v1", max_train_iter=4))
    assert Recorded.events == [f"{kind}" for n in range(4) for kind in (f"sample at {n}", "update 8 of 8")]


def nan_reward_env() -> gym.Env[Any, Any]:
    return gym.wrappers.TransformReward(gym.make("CartPole-v1"), lambda reward: float("nan"))


def text_env() -> gym.Env[Any, Any]:
    return gym.wrappers.TransformObservation(gym.make("CartPole-v1"), str, gym.spaces.Text(10))


MISTAKES: list[tuple[Config, Config, str]] = [
    ({}, {"env_id": "CartPol-v1"}, "env_id must be a registered gymnasium id, .*got 'CartPol-v1'.*CartPole"),
    ({}, {"env_id": "Pendulum-v1"}, "dqn needs a Discrete action space, or a MultiDiscrete .*Box"),
    ({}, {"env_id": text_env}, "observation space must be .*Text"),
    ({}, {"env_id": nan_reward_env}, "env 0 gave a reward that is not finite.*nan"),
    ({"collect": {"n_sample": 0}}, {}, "collect.n_sample must be >= 1 .*, got 0"),
    ({"learn": {"batchsize": 3}}, {}, "unknown config key 'learn.batchsize'; did you mean 'learn.batch_size'"),
    ({"model": {"obs_shape": 5, "action_shape": 2}}, {}, "model.obs_shape is 5 in the config, but the env has 4"),
    ({"other": {"replay_buffer": {"replay_buffer_size": 4}}}, {}, "replay_buffer_size must be at least .*8.*got 4"),
    ({"other": {"replay_buffer": {"type": "naiv"}}}, {}, "no buffer is registered as 'naiv'; did you mean 'naive'"),
    ({"priority": True}, {}, "priority needs a prioritised buffer"),
    ({}, {"num_envs": 0}, "num_envs must be >= 1, got 0"),
    ({}, {"max_env_step": 0}, "max_env_step must be >= 1, got 0"),
    ({}, {"mode": "asynch"}, "mode must be one of .*got 'asynch'"),
    ({}, {"seed": -1}, "seed must be >= 0, got -1"),
]


@pytest.mark.parametrize(("config", "arguments", "message"), MISTAKES)
def test_mistake_gives_one_clear_error(
    make_trainer: MakeTrainer, small: Config, config: Config, arguments: Config, message: str
) -> None:
    def run() -> None:
        policy = DQNPolicy(deep_merge(small, config))
        make_trainer().fit(policy, ReplayDataModule(**{"env_id": "CartPole-v1", "max_env_step": 50, **arguments}))

    with pytest.raises((ValueError, TypeError, KeyError), match=message):
        run()


FLAGS: list[tuple[Config, str]] = [
    ({"accumulate_grad_batches": 2}, "accumulate_grad_batches=2.*learn.batch_size"),
    ({"gradient_clip_val": 1.0}, "gradient_clip_val=1.0.*learn.grad_clip_norm"),
    ({"max_steps": 10}, "max_steps=10.*max_train_iter"),
    ({"overfit_batches": 1}, "overfit_batches=1"),
    ({"limit_train_batches": 0}, "limit_train_batches=0"),
    ({"num_sanity_val_steps": 5}, "num_sanity_val_steps=5"),
    ({"precision": "64-true"}, "precision='64-true'.*bf16-mixed"),
    ({"plugins": [MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu"))]}, "precision='16-mixed'.*bf16-mixed"),
]


@pytest.mark.parametrize(("flag", "message"), FLAGS)
@pytest.mark.filterwarnings("ignore")
def test_trainer_flag_that_cannot_work_says_what_to_use(
    make_trainer: MakeTrainer, small: Config, flag: Config, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        make_trainer(**flag).fit(DQNPolicy(small), ReplayDataModule("CartPole-v1", max_env_step=50))


def test_strategy_that_spawns_is_refused_because_it_gives_no_policy_back(make_trainer: MakeTrainer) -> None:
    with pytest.raises(ValueError, match=r"strategy='DDPStrategy with spawned processes'.*strategy=\"ddp\""):
        check_trainer_flags(make_trainer(strategy="ddp_spawn", devices=2))


@pytest.mark.parametrize("flag", [{"fast_dev_run": True}, {"limit_train_batches": 3, "max_epochs": 1}])
def test_trainer_flags_that_shorten_a_run_work(make_trainer: MakeTrainer, small: Config, flag: Config) -> None:
    policy = DQNPolicy(small)
    make_trainer(**flag).fit(policy, ReplayDataModule("CartPole-v1", max_env_step=5_000))
    assert policy.progress.train_iter == (2 if "fast_dev_run" in flag else 6)


def test_bf16_mixed_precision_trains(make_trainer: MakeTrainer, small: Config, tmp_path: Path) -> None:
    policy = DQNPolicy(small)
    make_trainer(precision="bf16-mixed").fit(policy, ReplayDataModule("CartPole-v1", max_env_step=60))
    assert all(torch.isfinite(parameter).all() for parameter in policy.parameters())


@pytest.mark.parametrize(("mode", "budget"), [("sync", 200), ("async", 15)])  # a process is started after each fault
def test_run_continues_when_env_faults_are_dropped(
    make_trainer: MakeTrainer, small: Config, mode: Any, budget: int
) -> None:
    config = {"random_collect_size": 2, "collect": {"collector": {"env_fault": "drop"}}}
    policy = DQNPolicy(deep_merge(small, config))
    datamodule = ReplayDataModule(partial(BreakingEnv, lengths=(5,)), num_envs=2, mode=mode, max_env_step=budget)

    make_trainer(limit_val_batches=0).fit(policy, datamodule)

    data = columns(datamodule)
    assert policy.progress.env_step >= budget
    assert isinstance(datamodule.collector, SampleSerialCollector)
    assert datamodule.collector.dropped_episode > budget / 10
    assert (data["next_obs"][:, 1] == data["obs"][:, 1]).all()  # no transition leads into another episode


def test_evaluation_repeats_an_episode_in_which_an_env_failed_if_faults_are_dropped(
    make_trainer: MakeTrainer, small: Config
) -> None:
    env, breaking = partial(CountingEnv, lengths=(5,)), partial(BreakingEnv, lengths=(5,))
    datamodule = ReplayDataModule(env, eval_env_id=breaking, evaluator_env_num=1, max_env_step=32)
    with pytest.raises(ArithmeticError, match="it broke"):
        make_trainer().fit(DQNPolicy(small), datamodule)
    trainer = make_trainer()
    trainer.fit(DQNPolicy(deep_merge(small, {"collect": {"collector": {"env_fault": "drop"}}})), datamodule)
    assert trainer.callback_metrics["eval/return_min"] == 15  # 1 + 2 + 3 + 4 + 5: no episode was cut short
    assert trainer.callback_metrics["eval/length_mean"] == 5


def test_run_ends_with_the_error_of_an_env_unless_faults_are_dropped(make_trainer: MakeTrainer, small: Config) -> None:
    with pytest.raises(ArithmeticError, match="it broke"):
        make_trainer(limit_val_batches=0).fit(DQNPolicy(small), ReplayDataModule(partial(BreakingEnv, lengths=(5,))))


def test_mistakes_are_named(make_trainer: MakeTrainer, small: Config) -> None:
    with pytest.raises(ValueError, match=r"stop_value=5\.0 needs evaluations"):
        make_trainer(limit_val_batches=0).fit(DQNPolicy(small), ReplayDataModule("CartPole-v1", stop_value=5.0))
    policy = DQNPolicy(deep_merge(small, {"collect": {"collector": {"env_fault": "drop"}}}))
    with pytest.raises(
        ValueError, match=r'mode must be one of \(.sync., .async.\) if collect\.collector\.env_fault is "drop"'
    ):
        make_trainer().fit(policy, ReplayDataModule("CartPole-v1", mode="native"))


@pytest.mark.parametrize("kind", ["sample_1v1", "episode_1v1"])
def test_collector_of_something_else_than_one_policys_transitions_is_refused(
    make_trainer: MakeTrainer, small: dict[str, Any], kind: str
) -> None:
    policy = DQNPolicy(deep_merge(small, {"collect": {"collector": {"type": kind}}}))
    with pytest.raises(ValueError, match=f"collect.collector.type must be .* such as 'sample', .* got '{kind}'"):
        make_trainer().fit(policy, ReplayDataModule("CartPole-v1", num_envs=2, max_train_iter=2))


@pytest.mark.parametrize(("kind", "more"), [("sequence", {"sequence_length": 4}), ("episode", {})])
def test_buffer_of_sequences_is_refused_for_a_policy_that_learns_from_transitions(
    make_trainer: MakeTrainer, small: dict[str, Any], kind: str, more: dict[str, Any]
) -> None:
    policy = DQNPolicy(deep_merge(small, {"other": {"replay_buffer": {"type": kind, **more}}}))
    with pytest.raises(ValueError, match=f"other.replay_buffer.type must be one .* such as 'naive', .* got '{kind}'"):
        make_trainer().fit(policy, ReplayDataModule("CartPole-v1", num_envs=2, max_train_iter=2))


class CountAtStart(Callback):
    """Notes how many transitions a run starts with."""

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        self.count = trainer.datamodule.buffer.count()  # type: ignore[attr-defined]


def test_a_resumed_fit_of_a_datamodule_that_collected_before_starts_with_the_empty_buffer_it_announces(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    policy, datamodule = DQNPolicy(small), ReplayDataModule("CartPole-v1", num_envs=2, max_env_step=100)
    first = RunCheckpoint(tmp_path, save_buffer="never")
    make_trainer(enable_checkpointing=True, callbacks=[first], limit_val_batches=0).fit(policy, datamodule)
    collected = cast(Any, datamodule.buffer).count()
    datamodule.max_env_step, start = 148, CountAtStart()

    make_trainer(callbacks=[start], limit_val_batches=0).fit(policy, datamodule, ckpt_path=tmp_path / "last.ckpt")

    assert "continuing with an empty buffer" in caplog.text
    assert (collected >= 100, start.count) == (True, 0)
    buffer = cast(Any, datamodule.buffer)
    tensors = buffer.state_dict()["tensors"]
    pairs = set(zip(tensors["column/episode_id"].tolist(), tensors["column/env_id"].tolist(), strict=True))
    assert len(pairs) == len({episode for episode, _ in pairs}) >= 2  # no id is given out twice
    assert buffer.count() == policy.progress.env_step - collected
