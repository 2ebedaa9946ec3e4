"""The learner: what one batch does by hand, what a run in a Trainer does, and that both are the same."""

from __future__ import annotations

import copy
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from torch.utils.data import DataLoader

from lightning_ding.utils.progress import Progress
from lightning_ding.worker import BaseLearner, create_learner
from lightning_ding.worker.learner.config import LearnerConfig
from tests.conftest import MakeTrainer
from tests.worker.learner.toy_policy import (
    BATCH_SIZE,
    FakePolicy,
    NoteHook,
    as_list,
    assert_equal,
    batch_of,
    learner_of,
    policy_of,
    saved_in,
    weights,
)


def test_training_by_hand_gives_bit_identical_weights_to_a_trainer_over_the_same_batches(
    make_trainer: MakeTrainer,
) -> None:
    batches = [batch_of(seed) for seed in range(10)]
    by_hand, in_trainer = policy_of(), policy_of()
    learner = learner_of(by_hand)
    for batch in batches:
        learner.train(batch)
    make_trainer(max_epochs=1, limit_val_batches=0).fit(in_trainer, DataLoader(batches, batch_size=None))  # type: ignore[arg-type]

    assert by_hand.progress.train_iter == in_trainer.progress.train_iter == 10
    assert_equal(weights(by_hand), weights(in_trainer))
    name = next(iter(weights(by_hand)))
    assert not torch.equal(weights(by_hand)[name], weights(policy_of())[name])


def test_run_of_a_learner_gives_bit_identical_weights_to_training_by_hand() -> None:
    batches = [batch_of(seed) for seed in range(10)]
    by_hand, in_run = policy_of(), policy_of()
    learner = learner_of(by_hand)
    for batch in batches:
        learner.train(batch)
    run = learner_of(in_run, train_iterations=10)
    run.setup_dataloader(batches)
    run.start()

    assert_equal(weights(by_hand), weights(in_run))


def test_batch_may_be_a_dict_or_a_list() -> None:
    from_dict, from_list = policy_of(), policy_of()
    learner_of(from_dict).train(batch_of(1))
    learner_of(from_list).train(as_list(batch_of(1)))

    assert_equal(weights(from_dict), weights(from_list))


@pytest.mark.parametrize("form", [dict, list])
def test_batch_goes_to_the_device_of_the_policy(form: type) -> None:
    policy = FakePolicy(device="meta")
    learner_of(policy).train(batch_of(1) if form is dict else as_list(batch_of(1)))

    ((data, _),) = policy.calls
    assert {tensor.device.type for tensor in data.values()} == {"meta"}
    assert data["obs"].shape == (BATCH_SIZE, 4)


def test_policy_may_be_given_as_a_whole_or_as_its_learn_mode() -> None:
    whole, mode = policy_of(), policy_of()
    learner_of(whole).train(batch_of(1))
    learner_of(mode.learn_mode).train(batch_of(1))

    assert_equal(weights(whole), weights(mode))


def test_train_hands_arguments_on_to_the_policy() -> None:
    policy = FakePolicy()
    learner_of(policy).train([1, 2], policy_kwargs={"temperature": 0.5})

    assert policy.calls == [([1, 2], {"temperature": 0.5})]


def test_train_returns_the_report_of_each_update() -> None:
    reports = [{"total_loss": 1.0}, {"total_loss": 2.0}]

    assert learner_of(FakePolicy(reports)).train([]) == reports
    assert learner_of(FakePolicy(reports[0])).train([]) == [reports[0]]


@pytest.mark.parametrize("output", [None, 3.0, "loss", [3.0]])
def test_train_refuses_an_output_that_is_no_report(output: Any) -> None:
    with pytest.raises(TypeError, match="forward must return a dict or a list of dicts, got"):
        learner_of(FakePolicy(output)).train([])


