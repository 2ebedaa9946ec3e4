"""The coordinator answers or refuses arbitrary messages, and continues."""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from lightning_ding.distributed.coordinator import endpoints
from lightning_ding.distributed.file_store import FileStore
from lightning_ding.distributed.messages import version
from lightning_ding.distributed.transport import Refusal
from tests.distributed.coordinator.coordinating import Run, Worker, announced, both, config, transitions

HANDLES = [{"kind": kind, "name": name} for kind in ("data", "policy", "priority") for name in ("../../x", "0" * 32, 7)]
PLAIN = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 5),
    st.sampled_from([2**31, 2**53, -(2**63), 2**64, 10**400]),
    st.floats(),
    st.text(max_size=5),
    st.sampled_from(["learner", "collector", "x" * 20_000, "\ud800"]),
    st.sampled_from(HANDLES),
)
NAMES = st.text(max_size=5)
JUNK = st.recursive(PLAIN, lambda below: st.lists(below, max_size=3) | st.dictionaries(NAMES, below), max_leaves=5)


def good_messages(run: Run, learner: Worker, collector: Worker) -> dict[str, dict[str, Any]]:
    """Return one that is taken of each name but ``shutdown``, which has no fields."""
    mine, its = (
        {"worker_id": one.name, "task_id": one.task["task_id"], "run_id": one.task["run_id"]}
        for one in (learner, collector)
    )
    metadata = {"env_step": 4, "returns": [1.0], "lengths": [4], "dropped_episodes": [1], "wait_time": 0.1}
    info = {"learner_step": 2, "learner_done": False, "loss": 0.5, "results": {"return": 1.0}}
    asked = {"batch_size": 2, "num_batches": 1, "cur_learner_iter": 0, "rank": 0}
    policy_id, put = learner.info()["policy_id"], run.store.put
    priorities = put("priority", {"priority": transitions()["reward"]})
    hello = {"role": "learner", "version": version(), "resource": {"cpu": 1}}
    return {
        "connect": {"worker_id": "w", **hello},
        "heartbeat": its,
        "task": {"worker_id": collector.name},
        "collector_data_task": {**its, "seq": 0, "data_id": put("data", transitions()), "metadata": metadata},
        "collector_close_task": {**its, "info": {"eval_flag": False, "collector_done": True}},
        "get_policy": {**its, "policy_id": policy_id, "serial": -1},
        "learner_get_data_task": {**mine, **asked, "number": 3, "options": {"n_step": 1, "discount_factor": 0.9}},
        "learner_learn_task": {**mine, "info": {**info, "priority_info": priorities}},
        "learner_send_columns": {**mine, **announced()},
        "learner_send_policy": {**mine, "policy_id": policy_id, "version": 1, "data_id": put("policy", transitions())},
        "learner_close_task": {**mine, "info": info},
        "fail": {**its, "error": "an error"},
        "disconnect": {"worker_id": collector.name},
        "status": {},
        "increase_collector": {"n": 1},
        "decrease_collector": {"n": 1},
        "set_collectors": {"n": 2},
    }


def spoilt(data: Any, message: dict[str, Any]) -> Any:
    """Return a message of which a field, perhaps within another, is junk or missing."""
    message = copy.deepcopy(message)
    where: Any = message
    name = data.draw(st.sampled_from([*where, "more"]))
    while isinstance(where.get(name), dict) and where[name] and data.draw(st.booleans()):
        where = where[name]
        name = data.draw(st.sampled_from([*where, "more"]))
    is_columns = "obs" in where  # the run would go on without one, but not with these transitions
    if is_columns or data.draw(st.integers(0, 4)):
        where[name] = data.draw(JUNK)
    else:
        where.pop(name, None)
    return message


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_malformed_messages_are_refused_or_answered_and_the_run_continues(data: Any, tmp_path_factory: Any) -> None:
    folder = tmp_path_factory.mktemp("run")
    run = Run(config(folder), FileStore(folder / "data"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(endpoints, "TASK_WAIT", 0.0)
        learner, collector = both(run)
        messages = good_messages(run, learner, collector)
        for _ in range(data.draw(st.integers(1, 5))):
            name = data.draw(st.sampled_from(sorted(messages)))
            with contextlib.suppress(Refusal):
                run.coordinator.handle(name, spoilt(data, messages[name]))
        run.coordinator.status()
        other = Worker(run, "collector")
        if run.coordinator.system_shutdown_flag:
            assert other.take()["shutdown"]
            return
        with contextlib.suppress(Refusal):  # there are as many as there may be
            run.coordinator.handle("increase_collector", {"n": 5})
        other.take()
        assert other.send(transitions(first=4))["accepted"]
        run.restart()
        assert other.send(transitions(first=8))["accepted"]
