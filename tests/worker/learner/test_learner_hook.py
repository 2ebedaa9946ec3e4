"""Hooks: their order, what a config makes of them, when the built-in ones act, and what they do in a Trainer."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning import Trainer
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger

from lightning_ding.datamodules import ReplayDataModule
from lightning_ding.policy import DQNPolicy
from lightning_ding.utils.modes import LearnMode
from lightning_ding.worker import (
    BaseLearner,
    LearnerEngine,
    LearnerHook,
    add_learner_hook,
    merge_hooks,
    sort_callbacks,
    with_priority,
)
from lightning_ding.worker.learner import LoadCkptHook, LogReduceHook, LogShowHook, SaveCkptHook
from lightning_ding.worker.learner.hooks import engine_of
from tests.conftest import MakeTrainer
from tests.worker.learner.toy_hooks import POSITIONS, NoteHook, hook, names

Reports = list[dict[str, Any]]


class ScriptedPolicy:
    """Reports what a script says: of each call, a dict or a list of them."""

    def __init__(self, script: Any, names: Any = ("total_loss",)) -> None:
        self.script = list(script)
        self.names = list(names)

    def forward(self, data: Any) -> Any:
        return self.script.pop(0)

    @property
    def mode(self) -> LearnMode:
        def attribute(name: str) -> Any:
            raise NotImplementedError(name)

        def nothing(*_: Any) -> Any:
            return {}

        return LearnMode(self.forward, nothing, str, lambda: self.names, attribute, nothing, nothing, nothing)


class FakeWriter:
    """A TensorBoard writer that keeps what it is told."""

    def __init__(self) -> None:
        self.scalars: list[tuple[str, float, int]] = []
        self.histograms: list[tuple[str, list[float], int]] = []

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self.scalars.append((name, value, step))

    def add_histogram(self, name: str, value: Any, step: int) -> None:
        self.histograms.append((name, value.tolist(), step))


def learner_of(script: Any, *hooks: LearnerHook, names: Any = ("total_loss",), **kwargs: Any) -> BaseLearner:
    off = {"log_show_after_iter": False, "save_ckpt_after_iter": False, "save_ckpt_after_run": False}
    learner = BaseLearner({"hook": off}, policy=ScriptedPolicy(script, names).mode, **kwargs)
    for one in hooks:
        learner.register_hook(one)
    return learner


def test_hook_is_what_it_was_made_as_and_stays_so() -> None:
    one = hook("a", 7, "before_iter")

    assert (one.name, one.priority, one.position) == ("a", 7, "before_iter")
    for attribute in ("name", "priority", "position"):
        with pytest.raises(AttributeError):
            setattr(one, attribute, "after_run")


def test_hook_acts_after_iterations_with_priority_100_by_default() -> None:
    one = NoteHook(name="a")

    assert (one.priority, one.position, one.ext_args) == (100, "after_iter", {})


def test_hook_without_a_call_cannot_be_made() -> None:
    class Silent(LearnerHook):
        pass

    with pytest.raises(TypeError, match="abstract"):
        Silent("a")  # type: ignore[abstract]


def test_add_learner_hook_sorts_by_priority_and_inserts_after_equal_ones() -> None:
    hooks: Any = {position: [] for position in POSITIONS}
    for name, priority in [("b", 20), ("c", 20), ("a", 10), ("e", 30), ("d", 20)]:
        add_learner_hook(hooks, hook(name, priority))

    assert names(hooks)["after_iter"] == ["a", "b", "c", "d", "e"]
    assert names(hooks)["before_iter"] == []


def test_merge_hooks_sorts_and_puts_the_first_of_equal_ones_first() -> None:
    first = {"after_iter": [hook("a1", 10), hook("a2", 20)], "before_run": [hook("a3")]}
    second = {"after_iter": [hook("b1", 5), hook("b2", 20)], "before_run": []}

    merged = merge_hooks(first, second)

    assert names(merged) == {"after_iter": ["b1", "a1", "a2", "b2"], "before_run": ["a3"]}


def test_merge_hooks_changes_neither_of_its_arguments() -> None:
    first, second = {"after_iter": [hook("a", 10)]}, {"after_iter": [hook("b", 5)]}
    merge_hooks(first, second)["after_iter"].clear()

    assert (names(first), names(second)) == ({"after_iter": ["a"]}, {"after_iter": ["b"]})


def test_sort_callbacks_keeps_the_order_of_those_without_priority() -> None:
    callbacks = [Callback() for _ in range(4)]

    assert sort_callbacks(callbacks) == callbacks


def test_sort_callbacks_goes_by_priority_and_counts_none_as_100() -> None:
    plain, late, early = Callback(), with_priority(Callback(), 101), with_priority(Callback(), 99)
    one = hook(priority=0)

    assert sort_callbacks([late, plain, early, one]) == [one, early, plain, late]


def test_sort_callbacks_leaves_checkpoints_last() -> None:
    checkpoint, late = with_priority(ModelCheckpoint(), 0), with_priority(Callback(), 200)

    assert sort_callbacks([checkpoint, late]) == [late, checkpoint]


@pytest.mark.parametrize("given", [hook(), "callback"])
def test_with_priority_takes_callbacks_that_have_none(given: Any) -> None:
    with pytest.raises(TypeError, match="with_priority takes a callback that is not a LearnerHook, got"):
        with_priority(given, 3)


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match="priority must be >= 0, got -1"):
        hook(priority=-1)
    with pytest.raises(ValueError, match=r"position must be one of before_run, after_run, .*got 'after_epoch'"):
        hook(position="after_epoch")
    with pytest.raises(TypeError, match="hook must be a LearnerHook, got Callback"):
        add_learner_hook({}, Callback())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"hooks2 must be hooks at \['after_iter'\].*got \['before_run'\]"):
        merge_hooks({"after_iter": []}, {"before_run": []})
    with pytest.raises(ValueError, match="priority must be >= 0, got -1"):
        with_priority(Callback(), -1)


@pytest.mark.parametrize(
    ("reports", "every", "expected"),
    [
        ([1] * 7, 3, [3, 6]),
        ([1] * 3, 1, [1, 2, 3]),
        ([2, 2, 2, 2], 3, [4, 6]),  # completed: 2, 4, 6, 8; just past the multiples 3 and 6
        ([7, 1], 3, [7]),  # two multiples at once are one occasion
        ([1, 0, 0, 1], 2, [2]),  # an iteration without an update is none
    ],
)
def test_hook_acts_when_completed_updates_cross_a_multiple(
    reports: list[int], every: int, expected: list[int], tmp_path: Path
) -> None:
    script = [[{"total_loss": 1.0}] * number for number in reports]
    learner = learner_of(script, SaveCkptHook(ext_args={"freq": every}), exp_name=str(tmp_path))
    for _ in reports:
        learner.train([])

    files = {file.name for file in (tmp_path / "ckpt").iterdir()}
    assert files == {f"iteration_{number}.pth.tar" for number in expected}


def test_log_show_averages_over_the_whole_interval() -> None:
    writer = FakeWriter()
    script = [{"total_loss": float(value)} for value in range(1, 51)]
    learner = learner_of(script, LogShowHook(ext_args={"freq": 25}), tb_logger=writer)
    for _ in range(50):
        learner.train([])

    # the means of 1..25 and of 26..50; of the last ten alone they would be 20.5 and 45.5
    assert writer.scalars == [
        ("learner_iter/total_loss_avg", 13.0, 25),
        ("learner_step/total_loss_avg", 13.0, 0),
        ("learner_iter/total_loss_avg", 38.0, 50),
        ("learner_step/total_loss_avg", 38.0, 0),
    ]
    assert learner.monitor == {"total_loss_avg": 38.0}


def test_log_show_counts_an_iteration_as_often_as_it_made_updates() -> None:
    script = [[{"total_loss": 1.0}, {"total_loss": 3.0}, {"total_loss": 5.0}], {"total_loss": 7.0}]
    learner = learner_of(script, LogShowHook(ext_args={"freq": 4}))
    learner.train([])
    learner.train([])

    assert learner.monitor == {"total_loss_avg": 4.0}  # (1 + 3 + 5 + 7) / 4


def test_log_show_leaves_out_missing_values() -> None:
    script: Any = [{"total_loss": 1.0}, {"total_loss": 5.0, "entropy": 2.0}]
    learner = learner_of(script, LogShowHook(ext_args={"freq": 2}), names=["total_loss", "entropy", "absent"])
    learner.train([])
    learner.train([])

    assert learner.monitor == {"total_loss_avg": 3.0, "entropy_avg": 2.0}


def test_log_show_reports_only_monitored_values() -> None:
    learner = learner_of([{"total_loss": 1.0, "other": 9.0}], LogShowHook())
    learner.train([])

    assert learner.monitor == {"total_loss_avg": 1.0}


def test_log_show_writes_groups_of_scalars_and_histograms() -> None:
    writer = FakeWriter()
    report = {"[scalars]q": {"min": -1.0, "max": torch.tensor(3.0)}, "[histogram]action": torch.tensor([0, 1, 1])}
    learner = learner_of([report], LogShowHook(), tb_logger=writer)
    learner.train([], envstep=40)

    iterations = [entry for entry in writer.scalars if entry[0].startswith("learner_iter")]
    assert iterations == [("learner_iter/q/min_avg", -1.0, 1), ("learner_iter/q/max_avg", 3.0, 1)]
    values = [0.0, 1.0, 1.0]
    assert writer.histograms == [("learner_iter/action", values, 1), ("learner_step/action", values, 40)]


def test_log_show_writes_to_a_logger_of_lightning_and_its_histograms_to_the_writer_in_it() -> None:
    writer, metrics = FakeWriter(), []
    logger = SimpleNamespace(experiment=writer, log_metrics=lambda values, step: metrics.append((values, step)))
    learner = learner_of([{"total_loss": 1.0, "[histogram]action": [2.0]}], LogShowHook(), tb_logger=logger)
    learner.train([], envstep=40)

    assert metrics == [({"learner/total_loss_avg": 1.0}, 40)]
    assert writer.histograms == [("learner_iter/action", [2.0], 1), ("learner_step/action", [2.0], 40)]


@pytest.mark.parametrize(("rank", "only_first", "writes"), [(0, True, True), (1, True, False), (1, False, True)])
def test_log_show_writes_on_the_first_rank_or_on_all(rank: int, only_first: bool, writes: bool) -> None:
    writer = FakeWriter()
    cfg = {"only_monitor_rank0": only_first, "hook": {"log_show_after_iter": 1, "log_reduce_after_iter": False}}
    policy = ScriptedPolicy([{"total_loss": 1.0}]).mode
    BaseLearner(cfg, policy=policy, tb_logger=writer, dist_info=(rank, 2)).train([])

    assert bool(writer.scalars) is writes


def test_log_show_says_a_line_in_pythons_logging(caplog: pytest.LogCaptureFixture) -> None:
    learner = learner_of([{"total_loss": 0.25}], LogShowHook())
    with caplog.at_level(logging.INFO, "lightning_ding"):
        learner.train([], envstep=8)

    assert caplog.messages == ["train_iter 1, env_step 8: total_loss_avg 0.25"]


def test_log_reduce_averages_over_ranks_on_the_cpu(two_ranks: Reports) -> None:
    # rank 0 reports a loss of 1 and {"low": 10}, rank 1 a loss of 2 and {"low": 20}, in another order
    for report in two_ranks:
        assert (report["reduced"]["total_loss"], report["reduced"]["entropy"]) == (1.5, 100.0)
        assert report["reduced"]["q/low"] == 15.0


def test_log_reduce_leaves_out_what_is_not_to_be_reduced(two_ranks: Reports) -> None:
    assert [report["reduced"]["noreduce_time"] for report in two_ranks] == [1.0, 2.0]


def test_log_reduce_comes_before_the_report(two_ranks: Reports) -> None:
    assert [report["monitor"] for report in two_ranks] == [{"total_loss_avg": 1.5, "q/low_avg": 15.0}] * 2


def test_log_reduce_raises_on_all_ranks_if_their_names_differ(two_ranks: Reports) -> None:
    for report in two_ranks:
        message = "every rank must report the same names, but only some report scalar/extra"
        assert report["differing_names"] == f"ValueError: {message}"


def test_log_reduce_continues_when_no_rank_reports_anything(two_ranks: Reports) -> None:
    assert [report["nothing_reported"] for report in two_ranks] == [{}, {}]


def test_log_reduce_does_nothing_on_one_rank() -> None:
    learner = learner_of([{"total_loss": 3.0}], LogReduceHook())
    learner.train([])

    assert learner.log_buffer["scalar"] == {"total_loss": 3.0}


def test_log_reduce_refuses_ranks_that_cannot_be_reached() -> None:
    learner = BaseLearner(policy=ScriptedPolicy([{"total_loss": 1.0}]).mode, dist_info=(0, 2))

    with pytest.raises(RuntimeError, match=r"averaging over 2 ranks needs an initialised torch.distributed"):
        learner.train([])


class StopLate(Callback):
    """Ends the run after its second round."""

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        trainer.should_stop = trainer.should_stop or trainer.fit_loop.total_batch_idx >= 1


class CountEvaluations(Callback):
    """Counts evaluations."""

    count = 0

    def on_validation_end(self, *_: Any) -> None:
        self.count += 1


def fit(make_trainer: MakeTrainer, small: Any, *callbacks: Callback, updates: int = 6, **flags: Any) -> Trainer:
    trainer = make_trainer(callbacks=list(callbacks), **flags)
    trainer.fit(DQNPolicy(small), ReplayDataModule("CartPole-v1", num_envs=2, max_train_iter=updates))
    return trainer


def test_hooks_in_a_trainer_act_at_their_positions_in_the_order_of_priority(
    make_trainer: MakeTrainer, small: dict[str, Any]
) -> None:
    notes: list[tuple[str, int]] = []
    parts = [("late", 101, "after_iter"), ("plain", 100, "after_iter"), ("early", 1, "after_iter")]
    parts += [("first", 20, "before_run"), ("before", 20, "before_iter"), ("last", 20, "after_run")]
    fit(make_trainer, small, *(hook(*part, notes=notes) for part in parts), updates=4)

    # a round makes two updates
    rounds = [[("before", n), ("early", n + 2), ("plain", n + 2), ("late", n + 2)] for n in (0, 2)]
    assert notes == [("first", 0), *rounds[0], *rounds[1], ("last", 4)]


def test_hook_in_a_trainer_sees_what_an_earlier_one_made_of_the_log_buffer(
    make_trainer: MakeTrainer, small: dict[str, Any]
) -> None:
    class Change(LearnerHook):
        def __call__(self, engine: LearnerEngine) -> None:
            engine.log_buffer["scalar"]["total_loss"] = 42.0

    trainer = fit(make_trainer, small, LogShowHook(), Change("change", 10), updates=2)

    assert engine_of(trainer).monitor["total_loss_avg"] == 42.0


def test_callback_with_a_priority_runs_among_the_hooks(make_trainer: MakeTrainer, small: dict[str, Any]) -> None:
    notes: list[tuple[str, int]] = []

    class Plain(Callback):
        def on_train_batch_end(self, trainer: Trainer, pl_module: Any, *_: Any) -> None:
            notes.append(("callback", pl_module.progress.train_iter))

    callbacks = [hook("late", 60, notes=notes), with_priority(Plain(), 50), hook("early", 40, notes=notes)]
    fit(make_trainer, small, *callbacks, updates=2)

    assert notes == [("early", 2), ("callback", 2), ("late", 2)]


def test_callbacks_of_a_run_without_priorities_stay_as_lightning_orders_them(
    make_trainer: MakeTrainer, small: dict[str, Any]
) -> None:
    given = [CountEvaluations(), StopLate()]
    trainer = fit(make_trainer, small, *given, enable_checkpointing=True, logger=False)

    kinds = [type(callback).__name__ for callback in trainer.callbacks]  # type: ignore[attr-defined]
    own = [
        "TorchThreads",
        "MetricsLogger",
        "LastLine",
        "StopAtTrainIter",
        "Watchdog",
        "FinalEvaluation",
        "StopOnSignal",
    ]
    assert kinds == ["CountEvaluations", "StopLate", *own, "BestCheckpoint", "RunCheckpoint"]


def test_final_evaluation_follows_a_callback_that_ends_the_run_late(
    make_trainer: MakeTrainer, small: dict[str, Any]
) -> None:
    evaluations = CountEvaluations()
    late = with_priority(StopLate(), 500)
    fit(make_trainer, small, late, evaluations, updates=100, check_val_every_n_epoch=50)

    assert evaluations.count == 1


def test_save_hook_in_a_trainer_saves_once_when_a_round_crosses_a_multiple(
    make_trainer: MakeTrainer, small: dict[str, Any], tmp_path: Path
) -> None:
    fit(make_trainer, small, SaveCkptHook(ext_args={"freq": 5}), updates=12)

    # rounds end at 2, 4, 6, 8, 10, 12 updates; the multiples are 5 and 10
    files = sorted(file.name for file in (tmp_path / "ckpt").iterdir())
    assert files == ["iteration_10.pth.tar", "iteration_6.pth.tar"]


def test_checkpoint_of_a_trainer_is_loaded_by_the_hook_in_another(
    make_trainer: MakeTrainer, small: dict[str, Any], tmp_path: Path
) -> None:
    trainer = fit(make_trainer, small, SaveCkptHook(position="after_run"), updates=6)
    saved = trainer.lightning_module

    class Compare(LearnerHook):
        def __call__(self, engine: LearnerEngine) -> None:
            loaded = engine.policy.get_attribute("module")
            assert engine.train_iter == 6
            assert engine.collector_envstep == saved.progress.env_step > 0  # type: ignore[union-attr, operator]
            for name, tensor in saved.state_dict().items():
                assert torch.equal(tensor, loaded.state_dict()[name]), name

    load = LoadCkptHook(ext_args={"load_path": tmp_path / "ckpt" / "iteration_6.pth.tar"})
    after = fit(make_trainer, small, Compare("compare", 30, "before_run"), load, updates=8)
    assert after.lightning_module.progress.train_iter == 8  # type: ignore[union-attr]


def test_log_show_in_a_trainer_writes_to_its_logger(
    make_trainer: MakeTrainer, small: dict[str, Any], tmp_path: Path
) -> None:
    class Catch(LearnerHook):
        values: tuple[Any, ...] = ()

        def __call__(self, engine: LearnerEngine) -> None:
            self.values += (float(engine.log_buffer["scalar"]["total_loss"]),)

    catch, logger = Catch("catch"), CSVLogger(tmp_path)
    trainer = fit(make_trainer, small, catch, LogShowHook(ext_args={"freq": 8}), updates=8, logger=logger)

    engine = engine_of(trainer)
    assert len(catch.values) == 4  # the last update of each round
    assert engine.monitor["total_loss_avg"] == pytest.approx(sum(catch.values) / 4, rel=1e-6)
    assert engine.monitor["cur_lr_avg"] == pytest.approx(1e-3, rel=1e-6)
    assert "learner/total_loss_avg" in (Path(logger.log_dir) / "metrics.csv").read_text()


def test_hook_needs_a_trainer_that_trains_a_policy(make_trainer: MakeTrainer) -> None:
    from lightning.pytorch.demos.boring_classes import BoringModel

    with pytest.raises(TypeError, match="policy must be a policy or its learn mode, got BoringModel"):
        make_trainer(max_steps=1, callbacks=[hook()]).fit(BoringModel())
