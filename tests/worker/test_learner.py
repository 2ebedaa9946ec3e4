"""The learner: what one batch does by hand, what a run in a Trainer does, and that both are the same."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning import Trainer
from lightning.pytorch import Callback
from torch import Tensor
from torch.utils.data import DataLoader

from lightning_ding.policy import DQNPolicy
from lightning_ding.policy.modes import LearnMode
from lightning_ding.progress import Progress
from lightning_ding.worker import BaseLearner, LearnerEngine, LearnerHook, create_learner, with_priority
from lightning_ding.worker.learner import checkpoint
from lightning_ding.worker_config import LearnerConfig

MakeTrainer = Callable[..., Trainer]
Batch = dict[str, Any]
BATCH_SIZE = 8
OFF = {"log_show_after_iter": False, "save_ckpt_after_iter": False, "save_ckpt_after_run": False}


def policy_of(**cfg: Any) -> DQNPolicy:
    model = {"obs_shape": 4, "action_shape": 2, "encoder_hidden_size_list": [16], "dueling": False}
    torch.manual_seed(0)
    return DQNPolicy({"model": model, "learn": {"batch_size": BATCH_SIZE, "target_update_freq": 3}, **cfg})


def batch_of(seed: int) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    return {
        "obs": torch.randn(BATCH_SIZE, 4, generator=generator),
        "next_obs": torch.randn(BATCH_SIZE, 4, generator=generator),
        "action": torch.randint(2, (BATCH_SIZE,), generator=generator),
        "reward": torch.randn(BATCH_SIZE, generator=generator),
        "terminated": torch.rand(BATCH_SIZE, generator=generator) < 0.2,
        "truncated": torch.zeros(BATCH_SIZE, dtype=torch.bool),
    }


def as_list(batch: Batch) -> list[Batch]:
    return [{name: value[row] for name, value in batch.items()} for row in range(BATCH_SIZE)]


class FakePolicy:
    """Reports what it is told to, one entry for each call; counts nothing itself unless it has a ``progress``."""

    def __init__(self, *reports: Any, progress: Progress | None = None, device: str = "cpu") -> None:
        self.reports = list(reports)
        self.attributes = {"batch_size": BATCH_SIZE, "device": torch.device(device)}
        self.attributes |= {"progress": progress} if progress is not None else {}
        self.calls: list[tuple[Any, Mapping[str, Any]]] = []
        self.loaded: dict[str, Any] | None = None

    def forward(self, data: Any, **kwargs: Any) -> Any:
        self.calls.append((data, kwargs))
        report = self.reports.pop(0) if self.reports else {}
        return report() if callable(report) else report

    def get_attribute(self, name: str) -> Any:
        if name not in self.attributes:
            raise NotImplementedError(name)
        return self.attributes[name]

    def load(self, state: dict[str, Any]) -> None:
        self.loaded = state

    @property
    def learn_mode(self) -> LearnMode:
        def nothing(*_: Any) -> None:
            raise AssertionError("a learner must not touch this")

        state = {"weight": torch.ones(2)}
        mode = (self.forward, nothing, lambda: "a fake policy", lambda: ["total_loss"], self.get_attribute, nothing)
        return LearnMode(*mode, lambda: state, self.load)


class NoteHook(LearnerHook):
    """Notes what ``look`` returns of the engine."""

    def __init__(self, position: Any, notes: list[Any], look: Callable[[Any], Any], priority: int = 100) -> None:
        super().__init__("note", priority, position)
        self.notes = notes
        self.look = look

    def __call__(self, engine: LearnerEngine) -> None:
        self.notes.append(self.look(engine))


def learner_of(policy: Any, *hooks: LearnerHook, **kwargs: Any) -> BaseLearner:
    """Return a learner whose hooks are these alone; further config keys among the arguments."""
    cfg = {key: kwargs.pop(key) for key in list(kwargs) if key in BaseLearner.config_keys}
    learner = BaseLearner({**cfg, "hook": {**OFF, **cfg.get("hook", {})}}, policy, **kwargs)
    for hook in hooks:
        learner.register_hook(hook)
    return learner


def weights(policy: DQNPolicy) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in policy.state_dict().items()}


def assert_equal(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert torch.equal(tensor, other[name]), name


def saved_in(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir()) if folder.is_dir() else []


# ------------------------------------------------------------------ one batch


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


def test_train_returns_what_each_update_reported() -> None:
    reports = [{"total_loss": 1.0}, {"total_loss": 2.0}]

    assert learner_of(FakePolicy(reports)).train([]) == reports
    assert learner_of(FakePolicy(reports[0])).train([]) == [reports[0]]


@pytest.mark.parametrize("output", [None, 3.0, "loss", [3.0]])
def test_train_refuses_an_output_that_is_no_report(output: Any) -> None:
    with pytest.raises(TypeError, match="forward must return a dict or a list of dicts, got"):
        learner_of(FakePolicy(output)).train([])


def test_train_needs_a_policy() -> None:
    with pytest.raises(RuntimeError, match="the learner needs a policy: pass it to the constructor, or set"):
        learner_of(None).train([])


def test_learner_refuses_what_is_no_policy() -> None:
    with pytest.raises(TypeError, match="policy must be a policy or its learn mode, got int"):
        BaseLearner(policy=3)


# ------------------------------------------------------------------ counting


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


# ------------------------------------------------------------------ priorities


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


def test_priorities_are_forgotten_when_the_next_update_gives_none() -> None:
    learner = learner_of(FakePolicy({"priority": [1.0]}, {"total_loss": 1.0}))
    learner.train([{"replay_unique_id": "a"}])
    learner.train([{"replay_unique_id": "b"}])

    assert learner.priority_info == {}
    assert learner.learn_info["priority_info"] == {}


def test_priorities_are_forgotten_when_the_next_update_fails() -> None:
    learner = learner_of(FakePolicy({"priority": [1.0]}, None))
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


def test_priorities_of_another_number_than_the_batch_are_refused() -> None:
    with pytest.raises(ValueError, match="priority must have one entry for each of 3 transitions, got 2"):
        learner_of(FakePolicy({"priority": [1.0, 2.0]})).train([{}, {}, {}])


def test_learn_info_says_how_far_the_learner_is() -> None:
    learner = learner_of(FakePolicy({"priority": [1.0]}))
    learner.train([{}])

    assert learner.learn_info == {"learner_step": 1, "priority_info": learner.priority_info, "learner_done": False}
    learner.call_hook("after_run")
    assert learner.learn_info["learner_done"] is True
    learner.call_hook("before_run")
    assert learner.learn_info["learner_done"] is False


# ------------------------------------------------------------------ the log buffer


@pytest.mark.parametrize(
    "value",
    [
        3.0,
        3,
        np.float32(3),
        np.int64(3),
        torch.tensor(3.0),
        torch.tensor([3]),
        [3.0],
        np.array([1.0, 5.0]),
        torch.tensor([1.0, 5.0]),
    ],
)
def test_log_buffer_takes_every_kind_of_number(value: Any) -> None:
    learner = learner_of(FakePolicy({"total_loss": value}), hook={"log_show_after_iter": 1})
    learner.train([])

    assert float(learner.log_buffer["scalar"]["total_loss"]) == 3.0
    assert learner.monitor == {"total_loss_avg": 3.0}


@pytest.mark.parametrize("value", ["three", None, [], {"a": 1.0}, torch.zeros(0)])
def test_log_buffer_refuses_what_is_no_number_and_says_its_name(value: Any) -> None:
    with pytest.raises(TypeError, match="'some_value' must be a number, or an array of them, to be reported, got"):
        learner_of(FakePolicy({"some_value": value})).train([])


def test_log_buffer_sorts_by_the_group_in_brackets() -> None:
    report = {"a": 1.0, "[scalars]b": {"x": 2, "y": 3.0}, "x[histogram]c": [1.0, 2.0]}
    learner = learner_of(FakePolicy(report))
    learner.train([])

    buffer = learner.log_buffer
    assert (buffer["scalar"], buffer["scalars"]) == ({"a": 1.0}, {"b": {"x": 2.0, "y": 3.0}})
    assert {name: value.tolist() for name, value in buffer["histogram"].items()} == {"c": [1.0, 2.0]}


@pytest.mark.parametrize(("key", "value"), [("[scalars]b", 2.0), ("[histogram]b", "text")])
def test_log_buffer_refuses_a_group_of_another_form(key: str, value: Any) -> None:
    with pytest.raises(TypeError, match=r"'\[\w+\]b' must be"):
        learner_of(FakePolicy({key: value})).train([])


def test_log_buffer_holds_means_over_the_updates_of_an_iteration_and_all_their_histograms() -> None:
    one = {"a": 1.0, "[scalars]b": {"x": 2.0}, "[histogram]c": [1.0]}
    other = {"a": 4.0, "[scalars]b": {"x": 4.0, "y": 5.0}, "[histogram]c": torch.tensor([[2.0], [3.0]])}
    learner = learner_of(FakePolicy([one, other]))
    learner.train([])

    buffer = learner.log_buffer
    assert (buffer["scalar"]["a"], buffer["scalars"]["b"]) == (2.5, {"x": 3.0, "y": 5.0})
    assert buffer["histogram"]["c"].tolist() == [1.0, 2.0, 3.0]


def test_log_buffer_holds_the_last_iteration_only() -> None:
    learner = learner_of(FakePolicy({"a": 1.0}, {"b": 2.0}))
    learner.train([])
    learner.train([])

    assert learner.log_buffer["scalar"] == {"b": 2.0}


def test_log_buffer_asks_the_policy_for_what_it_monitors_and_does_not_report() -> None:
    learner = learner_of(policy_of())
    learner.train(batch_of(1))

    assert learner.log_buffer["scalar"]["cur_lr"] == 5e-4


# ------------------------------------------------------------------ hooks by hand


def test_call_hook_goes_by_priority() -> None:
    notes: list[int] = []
    hooks = [NoteHook("before_run", notes, lambda _, p=p: p, p) for p in (30, 10, 20)]  # type: ignore[misc]
    learner_of(policy_of(), *hooks).call_hook("before_run")

    assert notes == [10, 20, 30]


def test_call_hook_refuses_an_unknown_position() -> None:
    with pytest.raises(ValueError, match=r"position must be one of before_run, .* got 'before_epoch'"):
        learner_of(policy_of()).call_hook("before_epoch")


def test_register_hook_refuses_what_is_no_hook() -> None:
    with pytest.raises(TypeError, match="hook must be a LearnerHook, got Callback"):
        learner_of(policy_of()).register_hook(Callback())  # type: ignore[arg-type]


# ------------------------------------------------------------------ checkpoints


def test_checkpoint_needs_no_hook(tmp_path: Path) -> None:
    file = learner_of(policy_of(), exp_name=str(tmp_path)).save_checkpoint("ckpt_best.pth.tar")

    assert file == tmp_path / "ckpt" / "ckpt_best.pth.tar"
    assert file.is_file()


def test_checkpoint_is_named_after_ckpt_name_once(tmp_path: Path) -> None:
    learner = learner_of(policy_of(), exp_name=str(tmp_path))
    learner.ckpt_name = "mine.pth.tar"

    assert [learner.save_checkpoint().name for _ in range(2)] == ["mine.pth.tar", "iteration_0.pth.tar"]


def test_checkpoint_of_a_named_learner_has_a_folder_of_its_own(tmp_path: Path) -> None:
    learner = learner_of(policy_of(), exp_name=str(tmp_path), instance_name="second")

    assert learner.save_checkpoint("x").parent == tmp_path / "ckpt_second"


def test_checkpoint_is_written_by_the_first_rank_alone(tmp_path: Path, two_ranks: list[dict[str, Any]]) -> None:
    hook = {"log_reduce_after_iter": False}
    learner_of(policy_of(), hook=hook, exp_name=str(tmp_path / "second"), dist_info=(1, 2)).save_checkpoint()

    assert not (tmp_path / "second").exists()
    assert [report["saves"] for report in two_ranks] == [True, False]


def test_checkpoint_brings_back_all_that_further_updates_depend_on(tmp_path: Path) -> None:
    straight, first, second = policy_of(), policy_of(), policy_of()
    for policy, seeds in ((straight, range(10)), (first, range(5))):
        learner = learner_of(policy, exp_name=str(tmp_path))
        for seed in seeds:
            learner.train(batch_of(seed), envstep=seed * 10)
    first.progress.episode, first.progress.sample = 6, 40
    file = learner.save_checkpoint()
    learner = learner_of(second)
    learner.load_checkpoint(file)
    assert second.progress.state_dict() == {"train_iter": 5, "env_step": 40, "episode": 6, "sample": 40}
    for seed in range(5, 10):
        learner.train(batch_of(seed))

    # weights, Adam's moments, the target network, and the counter that times its update
    assert_equal(weights(straight), weights(second))


def test_checkpoint_of_fewer_counters_leaves_the_others(tmp_path: Path) -> None:
    policy = FakePolicy(progress=Progress(train_iter=1, env_step=2, episode=3))
    torch.save({"weight": torch.ones(1), "last_iter": 9}, tmp_path / "file")
    learner = learner_of(policy)
    learner.load_checkpoint(tmp_path / "file")

    assert (learner.train_iter, learner.collector_envstep) == (9, 2)
    assert policy.loaded is not None
    assert policy.loaded.keys() == {"weight"}


def test_checkpoint_appears_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = learner_of(policy_of(), exp_name=str(tmp_path))
    file = learner.save_checkpoint("same")
    before = file.read_bytes()

    def half(state: Any, target: Path) -> None:
        target.write_bytes(before[:100])
        raise OSError("disk full")

    monkeypatch.setattr("lightning_ding.worker.learner.checkpoint.torch.save", half)
    learner.train(batch_of(1))
    with pytest.raises(OSError, match="disk full"):
        learner.save_checkpoint("same")

    assert file.read_bytes() == before
    assert saved_in(file.parent) == ["same"]


def test_checkpoint_holds_tensors_and_builtins_only(tmp_path: Path) -> None:
    state = {"a": np.arange(3), "b": [np.float64(0.5), (1, None)], "c": {"d": "text", "e": torch.ones(2)}}
    checkpoint.write_checkpoint(tmp_path / "file", state)
    read = checkpoint.read_checkpoint(tmp_path / "file")

    assert read["a"].tolist() == [0, 1, 2]
    assert read["b"] == [0.5, (1, None)]
    assert (read["c"]["d"], read["c"]["e"].tolist()) == ("text", [1.0, 1.0])


def test_checkpoint_refuses_what_could_not_be_read_back(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"the state\['a'\]\[1\] must be a tensor or a builtin to be saved, got"):
        checkpoint.write_checkpoint(tmp_path / "folder" / "file", {"a": [1, tmp_path]})

    assert list(tmp_path.iterdir()) == []


def test_checkpoint_that_is_no_state_is_refused(tmp_path: Path) -> None:
    torch.save(torch.ones(2), tmp_path / "file")
    with pytest.raises(TypeError, match="must hold a dict, the state of a learner, got Tensor"):
        checkpoint.read_checkpoint(tmp_path / "file")


# ------------------------------------------------------------------ a run


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


def test_learner_that_is_closed_does_not_start() -> None:
    learner = learner_of(policy_of())
    learner.get_data = lambda batch_size: batch_of(batch_size)
    learner.close()

    with pytest.raises(RuntimeError, match="the learner is closed: make a new one to train on"):
        learner.start()


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


def test_run_without_a_batch_is_an_error() -> None:
    learner = learner_of(policy_of())
    learner.get_data = []
    with pytest.raises(RuntimeError, match="get_data gave no batch, so nothing was learned"):
        learner.start()


def test_run_needs_a_source_of_batches() -> None:
    with pytest.raises(RuntimeError, match=r"the learner needs batches: set learner.get_data, or pass get_data"):
        learner_of(policy_of()).start()


def test_run_needs_batches_that_can_be_asked_for() -> None:
    with pytest.raises(TypeError, match="get_data must be a function of the batch size, or an iterable, got int"):
        learner_of(policy_of()).setup_dataloader(3)


def test_run_needs_a_policy_that_is_a_module() -> None:
    learner = learner_of(FakePolicy())
    learner.get_data = [[]]
    with pytest.raises(RuntimeError, match=r"start\(\) needs a policy that is a LightningModule, got NoneType"):
        learner.start()


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


def test_run_refuses_a_number_of_epochs() -> None:
    learner = learner_of(policy_of())
    learner.get_data = [batch_of(1)]
    with pytest.raises(ValueError, match="max_epochs must be left out; set train_iterations"):
        learner.start(max_epochs=3)


# ------------------------------------------------------------------ failures


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


# ------------------------------------------------------------------ config and life


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


def test_create_learner_lists_the_types_there_are() -> None:
    with pytest.raises(KeyError, match=r"no learner is registered as 'bass'; did you mean 'base'\? Registered: base"):
        create_learner({"type": "bass"})