def test_updates_of_a_list_of_reports_are_counted_before_the_hooks_run() -> None:
    notes: list[int] = []
    reports = [[{"total_loss": 1.0}] * 3, {"total_loss": 1.0}]
    learner = learner_of(FakePolicy(*reports), NoteHook("after_iter", notes, lambda e: e.train_iter))
    learner.train([])
    learner.train([])

    assert notes == [3, 4]


def test_iteration_without_an_update_is_not_reported() -> None:
    progress = Progress()

    def update() -> dict[str, float]:
        progress.train_iter += 1
        return {}

    learner = learner_of(FakePolicy({"total_loss": 1.0}, update, progress=progress), hook={"log_show_after_iter": 1})
    learner.monitor = {"before": 0.0}
    learner.train([])
    assert learner.monitor == {"before": 0.0}
    learner.train([])
    assert learner.monitor == {}


def test_updates_are_those_that_the_policy_counts_itself() -> None:
    progress = Progress(train_iter=10)

    def four_updates() -> dict[str, float]:
        progress.train_iter += 4
        return {"total_loss": 1.0}

    learner = learner_of(FakePolicy(four_updates, progress=progress))
    learner.train([])

    assert (learner.train_iter, learner.updates, learner.last_iter.val) == (14, 4, 14)


def test_learner_counts_with_the_progress_of_the_policy() -> None:
    policy = policy_of()
    learner = learner_of(policy)
    learner.train(batch_of(1))
    learner.last_iter.update(7)
    learner.last_iter.add(2)

    assert (policy.progress.train_iter, learner.train_iter) == (9, 9)


def test_env_steps_are_taken_over_unless_they_are_negative() -> None:
    policy = policy_of()
    learner = learner_of(policy)
    learner.train(batch_of(1), envstep=64)
    learner.train(batch_of(2))

    assert (learner.collector_envstep, policy.progress.env_step) == (64, 64)
    learner.collector_envstep = 80
    assert policy.progress.env_step == 80


def test_hooks_before_an_iteration_see_the_updates_before_it() -> None:
    notes: list[tuple[str, int]] = []
    hooks = [NoteHook(p, notes, lambda e, p=p: (p, e.train_iter)) for p in ("after_iter", "before_iter")]  # type: ignore[misc]
    learner = learner_of(policy_of(), *hooks)
    for seed in range(2):
        learner.train(batch_of(seed))

    assert notes == [("before_iter", 0), ("after_iter", 1), ("before_iter", 1), ("after_iter", 2)]


def test_checkpoint_by_hand_is_named_after_the_updates_in_it(tmp_path: Path) -> None:
    learner = learner_of(policy_of(), hook={"save_ckpt_after_iter": 2}, exp_name=str(tmp_path / "run"))
    for seed in range(5):
        learner.train(batch_of(seed))

    folder = tmp_path / "run" / "ckpt"
    assert saved_in(folder) == ["iteration_2.pth.tar", "iteration_4.pth.tar"]
    saved = torch.load(folder / "iteration_2.pth.tar", weights_only=True)
    two_updates = policy_of()
    for seed in range(2):
        learner_of(two_updates).train(batch_of(seed))
    assert saved["last_iter"] == 2
    assert_equal(saved["model"], two_updates.model.state_dict())


def test_priorities_come_with_the_ids_of_exactly_this_batch() -> None:
    policy = policy_of(priority=True)
    learner = learner_of(policy)
    batch = {**batch_of(1), "replay_buffer_idx": torch.arange(8), "replay_unique_id": torch.arange(8) + 50}
    expected = policy_of(priority=True).learn_mode.forward(batch)["priority"]
    (report,) = learner.train(batch)

    assert "priority" not in report
    info = learner.priority_info
    assert torch.equal(info["priority"], expected)
    assert info["replay_buffer_idx"].tolist() == list(range(8))
    assert info["replay_unique_id"].tolist() == list(range(50, 58))


