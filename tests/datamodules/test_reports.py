"""Options of the datamodules that say what is logged, what decides, and when: infos, monitor and intervals."""

from __future__ import annotations

import logging
import math
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning import Trainer
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import EarlyStopping

from lightning_ding.callbacks import BestCheckpoint, EvaluationInterval, RunCheckpoint, StopAtEnvStep
from lightning_ding.checkpoints.folder import RUN_FILE
from lightning_ding.config import deep_merge
from lightning_ding.datamodules import OfflineDataModule, ReplayDataModule, RolloutDataModule
from lightning_ding.datamodules.run_envs import Evaluation
from lightning_ding.entry.evaluate import as_text, evaluate
from lightning_ding.policy import CQLPolicy, DQNPolicy, PPOPolicy
from tests.conftest import MakeTrainer
from tests.toys.info_env import InfoEnv

Config = dict[str, Any]
KEYS = {"wave": "sum", "laps": "last"}


def dqn(small: Config, **more: Any) -> DQNPolicy:
    learn = {"batch_size": 2, "update_per_collect": 1}
    return DQNPolicy(deep_merge(small, {"random_collect_size": 0, "collect": {"n_sample": 4}, "learn": learn, **more}))


def data(**arguments: Any) -> ReplayDataModule:
    made = {"num_envs": 1, "evaluator_env_num": 1, "n_evaluator_episode": 3, "max_env_step": 12, "info_keys": KEYS}
    made |= {} if "eval_every" in arguments else {"rounds_per_epoch": 3}
    return ReplayDataModule(partial(InfoEnv, lengths=(2,)), **{**made, **arguments})


# ---------------------------------------------------------------------------------------------------- info_keys


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_numbers_of_the_infos_are_logged_in_training_evaluations_and_tests(
    make_trainer: MakeTrainer, small: Config, mode: Any
) -> None:
    policy, datamodule, trainer = dqn(small), data(mode=mode), make_trainer()
    trainer.fit(policy, datamodule)
    found = {name: float(value) for name, value in trainer.callback_metrics.items()}
    assert (found["collect/wave"], found["collect/laps"]) == (4.0, 2.0)  # episodes 0 to 5, laps in 0, 2 and 4
    assert (found["eval/wave"], found["eval/laps"]) == (4.0, 1.0)  # episodes 0 to 2
    (scores,) = trainer.test(policy, datamodule, verbose=False)
    assert [scores["test/wave"], scores["test/success_rate"]] == pytest.approx([4.0, 1 / 3])


def test_rollouts_log_numbers_of_the_infos_too(make_trainer: MakeTrainer) -> None:
    trainer = make_trainer()
    policy = PPOPolicy({"collect": {"n_sample": 8}, "learn": {"batch_size": 8}})
    trainer.fit(policy, RolloutDataModule(partial(InfoEnv, lengths=(2,)), 1, max_env_step=8, info_keys=["number"]))
    assert float(trainer.callback_metrics["collect/number"]) == (0 + 1 + 2 + 3) / 4


def test_number_that_no_evaluated_episode_has_is_logged_as_nan(make_trainer: MakeTrainer, small: Config) -> None:
    trainer = make_trainer()
    trainer.fit(dqn(small), data(info_keys=["broken"]))
    assert np.isnan(float(trainer.callback_metrics["eval/broken"]))
    assert "collect/broken" not in trainer.callback_metrics


def test_number_that_was_seen_before_a_checkpoint_may_be_missing_afterwards(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path
) -> None:
    first = data()
    make_trainer(enable_checkpointing=True).fit(dqn(small), first)
    at_start: list[set[str]] = []

    class Start(Callback):
        def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
            at_start.append(set(trainer.datamodule.info_check.seen))  # type: ignore[attr-defined]

    trainer = make_trainer(enable_checkpointing=True, callbacks=[Start()])
    trainer.fit(dqn(small), data(max_env_step=16), ckpt_path="last")
    assert at_start == [first.info_check.seen] == [{"wave", "laps"}]


