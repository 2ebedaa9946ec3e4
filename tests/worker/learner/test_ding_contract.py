"""What code written for DI-engine's learner and hooks relies on."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from easydict import EasyDict
from lightning.pytorch.loggers import TensorBoardLogger
from torch.utils.tensorboard import SummaryWriter

from lightning_ding.worker import BaseLearner, LearnerHook, build_learner_hook_by_cfg, create_learner
from tests.worker.learner.toy_policy import batch_of, policy_of

QUIET = {"log_show_after_iter": False, "save_ckpt_after_iter": False, "save_ckpt_after_run": False}


def names(learner: BaseLearner, position: str) -> list[tuple[str, int]]:
    return [(hook.name, hook.priority) for hook in learner.hooks[position]]


def test_logger_is_the_one_that_info_writes_to(caplog: pytest.LogCaptureFixture) -> None:
    learner = BaseLearner({"hook": QUIET}, exp_name="some", instance_name="one")
    caplog.set_level(logging.INFO)
    learner.logger.info("by hand")
    learner.info("by the learner")
    assert isinstance(learner.logger, logging.Logger)
    assert {record.name for record in caplog.records} == {learner.logger.name}


def test_tb_logger_is_the_given_writer_and_is_not_closed(tmp_path: Path) -> None:
    writer = SummaryWriter(str(tmp_path))
    learner = BaseLearner({"hook": QUIET}, tb_logger=writer)
    assert learner.tb_logger is writer
    learner.close()
    assert writer.file_writer is not None
    writer.close()


def test_tb_logger_of_a_lightning_logger_is_its_writer(tmp_path: Path) -> None:
    logger = TensorBoardLogger(tmp_path)
    assert BaseLearner({"hook": QUIET}, tb_logger=logger).tb_logger is logger.experiment


def test_tb_logger_is_made_at_the_first_access_and_gets_the_reports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    learner = BaseLearner({"hook": {**QUIET, "log_show_after_iter": 1}}, policy_of(), exp_name="run")
    assert not list(tmp_path.iterdir())  # nothing is written on construction
    learner.tb_logger.add_scalar("mine", 1.0, 0)
    learner.train(batch_of(0), envstep=3)
    learner.close()
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "run" / "log" / "learner"))
    events.Reload()
    assert {"mine", "learner_iter/total_loss_avg", "learner_step/total_loss_avg"} <= set(events.Tags()["scalars"])


def test_other_ranks_have_no_tb_logger() -> None:
    assert BaseLearner({"hook": QUIET}, dist_info=(1, 2)).tb_logger is None


class Note(LearnerHook):
    """A hook as DI-engine's documentation writes one."""

    def __init__(self, *args: Any, ext_args: Any = EasyDict(), **kwargs: Any) -> None:  # noqa: B008
        super().__init__(*args, **kwargs)
        self.freq = ext_args.get("freq", 1)
        self.seen: list[int] = []

    def __call__(self, engine: Any) -> None:
        if engine.last_iter.val % self.freq == 0:
            self.seen.append(engine.last_iter.val)


FULL = {
    "my_save": {
        "type": "save_ckpt",
        "name": "save_ckpt_after_iter",
        "priority": 40,
        "position": "after_iter",
        "ext_args": {"freq": 2},
    }
}


def test_full_form_of_a_hook_works_inside_the_config(tmp_path: Path) -> None:
    cfg = EasyDict(hook={**QUIET, **FULL})
    learner = BaseLearner(cfg, policy_of(), exp_name=str(tmp_path))
    assert names(learner, "after_iter") == [("save_ckpt_after_iter", 40)]
    for seed in range(4):
        learner.train(batch_of(seed))
    files = sorted(file.name for file in (tmp_path / "ckpt").iterdir())
    assert files == ["iteration_2.pth.tar", "iteration_4.pth.tar"]