def test_priorities_of_a_list_of_transitions_are_lists() -> None:
    data = [{"replay_unique_id": "a", "replay_buffer_idx": 3}, {"replay_unique_id": "b"}]
    learner = learner_of(FakePolicy({"priority": torch.tensor([0.5, 2.0])}))
    learner.train(data)

    ids = {"replay_unique_id": ["a", "b"], "replay_buffer_idx": [3, None]}
    assert learner.priority_info == {"priority": [0.5, 2.0], **ids}


def test_priorities_of_a_batch_without_ids_say_so() -> None:
    learner = learner_of(FakePolicy({"priority": [1.0, 2.0]}))
    learner.train({"reward": torch.zeros(2)})

    nothing = [None, None]
    assert learner.priority_info == {"priority": [1.0, 2.0], "replay_unique_id": nothing, "replay_buffer_idx": nothing}


def test_reports_stay_as_the_policy_made_them() -> None:
    report = {"priority": [1.0]}
    learner_of(FakePolicy(report)).train([{}])

    assert report == {"priority": [1.0]}


def test_priorities_are_forgotten_when_the_next_update_gives_none_or_fails() -> None:
    learner = learner_of(FakePolicy({"priority": [1.0]}, {"total_loss": 1.0}, {"priority": [1.0]}, None))
    learner.train([{"replay_unique_id": "a"}])
    learner.train([{"replay_unique_id": "b"}])
    assert learner.priority_info == {}
    assert learner.learn_info["priority_info"] == {}
    learner.train([{}])
    with pytest.raises(TypeError):
        learner.train([{}])

    assert learner.priority_info == {}


def test_priorities_are_those_of_the_last_of_several_updates() -> None:
    learner = learner_of(FakePolicy([{"priority": [1.0]}, {"priority": [2.0]}], [{"priority": [3.0]}, {}]))
    outputs = learner.train([{}])

    assert learner.priority_info["priority"] == [2.0]
    assert outputs == [{}, {}]
    learner.train([{}])
    assert learner.priority_info == {}


def test_learn_info_says_how_far_the_learner_is() -> None:
    learner = learner_of(FakePolicy({"priority": [1.0]}))
    learner.train([{}])

    assert learner.learn_info == {"learner_step": 1, "priority_info": learner.priority_info, "learner_done": False}
    learner.call_hook("after_run")
    assert learner.learn_info["learner_done"] is True
    learner.call_hook("before_run")
    assert learner.learn_info["learner_done"] is False


def test_call_hook_goes_by_priority() -> None:
    notes: list[int] = []
    hooks = [NoteHook("before_run", notes, lambda _, p=p: p, p) for p in (30, 10, 20)]  # type: ignore[misc]
    learner_of(policy_of(), *hooks).call_hook("before_run")

    assert notes == [10, 20, 30]


def test_learner_averages_over_ranks_if_there_are_several(two_ranks: list[dict[str, Any]]) -> None:
    alone = [hook.name for hook in BaseLearner().hooks["after_iter"]]

    assert alone == ["log_show", "save_ckpt_after_iter"]
    assert [report["hooks"] for report in two_ranks] == [["log_reduce_after_iter", "log_show"]] * 2


def test_learner_changes_no_config_for_several_ranks(two_ranks: list[dict[str, Any]]) -> None:
    cfg = {"hook": {"save_ckpt_after_iter": 5}}
    before = copy.deepcopy(cfg)
    learner = BaseLearner(cfg, dist_info=(0, 2))

    assert learner.hooks["after_iter"][0].name == "log_reduce_after_iter"
    assert (cfg, learner.config.hook.log_reduce_after_iter) == (before, None)
    assert [report["cfg_says"] for report in two_ranks] == [None, None]


def test_learner_takes_its_rank_from_dist_info() -> None:
    learner = BaseLearner(dist_info=(3, 4))

    assert (learner.rank, learner.world_size) == (3, 4)
    assert (BaseLearner().rank, BaseLearner().world_size) == (0, 1)