def test_command_evaluate_shows_the_numbers_of_the_run_or_those_asked_for(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path
) -> None:
    trainer = make_trainer(enable_checkpointing=True)
    env: Any = {"class_path": "tests.toys.info_env.InfoEnv", "init_args": {"lengths": (2,)}}
    arguments: Config = {"num_envs": 1, "max_env_step": 8, "rounds_per_epoch": 2, "info_keys": KEYS}
    trainer.fit(dqn(small), ReplayDataModule(env, **arguments))
    file = next(tmp_path.rglob("best.ckpt"))
    found = evaluate(file, episodes=3, num_envs=1, import_names=["tests.toys.info_env"])
    assert found["infos"] == {"success_rate": [0.0, 1.0, 0.0], "wave": [4.0] * 3, "laps": [0.0, None, 2.0]}
    assert found["info_means"] == {"success_rate": pytest.approx(1 / 3), "wave": 4.0, "laps": 1.0}
    assert as_text(found).endswith("success_rate: mean 0.3333\nwave: mean 4\nlaps: mean 1 (2 of 3 episodes)")
    other = evaluate(file, episodes=2, num_envs=1, import_names=["tests.toys.info_env"], info_keys=["broken"])
    assert other["info_means"] == {"success_rate": 0.5, "broken": None}
    assert as_text(other).endswith("broken: no episode gave a number")


# ---------------------------------------------------------------------------------------------------- monitor


def scored(monkeypatch: pytest.MonkeyPatch, **scores: list[float]) -> None:
    """Replace the results of evaluations: each score is that of the one episode of each evaluation."""
    rows = [dict(zip(scores, values, strict=True)) for values in zip(*scores.values(), strict=True)]
    ready = iter(rows)

    def run(_: Any) -> dict[str, Any]:
        row = {name: torch.tensor([value]) for name, value in next(ready).items()}
        return {"episode_return": row.pop("r"), "episode_length": torch.tensor([2.0]), "infos": row}

    monkeypatch.setattr(Evaluation, "run", run)


@pytest.mark.parametrize(
    ("monitor", "best", "line"),
    [
        ("eval/return_mean", 4.0, "best return 7.000, checkpoint {}"),
        ("eval/success_rate", 8.0, "best eval/success_rate 0.750, checkpoint {}"),
        ({"eval/wave": "min"}, 12.0, "best eval/wave 1.000, checkpoint {}"),
    ],
)
def test_monitor_decides_the_best_checkpoint_and_is_in_the_last_line(
    make_trainer: MakeTrainer,
    small: Config,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    monitor: Any,
    best: float,
    line: str,
) -> None:
    scored(monkeypatch, r=[7.0, 5.0, 3.0], success_rate=[0.25, 0.75, 0.5], wave=[9.0, 4.0, 1.0])
    trainer = make_trainer(enable_checkpointing=True)
    with caplog.at_level(logging.INFO, logger="lightning.pytorch.utilities.rank_zero"):
        trainer.fit(dqn(small), data(monitor=monitor, rounds_per_epoch=1))
    file = next(tmp_path.rglob("best.ckpt"))
    assert caplog.messages[-1] == f"fit ended: 12 env steps, {line.format(file)}"
    assert torch.load(file, weights_only=True)["progress"]["env_step"] == best


@pytest.mark.parametrize("monitor", ["eval/success_rate", {"eval/wave": "min"}, {"eval/length_mean": "min"}])
def test_cancelled_evaluation_decides_nothing(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, monitor: Any
) -> None:
    def run(*episodes: list[float]) -> dict[str, Any]:
        returns, lengths, success, wave = map(torch.tensor, zip(*episodes, strict=True))
        return {"episode_return": returns, "episode_length": lengths, "infos": {"success_rate": success, "wave": wave}}

    whole, ended, cut = [3.0, 2.0, 0.5, 5.0], [math.nan, 0.0, 1.0, 1.0], [math.nan, 0.0, math.nan, math.nan]
    of_rank = [
        run(whole, whole),
        run(ended, cut),
        run([3.0, 2.0, 1.0, 1.0], cut),
    ]  # in the last one, of one of two ranks
    results = iter(of_rank)
    monkeypatch.setattr(Evaluation, "run", lambda _: next(results))
    policy, trainer = dqn(small), make_trainer(enable_checkpointing=True)
    trainer.fit(policy, data(monitor=monitor, rounds_per_epoch=1, n_evaluator_episode=2))
    assert torch.load(next(tmp_path.rglob("best.ckpt")), weights_only=True)["progress"]["env_step"] == 4
    assert all(math.isnan(trainer.callback_metrics[f"eval/{name}"]) for name in ("return_mean", "wave", "length_mean"))


