"""The aggregator: how infos are merged, and that several learners are trained as one, in a process and over ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from lightning_ding.utils.modes import LearnMode
from lightning_ding.worker import BaseLearner, LearnerAggregator, LearnerHook, merge_info
from lightning_ding.worker.aggregator import decode, encode

Reports = list[dict[str, Any]]
OFF = {"log_show_after_iter": False, "save_ckpt_after_iter": False, "save_ckpt_after_run": False}


class FakePolicy:
    """Keeps the batches that it is given, and gives the rewards back as priorities."""

    def __init__(self, batch_size: int, error: Exception | None = None) -> None:
        self.batch_size = batch_size
        self.error = error
        self.batches: list[Any] = []

    def forward(self, data: Any) -> Any:
        if self.error is not None:
            raise self.error
        self.batches.append(data)
        rewards = data["reward"] if isinstance(data, dict) else [item["reward"] for item in data]
        return {"total_loss": 1.0, "priority": rewards}

    def get_attribute(self, name: str) -> Any:
        if name != "batch_size":
            raise NotImplementedError(name)
        return self.batch_size

    @property
    def mode(self) -> LearnMode:
        def nothing(*_: Any) -> Any:
            return {}

        return LearnMode(self.forward, nothing, str, lambda: [], self.get_attribute, nothing, nothing, nothing)


def learner_of(policy: FakePolicy, name: str = "learner") -> BaseLearner:
    return BaseLearner({"hook": OFF}, policy.mode, instance_name=name)


def aggregator_of(*policies: FakePolicy) -> LearnerAggregator:
    return LearnerAggregator(learners={f"learner_{i}": learner_of(policy) for i, policy in enumerate(policies)})


# ------------------------------------------------------------------ merging


def test_merge_takes_ids_and_progress_from_the_first() -> None:
    first = {"learner_step": 3, "buffer_id": "a", "task_id": "b", "learner_done": False}
    other = {"learner_step": 9, "buffer_id": "c", "task_id": "d", "learner_done": True}

    assert merge_info([first, other]) == first


def test_merge_joins_lists_and_collects_builtins() -> None:
    first = {"a": [1, 2], "b": 1, "c": "x", "d": None, "e": True, "f": 0.5}
    other = {"a": (3,), "b": None, "c": "y", "d": None, "e": False, "f": 2}

    assert merge_info([first, other]) == {
        "a": [1, 2, 3],
        "b": [1, None],
        "c": ["x", "y"],
        "d": [None, None],
        "e": [True, False],
        "f": [0.5, 2],
    }


def test_merge_goes_into_nested_infos() -> None:
    infos = [
        {"priority_info": {"priority": [0.1], "deep": {"n": 1}}},
        {"priority_info": {"priority": [0.2], "deep": {"n": 2}}},
    ]

    assert merge_info(infos) == {"priority_info": {"priority": [0.1, 0.2], "deep": {"n": [1, 2]}}}


def test_learner_without_priorities_is_passed_over_when_infos_are_merged() -> None:
    told = {"priority_info": {"priority": [0.2]}}

    assert merge_info([{"priority_info": {}}, told]) == merge_info([told, {"priority_info": {}}]) == told
    assert merge_info([{"priority_info": {}}] * 2) == {"priority_info": {}}


def test_merge_joins_tensors_along_the_first_axis_and_stacks_scalars() -> None:
    merged = merge_info([{"a": torch.ones(1, 2), "b": torch.tensor(1)}, {"a": torch.zeros(2, 2), "b": torch.tensor(2)}])

    assert merged["a"].tolist() == [[1, 1], [0, 0], [0, 0]]
    assert merged["b"].tolist() == [1, 2]


def test_merge_of_one_info_has_the_form_of_several() -> None:
    assert merge_info([{"learner_step": 1, "loss": 0.5}]) == {"learner_step": 1, "loss": [0.5]}


def test_merge_is_a_part_of_the_aggregator_too() -> None:
    assert LearnerAggregator.merge_info([[1], [2]]) == [1, 2]


@pytest.mark.parametrize(
    ("infos", "error", "message"),
    [
        ([], ValueError, r"infos must be at least one, got \[\]"),
        ([{"a": 1}, {"b": 1}], ValueError, r"info must be mappings with the keys \['a'\], as the first, got \['b'\]"),
        ([{"a": {"x": 1}}, {"a": {"y": 1}}], ValueError, r"info\['a'\] must be mappings with the keys \['x'\]"),
        ([{"a": {1}}, {"a": {2}}], TypeError, r"info\['a'\] must be mappings, lists, tensors, or .*, got set"),
        ([{"a": 1}, {"a": [1]}], TypeError, r"info\['a'\] must be mappings, .*, got int, list"),
        (
            [{"a": torch.ones(2)}, {"a": torch.ones(2, 2)}],
            ValueError,
            r"info\['a'\] must be tensors that can be joined",
        ),
    ],
)
def test_merge_refuses_incompatible_values_and_names_their_place(infos: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        merge_info(infos)


# ------------------------------------------------------------------ in a process


def test_aggregator_demands_the_sum_of_the_batch_sizes() -> None:
    aggregator = aggregator_of(FakePolicy(2), FakePolicy(3))
    aggregator.learners["learner_0"].last_iter.update(5)

    assert aggregator.get_data_demand() == {"batch_size": 5, "cur_learner_iter": 5}


@pytest.mark.parametrize("form", [dict, list])
def test_aggregator_gives_each_learner_its_share_of_a_batch(form: type) -> None:
    policies = [FakePolicy(2), FakePolicy(3), FakePolicy(1)]
    rewards = torch.arange(6.0)
    data: Any = {"reward": rewards} if form is dict else [{"reward": float(value)} for value in rewards]
    aggregator_of(*policies).train(data)

    shares = [policy.batches[0] for policy in policies]
    if form is dict:
        assert [share["reward"].tolist() for share in shares] == [[0, 1], [2, 3, 4], [5]]
    else:
        assert shares == [data[:2], data[2:5], data[5:]]


def test_aggregator_merges_the_reports_of_its_learners_in_their_order() -> None:
    aggregator = aggregator_of(FakePolicy(1), FakePolicy(2))
    data = [{"reward": float(i), "replay_unique_id": f"id_{i}", "replay_buffer_idx": i} for i in range(3)]
    info = aggregator.train(data, envstep=30)

    ids = {"replay_unique_id": ["id_0", "id_1", "id_2"], "replay_buffer_idx": [0, 1, 2]}
    assert info == {"learner_step": 1, "priority_info": {"priority": [0.0, 1.0, 2.0], **ids}, "learner_done": False}
    assert [learner.collector_envstep for learner in aggregator.learners.values()] == [30, 30]


def test_aggregator_refuses_a_batch_of_another_size() -> None:
    policies = [FakePolicy(2), FakePolicy(3)]
    with pytest.raises(ValueError, match=r"data must be 5 transitions, \[2, 3\] for \['learner_0', .*, got 4"):
        aggregator_of(*policies).train([{"reward": 0.0}] * 4)

    assert [policy.batches for policy in policies] == [[], []]


def test_aggregator_raises_with_the_name_of_a_learner_that_fails() -> None:
    error = ZeroDivisionError("no such thing")
    aggregator = aggregator_of(FakePolicy(1), FakePolicy(1, error))
    with pytest.raises(RuntimeError, match="learner 'learner_1' failed: ZeroDivisionError: no such thing") as raised:
        aggregator.train([{"reward": 0.0}] * 2)

    assert raised.value.__cause__ is error


def test_aggregator_closes_its_learners_and_says_so() -> None:
    aggregator = aggregator_of(FakePolicy(1), FakePolicy(1))

    assert aggregator.close() == {"learner_0": True, "learner_1": True}
    assert all(learner._is_closed for learner in aggregator.learners.values())


def test_aggregator_closes_the_others_if_one_cannot_be_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    aggregator = aggregator_of(FakePolicy(1), FakePolicy(1))
    first, second = aggregator.learners.values()

    def fail() -> None:
        raise OSError("stuck")

    monkeypatch.setattr(first, "close", fail)
    with pytest.raises(RuntimeError, match="some learners could not be closed: 'learner_0': stuck"):
        aggregator.close()

    assert second._is_closed


def test_aggregator_takes_names_from_the_learners() -> None:
    learners = [learner_of(FakePolicy(1), name) for name in ("a", "b")]

    assert list(LearnerAggregator(learners=learners).learners) == ["a", "b"]


@pytest.mark.parametrize(
    ("cfg", "message"),
    [
        ({"timeout_seconds": 0.0}, "timeout_seconds must be > 0, got 0.0"),
        ({"slave": {"host": "x"}}, "'slave' does not exist here: no learner listens: pass objects of this process"),
    ],
)
def test_aggregator_refuses_a_config_that_means_nothing(cfg: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LearnerAggregator(cfg, [learner_of(FakePolicy(1))])


# ------------------------------------------------------------------ over ranks


def test_aggregator_merges_over_ranks_in_their_order_and_the_same_on_all(two_ranks: Reports) -> None:
    # rank 0 trains on rewards 0, 1, 2 with batch sizes 1 and 2; rank 1 on 100 to 104 with 2 and 3
    rewards = [0, 1, 2, 100, 101, 102, 103, 104]
    ids = ["0-0", "0-1", "0-2", "1-0", "1-1", "1-2", "1-3", "1-4"]
    for report in two_ranks:
        merged = report["merged"]
        assert merged["priority_info"]["priority"] == [10.0 * reward for reward in rewards]
        assert merged["priority_info"]["replay_unique_id"] == ids
        assert (merged["learner_step"], merged["learner_done"]) == (1, False)


def test_aggregator_raises_on_all_ranks_when_a_learner_fails_on_one(two_ranks: Reports) -> None:
    said = "learner 'weak' failed: ZeroDivisionError: no such thing"
    assert two_ranks[1]["failed"] == f"RuntimeError: {said}"
    assert two_ranks[0]["failed"] == f"RuntimeError: learners failed on other ranks: rank 1: {said}"


def test_aggregator_has_a_timeout_for_a_missing_rank(two_ranks: Reports) -> None:
    assert two_ranks[0]["alone"].startswith("RuntimeError")
    assert 0.9 < two_ranks[0]["alone_seconds"] < 20  # timeout_seconds is 1


@pytest.mark.parametrize(
    "data",
    [
        {"a": 1, "b": [None, True, 0.5, "text"], "c": {}},
        {1: {"x": [[], {}]}, "nan": float("inf")},
        [["tensor", "0"], {"dict": []}],
        "text",
    ],
)
def test_builtins_come_back_from_bytes_as_they_were(data: Any) -> None:
    assert decode(encode(data)) == data


@pytest.mark.parametrize(
    "tensor",
    [torch.arange(6).reshape(2, 3).T, torch.tensor(0.1, dtype=torch.float64), torch.zeros(0, 3), torch.tensor([True])],
)
def test_tensors_come_back_from_bytes_as_they_were(tensor: torch.Tensor) -> None:
    found = decode(encode({"a": [tensor, tensor], "b": 1}))

    assert found["b"] == 1
    for other in found["a"]:
        assert other.dtype == tensor.dtype
        assert torch.equal(other, tensor)


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match=r"learners must be of different instance_name, got \['learner', 'learner'\]"):
        LearnerAggregator(learners=[learner_of(FakePolicy(1)) for _ in range(2)])
    with pytest.raises(ValueError, match="learners must be at least one learner"):
        LearnerAggregator()
    with pytest.raises(TypeError, match=r"data\['a'\]\[1\] must be a tensor or a builtin to go to other ranks, got"):
        encode({"a": [1, Path("x")]})


def test_bytes_are_no_pickle() -> None:
    assert b"torch" not in encode({"a": torch.ones(2), "b": "text"})


# ------------------------------------------------------------------ DI-engine's contract


def test_start_calls_the_hooks_before_the_run_once_and_close_those_after_it() -> None:
    called: list[str] = []

    class Note(LearnerHook):
        def __call__(self, engine: Any) -> None:
            called.append(f"{engine.instance_name} {self.position}")

    learners = [learner_of(FakePolicy(2), name) for name in ("a", "b")]
    for learner in learners:
        learner.register_hook(Note("note", position="before_run"))
        learner.register_hook(Note("note", position="after_run"))
    aggregator = LearnerAggregator({}, learners)
    aggregator.start()
    aggregator.start()
    assert aggregator.is_started
    assert called == ["a before_run", "b before_run"]
    aggregator.close()
    assert called[2:] == ["a after_run", "b after_run"]
    aggregator.close()
    assert len(called) == 4


def test_start_names_the_learner_that_fails() -> None:
    class Fail(LearnerHook):
        def __call__(self, engine: Any) -> None:
            raise ValueError("no file")

    learners = [learner_of(FakePolicy(2), name) for name in ("a", "b")]
    learners[1].register_hook(Fail("fail", position="before_run"))
    aggregator = LearnerAggregator({}, learners)
    with pytest.raises(RuntimeError, match="learner 'b' failed: ValueError: no file"):
        aggregator.start()
    assert not aggregator.is_started


def test_tasks_of_the_reference_are_split_over_the_learners_and_merged() -> None:
    policies = [FakePolicy(2), FakePolicy(1), FakePolicy(3)]
    aggregator = aggregator_of(*policies)
    assert aggregator.deal_with_get_resource() == {"gpu": 3}
    task = {"name": "learner_start_task", "task_info": {"task_id": "t", "buffer_id": "b", "learner_cfg": {}}}
    assert aggregator.deal_with_learner_start(task) == {"message": "learner task has started"}
    demand = aggregator.deal_with_get_data({"name": "learner_get_data_task"})
    assert demand == {"task_id": "t", "buffer_id": "b", "batch_size": 6, "cur_learner_iter": 0}
    data = [{"reward": float(number), "replay_unique_id": f"id{number}"} for number in range(6)]
    answer = aggregator.deal_with_learn({"name": "learner_learn_task", "data": data})
    assert [len(policy.batches[0]) for policy in policies] == [2, 1, 3]
    assert (answer["task_id"], answer["buffer_id"]) == ("t", "b")
    assert answer["info"]["learner_step"] == 1
    assert answer["info"]["priority_info"]["priority"] == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    assert answer["info"]["priority_info"]["replay_unique_id"] == [f"id{number}" for number in range(6)]


@pytest.mark.parametrize("key", ["slave", "master", "learner"])
def test_addresses_of_learners_are_refused_with_the_replacement(key: str) -> None:
    with pytest.raises(ValueError, match=r"no learner listens: pass objects .* or use system.learner.multi_gpu"):
        LearnerAggregator({key: {"host": "127.0.0.1", "port": 22270}})