def test_only_rank_zero_reports_unless_every_rank_shall(two_ranks: list[dict[str, Any]]) -> None:
    # a learner with only_monitor_rank0, one without it, and a log's histograms
    assert [report["writes"] for report in two_ranks] == [[True, True, True], [False, True, False]]


@pytest.mark.parametrize(("log_policy", "said"), [(True, ["[RANK2] a fake policy"]), (False, [])])
def test_learner_describes_its_policy_if_it_shall(
    log_policy: bool, said: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "lightning_ding"):
        learner_of(FakePolicy(), log_policy=log_policy, dist_info=(2, 3), hook={"log_reduce_after_iter": False})

    assert caplog.messages == said


def test_learner_says_lines_with_its_rank(caplog: pytest.LogCaptureFixture) -> None:
    learner = BaseLearner(exp_name="exp", instance_name="second")
    with caplog.at_level(logging.DEBUG, "lightning_ding"):
        learner.info("one")
        learner.debug("two")

    records = [(record.name, record.levelname, record.message) for record in caplog.records]
    name = "lightning_ding.exp.second"
    assert records == [(name, "INFO", "[RANK0] one"), (name, "DEBUG", "[RANK0] two")]


def test_learner_writes_nothing_when_it_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    learner = BaseLearner(policy=policy_of(), exp_name="run")
    learner.train(batch_of(1))

    assert list(tmp_path.iterdir()) == []


def test_learner_closes_no_logger_that_it_did_not_make() -> None:
    class Writer:
        closed = False

        def close(self) -> None:
            self.closed = True

    writer = Writer()
    with BaseLearner(tb_logger=writer):
        pass

    assert not writer.closed


@pytest.mark.parametrize(
    ("cfg", "message"),
    [
        ({"train_iterations": 0}, "train_iterations must be >= 1, got 0"),
        ({"dataloader": {"num_workers": 2}}, "dataloader.num_workers must be 0, batches are fetched in the learner"),
        ({"is_multitask_pipeline": True}, "does not exist here: set only_monitor_rank0=False"),
        ({"train_iteration": 3}, "unknown config key 'train_iteration'; did you mean 'train_iterations'"),
    ],
)
def test_learner_refuses_a_config_that_means_nothing(cfg: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BaseLearner(cfg)


def test_default_config_of_a_learner_can_be_given_back() -> None:
    default = BaseLearner.default_config()

    assert (default.type, default.cfg_type, default.hook.save_ckpt_after_iter) == ("base", "BaseLearnerDict", 10_000)
    assert BaseLearner(default).config == LearnerConfig()


def test_create_learner_makes_the_base_if_nothing_is_said() -> None:
    learner = create_learner({"train_iterations": 3}, policy=FakePolicy(), exp_name="exp")

    assert type(learner) is BaseLearner
    assert (learner.config.train_iterations, learner.exp_name) == (3, "exp")


def test_mistakes_are_named() -> None:
    with pytest.raises(RuntimeError, match="the learner needs a policy: pass it to the constructor, or set"):
        learner_of(None).train([])
    with pytest.raises(TypeError, match="policy must be a policy or its learn mode, got int"):
        BaseLearner(policy=3)
    with pytest.raises(ValueError, match="priority must have one entry for each of 3 transitions, got 2"):
        learner_of(FakePolicy({"priority": [1.0, 2.0]})).train([{}, {}, {}])
    with pytest.raises(ValueError, match=r"position must be one of before_run, .* got 'before_epoch'"):
        learner_of(policy_of()).call_hook("before_epoch")
    with pytest.raises(TypeError, match="hook must be a LearnerHook, got Callback"):
        learner_of(policy_of()).register_hook(Callback())  # type: ignore[arg-type]
    with pytest.raises(KeyError, match=r"no learner is registered as 'bass'; did you mean 'base'\? Registered: base"):
        create_learner({"type": "bass"})
