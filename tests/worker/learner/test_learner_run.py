"""A learner's run in a Trainer, and its failures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning import Trainer
from lightning.pytorch import Callback

from lightning_ding.policy import DQNPolicy
from lightning_ding.utils.progress import Progress
from lightning_ding.worker import BaseLearner, LearnerHook, with_priority
from tests.worker.learner.toy_policy import (
    BATCH_SIZE,
    Batch,
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


def test_run_after_a_loaded_checkpoint_saves_at_the_completed_updates(tmp_path: Path) -> None:
    first = policy_of()
    first.progress.train_iter = 5
    start = learner_of(first, exp_name=str(tmp_path / "first")).save_checkpoint()
    hook = {"load_ckpt_before_run": str(start), "save_ckpt_after_iter": 5, "save_ckpt_after_run": True}
    learner = learner_of(policy_of(), train_iterations=10, hook=hook, exp_name=str(tmp_path / "run"))
    learner.get_data = [batch_of(seed) for seed in range(20)]
    learner.start()

    assert learner.train_iter == 15
    assert saved_in(tmp_path / "run" / "ckpt") == ["iteration_10.pth.tar", "iteration_15.pth.tar"]


def test_run_calls_the_hooks_in_the_order_of_position_and_priority() -> None:
    notes: list[tuple[str, int, int]] = []
    hooks = [
        NoteHook(position, notes, lambda e, k=(position, priority): (*k, e.train_iter), priority)  # type: ignore[misc]
        for priority in (2, 1)
        for position in ("after_run", "after_iter", "before_iter", "before_run")
    ]
    learner = learner_of(policy_of(), *hooks, train_iterations=2)
    learner.setup_dataloader([batch_of(seed) for seed in range(2)])
    learner.start()

    iterations = [[("before_iter", 0), ("after_iter", 1)], [("before_iter", 1), ("after_iter", 2)]]
    expected = [("before_run", 0), *iterations[0], *iterations[1], ("after_run", 2)]
    assert notes == [(position, priority, n) for position, n in expected for priority in (1, 2)]


def test_run_asks_for_a_batch_when_the_one_before_is_learned_from() -> None:
    policy = policy_of()
    asked: list[tuple[int, int]] = []

    def get_data(batch_size: int) -> Batch:
        asked.append((batch_size, policy.progress.train_iter))
        return batch_of(len(asked))

    learner = learner_of(policy, train_iterations=4)
    learner.get_data = get_data
    learner.start()

    assert asked == [(BATCH_SIZE, 0), (BATCH_SIZE, 1), (BATCH_SIZE, 2), (BATCH_SIZE, 3)]


def test_run_ends_where_the_batches_end() -> None:
    learner = learner_of(policy_of())
    learner.get_data = (batch_of(seed) for seed in range(3))
    learner.start()

    assert (learner.train_iter, learner.learn_info["learner_done"]) == (3, True)


def test_run_takes_lists_of_transitions() -> None:
    policy, other = policy_of(), policy_of()
    learner_of(other).train(batch_of(1))
    learner = learner_of(policy)
    learner.get_data = [as_list(batch_of(1))]
    learner.start()

    assert_equal(weights(policy), weights(other))


def test_run_ends_before_the_next_batch_when_the_learner_is_closed() -> None:
    class CloseAt3(LearnerHook):
        def __call__(self, engine: Any) -> None:
            if engine.train_iter == 3:
                engine.close()

    learner = learner_of(policy_of(), CloseAt3("close"))
    learner.get_data = lambda batch_size: batch_of(batch_size)
    learner.start()
    learner.close()

    assert learner.train_iter == 3


def test_run_hands_each_batch_s_priorities_to_the_hooks() -> None:
    notes: list[Any] = []
    learner = learner_of(policy_of(priority=True), NoteHook("after_iter", notes, lambda e: e.learn_info))
    by_hand = learner_of(policy_of(priority=True))
    batches = [{**batch_of(seed), "replay_unique_id": torch.arange(8) + 100 * seed} for seed in range(2)]
    learner.get_data = batches
    learner.start()

    assert [info["learner_step"] for info in notes] == [1, 2]
    for info, batch in zip(notes, batches, strict=True):
        by_hand.train(batch)
        assert torch.equal(info["priority_info"]["priority"], by_hand.priority_info["priority"])
        assert torch.equal(info["priority_info"]["replay_unique_id"], batch["replay_unique_id"])


def test_run_reports_means_over_the_whole_interval() -> None:
    batches = [batch_of(seed) for seed in range(30)]
    losses = [
        float(learner.train(batch)[0]["total_loss"]) for learner in [learner_of(policy_of())] for batch in batches
    ]
    learner = learner_of(policy_of(), hook={"log_show_after_iter": 30})
    learner.get_data = batches
    learner.start()

    assert learner.monitor["total_loss_avg"] == pytest.approx(sum(losses) / 30, rel=1e-6)


@pytest.mark.parametrize(("flags", "folder"), [({}, "exp"), ({"default_root_dir": "other"}, "other")])
def test_run_takes_flags_and_callbacks_for_its_trainer(flags: dict[str, Any], folder: str) -> None:
    seen: list[str] = []

    class Look(Callback):
        def on_train_start(self, trainer: Trainer, *_: Any) -> None:
            seen.append(Path(trainer.default_root_dir).name)

    learner = learner_of(policy_of(), exp_name="exp")
    learner.get_data = [batch_of(1)]
    learner.start(**flags, callbacks=Look())

    assert seen == [folder]


def test_run_puts_its_callbacks_among_the_hooks_by_priority() -> None:
    notes: list[str] = []

    class Note(Callback):
        def on_train_batch_end(self, *_: Any) -> None:
            notes.append("callback")

    hooks = [NoteHook("after_iter", notes, lambda _, p=p: f"hook {p}", p) for p in (140, 160)]  # type: ignore[misc]
    learner = learner_of(policy_of(), *hooks)
    learner.get_data = [batch_of(1)]
    learner.start(callbacks=[with_priority(Note(), 150)])

    assert notes == ["hook 140", "callback", "hook 160"]


def test_mistakes_are_named() -> None:
    learner = learner_of(policy_of())
    learner.get_data = lambda batch_size: batch_of(batch_size)
    learner.close()
    with pytest.raises(RuntimeError, match="the learner is closed: create a new one to continue training"):
        learner.start()
    learner = learner_of(policy_of())
    learner.get_data = []
    with pytest.raises(RuntimeError, match="get_data gave no batch, so nothing was learned"):
        learner.start()
    with pytest.raises(RuntimeError, match=r"the learner needs batches: set learner.get_data, or pass get_data"):
        learner_of(policy_of()).start()
    with pytest.raises(TypeError, match="get_data must be a function of the batch size, or an iterable, got int"):
        learner_of(policy_of()).setup_dataloader(3)
    learner = learner_of(FakePolicy())
    learner.get_data = [[]]
    with pytest.raises(RuntimeError, match=r"start\(\) needs a policy that is a LightningModule, got NoneType"):
        learner.start()
    learner = learner_of(policy_of())
    learner.get_data = [batch_of(1)]
    with pytest.raises(ValueError, match="max_epochs must be left out, because train_iterations limits the run"):
        learner.start(max_epochs=3)


class FailingPolicy(DQNPolicy):
    """Fails in its third update."""

    def _forward_learn(self, batch: Any) -> Any:
        if self.progress.train_iter == 2:
            raise ZeroDivisionError("the third update")
        return super()._forward_learn(batch)


def failing_learner(folder: Path) -> BaseLearner:
    learner = learner_of(FailingPolicy(policy_of().cfg), hook={"save_ckpt_after_run": True}, exp_name=str(folder))
    learner.get_data = [batch_of(seed) for seed in range(5)]
    return learner


def test_run_that_fails_saves_what_there_is_and_raises_its_error(tmp_path: Path) -> None:
    learner = failing_learner(tmp_path)
    with pytest.raises(ZeroDivisionError, match="the third update"):
        learner.start()

    assert saved_in(tmp_path / "ckpt") == ["ckpt_exception.pth.tar"]  # it is not over, so not the one after the run
    assert torch.load(tmp_path / "ckpt" / "ckpt_exception.pth.tar", weights_only=True)["last_iter"] == 2
    assert learner.learn_info["learner_done"] is False


def test_run_that_fails_raises_its_error_even_if_nothing_can_be_saved(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "ckpt").write_text("a file where the folder should be")
    with pytest.raises(ZeroDivisionError, match="the third update"):
        failing_learner(tmp_path).start()

    assert any("no checkpoint could be written" in message for message in caplog.messages)


def test_run_raises_the_error_of_a_hook(tmp_path: Path) -> None:
    def fail(_: Any) -> None:
        raise KeyError("in a hook")

    learner = learner_of(policy_of(), NoteHook("after_iter", [], fail), exp_name=str(tmp_path))
    learner.get_data = [batch_of(1)]
    with pytest.raises(KeyError, match="in a hook"):
        learner.start()


def test_iteration_after_one_that_failed_is_counted_alone() -> None:
    progress = Progress()

    def update_and_fail() -> None:
        progress.train_iter += 1
        raise ZeroDivisionError

    def update() -> dict[str, float]:
        progress.train_iter += 1
        return {}

    learner = learner_of(FakePolicy(update_and_fail, update, progress=progress))
    with pytest.raises(ZeroDivisionError):
        learner.train([])
    learner.train([])

    assert (learner.train_iter, learner.updates) == (2, 1)