def test_full_form_under_a_short_key_replaces_the_built_in_hook() -> None:
    full = {"type": "log_show", "name": "log_show", "priority": 7, "position": "after_iter", "ext_args": {"freq": 5}}
    learner = BaseLearner({"hook": {"log_show_after_iter": full, "save_ckpt_after_iter": 10}})
    assert names(learner, "after_iter") == [("log_show", 7), ("save_ckpt_after_iter", 20)]


def test_full_form_in_the_config_and_alone_build_the_same_hooks() -> None:
    built = build_learner_hook_by_cfg(EasyDict(FULL))
    learner = BaseLearner({"hook": {**QUIET, **FULL}})
    assert [(one.name, one.priority) for one in built["after_iter"]] == names(learner, "after_iter")


@pytest.mark.parametrize(
    ("hook", "error", "message"),
    [
        ({"log_shw_after_iter": 5}, ValueError, "did you mean 'hook.log_show_after_iter'"),
        ({"my_save": {"name": "x", "position": "after_iter"}}, KeyError, "needs a 'type'"),
        ({"my_save": {**FULL["my_save"], "prioriti": 3}}, ValueError, "did you mean 'priority'"),
    ],
)
def test_misspelt_hook_in_the_config_is_named(hook: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        BaseLearner({"hook": hook})


def test_saved_config_with_a_full_form_is_read_again() -> None:
    learner = BaseLearner({"hook": {**QUIET, **FULL}})
    again = BaseLearner(learner.config)
    assert names(again, "after_iter") == names(learner, "after_iter")


def test_hook_with_the_constructor_of_the_reference_is_called() -> None:
    learner = create_learner(EasyDict(type="base", hook=QUIET), policy=policy_of())
    hook = Note("note", 30, position="after_iter", ext_args=EasyDict(freq=2))
    learner.register_hook(hook)
    for seed in range(4):
        learner.train(batch_of(seed))
    assert hook.seen == [2, 4]


def test_chunk_size_is_refused_with_the_reason() -> None:
    with pytest.raises(ValueError, match=r"dataloader.chunk_size' does not exist here: leave it out"):
        BaseLearner({"dataloader": {"chunk_size": 8}})


def test_batch_may_be_a_list_of_functions_that_load_a_transition() -> None:
    batch = batch_of(0)
    size = len(batch["reward"])
    rows = [{name: column[row] for name, column in batch.items()} for row in range(size)]
    policies = [policy_of(), policy_of()]
    sources: list[Any] = [iter([rows]), iter([[lambda row=row: row for row in rows]])]
    for policy, source in zip(policies, sources, strict=True):
        learner = BaseLearner({"hook": QUIET, "train_iterations": 1, "log_policy": False}, policy)
        learner.get_data = lambda batch_size, source=source: next(source)
        learner.setup_dataloader()
        learner.start(accelerator="cpu")
    one, other = (policy.state_dict() for policy in policies)
    assert all((one[name] == other[name]).all() for name in one)


class UnknownAttributes:
    """The learn mode of DI-engine's own tests, which knows few attributes and raises a bare KeyError for the others."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def forward(self, data: Any) -> dict[str, Any]:
        return {"total_loss": torch.tensor(0.5), "cur_lr": 0.1}

    def monitor_vars(self) -> list[str]:
        return ["total_loss", "cur_lr"]

    def info(self) -> str:
        return "a fake policy"

    def get_attribute(self, name: str) -> Any:
        if name in ("device", "batch_size"):
            return {"device": "cpu", "batch_size": 2}[name]
        raise self.error


@pytest.mark.parametrize("error", [KeyError(), KeyError("progress"), NotImplementedError("no")])
def test_a_policy_without_the_attributes_of_ours_is_trained(error: Exception) -> None:
    learner = BaseLearner(policy=UnknownAttributes(error))
    (report,) = learner.train([{"obs": torch.zeros(2)}])
    assert report["total_loss"] == 0.5
    assert learner.train_iter == 1


def test_another_error_of_an_attribute_is_not_hidden() -> None:
    with pytest.raises(KeyError, match="learning_rate"):
        BaseLearner(policy=UnknownAttributes(KeyError("learning_rate")))