def test_stop_value_is_for_the_monitor_and_the_one_of_the_policy_for_the_return(
    make_trainer: MakeTrainer, small: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores: dict[str, list[float]] = {"r": [9.0, 9.0, 9.0], "success_rate": [0.1, 0.9, 0.9], "wave": [9.0] * 3}
    scored(monkeypatch, **scores)
    policy, arguments = dqn(small), {"monitor": "eval/success_rate", "rounds_per_epoch": 1}
    make_trainer().fit(policy, data(stop_value=0.9, **arguments))
    assert policy.progress.env_step == 8

    scored(monkeypatch, **scores)
    policy = dqn(small, eval={"evaluator": {"n_episode": 1, "stop_value": 8.0}})
    make_trainer().fit(policy, data(**arguments))
    assert policy.progress.env_step == 4


def test_lowest_value_stops_a_run_with_min(
    make_trainer: MakeTrainer, small: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    scored(monkeypatch, r=[0.0] * 3, success_rate=[0.0] * 3, wave=[9.0, 2.0, 1.0])
    policy = dqn(small)
    make_trainer().fit(policy, data(monitor={"eval/wave": "min"}, stop_value=2.5, rounds_per_epoch=1))
    assert policy.progress.env_step == 8


def test_metric_of_collecting_may_come_after_the_first_evaluation(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path
) -> None:
    trainer, env = make_trainer(enable_checkpointing=True), partial(InfoEnv, lengths=(6,))
    arguments: Config = {"num_envs": 1, "max_env_step": 8, "rounds_per_epoch": 1, "monitor": "collect/return_mean"}
    trainer.fit(dqn(small), ReplayDataModule(env, **arguments))
    assert torch.load(next(tmp_path.rglob("best.ckpt")), weights_only=True)["progress"]["env_step"] == 8


@pytest.mark.parametrize("given", ["", "{eval/wave: least}", {}, {"a": "most"}, {"a": "max", "b": "min"}])
def test_monitor_is_one_metric_with_a_direction(given: Any) -> None:
    with pytest.raises(ValueError, match="monitor must be the name of a metric, such as eval/success_rate, or a map"):
        data(monitor=given)


def test_checkpoint_of_another_monitor_does_not_keep_the_best_of_this_one(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scored(monkeypatch, r=[70.0, 50.0, 30.0, 90.0], success_rate=[0.1, 0.2, 0.3, 0.2], wave=[1.0] * 4)
    make_trainer(enable_checkpointing=True).fit(dqn(small), data(rounds_per_epoch=1))
    trainer = make_trainer(enable_checkpointing=True)
    resumed = data(rounds_per_epoch=1, monitor="eval/success_rate", max_env_step=16)
    with pytest.warns(UserWarning, match=r"chosen by eval/return_mean \(max\); this run chooses by eval/success_rate"):
        trainer.fit(dqn(small), resumed, ckpt_path="last")
    (best,) = (one for one in trainer.checkpoint_callbacks if isinstance(one, BestCheckpoint))
    assert best.monitor == "eval/success_rate"
    assert best.best_model_score == pytest.approx(0.2)


@pytest.mark.parametrize(("own", "score"), [(None, -math.inf), ("eval/success_rate", 195.0)])
def test_older_checkpoint_has_the_best_return_unless_the_callback_chose_its_metric(
    make_trainer: MakeTrainer, own: str | None, score: float
) -> None:
    callback, trainer = BestCheckpoint(monitor=own), make_trainer()
    older = {"best_model_score": 195.0, "best_model_path": "best.ckpt"}
    trainer.datamodule = data(monitor="eval/success_rate")  # type: ignore[attr-defined]
    callback.setup(trainer, None, "fit")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        callback.load_state_dict(older)
    assert (callback.best_model_score, len(caught)) == (score, 1 if own is None else 0)


def test_evaluation_says_nothing_of_the_metric_of_a_checkpoint(make_trainer: MakeTrainer) -> None:
    callback, trainer = BestCheckpoint(), make_trainer()
    trainer.datamodule = data(monitor="eval/success_rate")  # type: ignore[attr-defined]
    callback.setup(trainer, None, "validate")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        callback.load_state_dict(
            {"best_model_score": 0.5, "best_model_path": "best.ckpt", "monitor": "eval/success_rate", "mode": "max"}
        )


def test_callback_with_its_own_monitor_keeps_it(make_trainer: MakeTrainer, small: Config, tmp_path: Path) -> None:
    own = BestCheckpoint(tmp_path, monitor="eval/wave", mode="min")
    make_trainer(enable_checkpointing=True, callbacks=[own]).fit(dqn(small), data(monitor="eval/success_rate"))
    assert (own.monitor, own.mode, own.best_model_score) == ("eval/wave", "min", 4.0)
    with pytest.raises(ValueError, match="mode must be None without monitor, got 'min'"):
        BestCheckpoint(mode="min")


# ---------------------------------------------------------------------------------------------------- intervals


class Watch(Callback):
    """Notes the position of each evaluation, and of each checkpoint by its folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.evaluations: list[int] = []

    def on_validation_end(self, trainer: Trainer, pl_module: Any) -> None:
        self.evaluations.append(pl_module.progress.position)

    @property
    def checkpoints(self) -> list[int]:
        return sorted(int(file.parent.name.rpartition("-")[2]) for file in self.folder.rglob(RUN_FILE))


def fit(make_trainer: MakeTrainer, policy: Any, datamodule: Any, folder: Path, *more: Any, **flags: Any) -> Watch:
    watch = Watch(folder)
    saver = RunCheckpoint(folder, keep_last=100)
    trainer = make_trainer(enable_checkpointing=True, callbacks=[watch, saver, *more])
    trainer.fit(policy, datamodule, **flags)
    assert trainer.check_val_every_n_epoch == 1
    return watch


def test_evaluations_and_checkpoints_come_after_multiples_of_the_interval(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path
) -> None:
    watch = fit(make_trainer, dqn(small), data(eval_every=10, max_env_step=46), tmp_path)
    assert watch.evaluations == [12, 20, 32, 40, 48]  # rounds of 4 env steps; the last one is the end
    assert watch.checkpoints == watch.evaluations


def test_checkpoints_have_an_interval_of_their_own(make_trainer: MakeTrainer, small: Config, tmp_path: Path) -> None:
    watch = fit(make_trainer, dqn(small), data(eval_every=24, checkpoint_every=10, max_env_step=46), tmp_path)
    assert (watch.evaluations, watch.checkpoints) == ([24, 48], [12, 20, 32, 40, 48])


def test_epochs_are_short_against_the_interval_and_not_shorter_than_needed(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path
) -> None:
    policy = dqn(small)
    watch = fit(make_trainer, policy, data(eval_every=200, max_env_step=820), tmp_path)
    assert watch.evaluations == [200, 400, 600, 800, 820]
    assert policy.trainer.current_epoch == pytest.approx(820 / 8, abs=1)  # of 200 // (20 * 4) = 2 rounds


def test_whole_episodes_are_evaluated_after_the_round_that_passes_a_multiple(
    make_trainer: MakeTrainer, tmp_path: Path
) -> None:
    collect: Config = {"n_sample": None, "n_episode": 2, "collector": {"type": "episode"}}
    policy = PPOPolicy({"collect": collect, "learn": {"batch_size": 4}})
    datamodule = RolloutDataModule(partial(InfoEnv, lengths=(3,)), 2, max_env_step=30, eval_every=10)
    assert fit(make_trainer, policy, datamodule, tmp_path).evaluations == [12, 24, 30]


def test_offline_runs_count_updates(make_trainer: MakeTrainer, small: Config, tmp_path: Path) -> None:
    steps = {"obs": np.zeros((9, 3)), "action": np.linspace(-1, 1, 9)[:, None], "reward": np.ones(9)}
    ends = {"terminated": np.arange(9) == 8, "truncated": np.zeros(9, dtype=bool)}
    policy = CQLPolicy({"learn": {"batch_size": 4, "update_per_collect": 2}, "eval": {"evaluator": {"n_episode": 1}}})
    datamodule = OfflineDataModule({**steps, **ends}, "Pendulum-v1", max_train_iter=8, eval_every=3)
    assert fit(make_trainer, policy, datamodule, tmp_path).evaluations == [4, 6, 8]


def test_run_without_evaluations_saves_at_their_intervals(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path
) -> None:
    make = partial(make_trainer, limit_val_batches=0)
    watch = fit(make, dqn(small), data(eval_every=10, max_env_step=46), tmp_path)
    assert (watch.evaluations, watch.checkpoints) == ([], [12, 20, 32, 40, 48])


def test_resumed_run_evaluates_and_saves_where_an_uninterrupted_one_does(
    make_trainer: MakeTrainer, small: Config, tmp_path: Path
) -> None:
    arguments: Config = {"eval_every": 24, "checkpoint_every": 10, "max_env_step": 60}
    torch.manual_seed(0)
    whole = dqn(small)
    watch = fit(make_trainer, whole, data(**arguments), tmp_path / "whole")
    torch.manual_seed(0)
    fit(make_trainer, dqn(small), data(**arguments), tmp_path / "parts", StopAtEnvStep(32))
    rest = dqn(small)
    later = fit(make_trainer, rest, data(**arguments), tmp_path / "parts", ckpt_path="last")
    assert (watch.evaluations, later.evaluations) == ([24, 48, 60], [48, 60])
    assert later.checkpoints == watch.checkpoints == [12, 20, 32, 40, 52, 60]
    for one, other in zip(whole.state_dict().values(), rest.state_dict().values(), strict=True):
        assert torch.equal(one, other)


def test_early_stopping_counts_evaluations(make_trainer: MakeTrainer, small: Config, tmp_path: Path) -> None:
    stopping = EarlyStopping("eval/wave", patience=2, mode="max")
    watch = fit(make_trainer, dqn(small), data(eval_every=12, max_env_step=400), tmp_path, stopping)
    assert watch.evaluations == [12, 24, 36]  # the best value comes first, and two equal ones follow


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"eval_every": 9, "rounds_per_epoch": 2}, "eval_every must be None with rounds_per_epoch, .*got 9"),
        ({"checkpoint_every": 9}, "checkpoint_every must be None without eval_every, got 9"),
        ({"eval_every": 0}, "eval_every must be >= 1, got 0"),
        ({"eval_every": 9, "checkpoint_every": 0}, "checkpoint_every must be >= 1, got 0"),
    ],
)
def test_intervals_are_checked(arguments: Config, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        data(**arguments)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"max_epochs": 3}, "max_epochs must be left out with eval_every=8, .*; use max_env_step, got 3"),
        ({"check_val_every_n_epoch": 3}, "check_val_every_n_epoch must be left out with eval_every=8"),
        ({"val_check_interval": 2}, "val_check_interval must be left out with eval_every=8"),
        ({"callbacks": [EvaluationInterval(5)]}, "callbacks must be without EvaluationInterval"),
    ],
)
def test_trainer_with_another_interval_is_refused(
    make_trainer: MakeTrainer, small: Config, flags: Config, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        make_trainer(**flags).fit(dqn(small), data(eval_every=8))


def test_mistakes_are_named(make_trainer: MakeTrainer, small: Config) -> None:
    with pytest.raises(ValueError, match=r"one of \['broken', .*'wave'\], got 'waves'"):
        make_trainer().fit(dqn(small), data(info_keys=["waves"], max_env_step=40))
    trainer = make_trainer(enable_checkpointing=True)
    with pytest.raises(KeyError, match=r"monitor must be a logged metric, one of .*eval/wave.*, got 'eval/waves'"):
        trainer.fit(dqn(small), data(monitor="eval/waves"))
    trainer = make_trainer(enable_checkpointing=True, callbacks=[RunCheckpoint(every_n_epochs=2)])
    with pytest.raises(ValueError, match="every_n_epochs must be 1 with checkpoint_every=8, got 2"):
        trainer.fit(dqn(small), data(eval_every=8, checkpoint_every=8))


def test_checkpoint_callback_counts_evaluations(make_trainer: MakeTrainer, small: Config, tmp_path: Path) -> None:
    saver = RunCheckpoint(tmp_path, every_n_epochs=2, keep_last=9)
    trainer = make_trainer(enable_checkpointing=True, callbacks=[saver])
    trainer.fit(dqn(small), data(eval_every=8, max_env_step=44))
    assert Watch(tmp_path).checkpoints == [16, 32, 44]
