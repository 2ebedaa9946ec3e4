from __future__ import annotations

from typing import Any

import pytest
import torch
from gymnasium.vector import SyncVectorEnv

from lightning_ding.distributed import (
    MarineParallelCollector,
    ZerglingParallelCollector,
    create_parallel_collector,
    get_parallel_collector_cls,
    published_weights as weights_module,
)
from lightning_ding.distributed.transport import LeaseLostError
from tests.distributed.weight_policy import ENV, POLICY, WeightEnv, WeightPolicy


class Around:
    """What is around a collector: weights whose version rises with each message, and a list of messages."""

    def __init__(self, num_messages: int = 4, **answer: Any) -> None:
        self.num_messages = num_messages
        self.answer = answer
        self.version = 1
        self.looks = 0
        self.ticks = 0
        self.data: list[dict[str, Any]] = []
        self.said: list[dict[str, Any]] = []

    def get_policy_update_info(self, path: str, serial: int) -> dict[str, Any] | None:
        assert path == "mine"
        self.looks += 1
        if serial >= self.version:
            return None
        value = torch.full((1,), float(self.version))
        return {"model": {"first": value, "second": value.clone()}, "iter": self.version, "serial": self.version}

    def send_stepdata(self, data: Any) -> int:
        self.data.append(data)
        return len(self.data) - 1

    def send_metadata(self, metadata: dict[str, Any]) -> dict[str, Any]:
        self.said.append(metadata)
        self.version += metadata["data_id"] is not None
        answer = {"close": len(self.data) >= self.num_messages, "policy": {"mine": self.version}, "random": False}
        return {**answer, "collect_setting": {}, **self.answer}

    def tick(self) -> None:
        self.ticks += 1


def make(around: Around, **changes: Any) -> ZerglingParallelCollector:
    env = {"env_id": ENV, "collector_env_num": 2, "evaluator_env_num": 2, "env_kwargs": {"length": 4}}
    env |= changes.pop("env", {})
    cfg = {"policy": POLICY, "env": env, "n_sample": 6, "policy_update_path": ["mine"], **changes}
    names = ("get_policy_update_info", "send_stepdata", "send_metadata", "tick")
    return ZerglingParallelCollector(cfg, **{name: getattr(around, name) for name in names})


def test_rows_of_a_message_were_all_acted_with_whole_weights_of_the_version_that_they_carry() -> None:
    around = Around()
    make(around, n_sample=5).start()
    assert [len(data["action"]) for data in around.data] == [6, 6, 6, 6]  # whole vector steps, none left behind
    for number, data in enumerate(around.data):
        version = number + 1
        assert data["policy_version"].tolist() == [version] * 6
        assert data["action"].flatten().tolist() == [version] * 6
        assert data["second"].flatten().tolist() == [version] * 6
    assert [said["policy_iter"] for said in around.said] == [1, 1, 2, 3, 4]


def test_episodes_continue_from_one_message_to_the_next() -> None:
    around = Around()
    make(around).start()
    rows = {name: torch.cat([data[name] for data in around.data]) for name in ("obs", "env_id", "episode_id")}
    of_first = rows["env_id"] == 0
    assert rows["obs"][of_first, 1].tolist() == [0, 1, 2, 3] * 3  # messages end after steps 3, 6, 9 and 12
    assert rows["episode_id"][of_first].tolist() == [0] * 4 + [2] * 4 + [4] * 4


def test_messages_hold_the_infos_of_their_episodes() -> None:
    around = Around(random=True)
    env = {"env_id": "tests.toys.info_env.InfoEnv", "env_kwargs": {"lengths": [3, 2]}, "collector_env_num": 1}
    make(around, n_sample=8, env={**env, "info_keys": {"wave": "sum", "laps": "last"}}).start()
    episodes = [one for said in around.said for one in said.get("infos", [])]
    assert episodes[:3] == [
        {"success_rate": 0.0, "wave": 6.0, "laps": 0.0},
        {"success_rate": 1.0, "wave": 4.0},  # laps only in every second episode
        {"success_rate": 0.0, "wave": 6.0, "laps": 2.0},
    ]
    assert all(len(said["infos"]) == len(said["returns"]) for said in around.said if said["returns"])


def test_counts_of_messages_add_up_to_the_collected_amount() -> None:
    around = Around()
    collector = make(around)
    collector.start()
    assert [said["env_step"] for said in around.said] == [0, 6, 6, 6, 6]
    assert [said["cur_sample"] for said in around.said] == [0, 6, 12, 18, 24]
    assert [said["cur_step"] for said in around.said] == [0, 6, 12, 18, 24]
    assert [said["cur_episode"] for said in around.said] == [0, 0, 2, 4, 6]
    assert [said["lengths"] for said in around.said] == [[], [], [4, 4], [4, 4], [4, 4]]
    # versions 1, 1, 1, 2 gave the first episodes; then 2, 2, 3, 3; then 3, 4, 4, 4
    assert [said["returns"] for said in around.said] == [[], [], [5.0] * 2, [10.0] * 2, [15.0] * 2]
    info = collector.get_finish_info()
    assert (info["step_count"], info["sample_count"], info["real_episode_count"]) == (24, 24, 6)
    assert info["reward_mean"] == 10.0
    assert info["reward_std"] == pytest.approx((50 / 3) ** 0.5)
    assert info["reward_raw"] == [5.0, 5.0, 10.0, 10.0, 15.0, 15.0]
    assert (info["train_iter"], info["collector_done"], info["env_num"]) == (4, True, 2)
    assert (info["avg_step_per_episode"], info["avg_sample_per_episode"]) == (4.0, 4.0)


def test_the_answer_says_with_which_arguments_and_whether_at_random() -> None:
    WeightPolicy.forwards.clear()
    make(Around(1, collect_setting={"told": 3}), collect_setting={"told": 2, "more": 1}).start()
    assert WeightPolicy.forwards == [{"told": 3, "more": 1}] * 3
    around = Around(1, random=True)
    make(around).start()
    assert len(WeightPolicy.forwards) == 3  # the policy was not called
    assert len(set(around.data[0]["action"].flatten().tolist())) == 6


def test_newer_weights_are_not_looked_for_before_their_time() -> None:
    hasty, patient = Around(), Around()
    make(hasty).start()
    make(patient, update_policy_second=1000.0).start()
    assert (hasty.looks, patient.looks) == (4, 1)
    assert patient.data[-1]["policy_version"].tolist() == [1] * 6


def test_weights_are_not_looked_for_when_there_are_no_newer_ones() -> None:
    around = Around(policy={"mine": 1})
    make(around).start()
    assert around.looks == 1


def test_seeds_make_envs_differ_from_task_to_task_and_within_one() -> None:
    numbers = []
    for seed in (0, 0, 1):
        around = Around(1)
        make(around, seed=seed).start()
        numbers.append(around.data[0]["obs"][:2, 0].tolist())
    assert numbers[0] == numbers[1]
    assert len({*numbers[0], *numbers[2]}) == 4


def test_an_evaluation_uses_exactly_the_weights_that_it_names() -> None:
    around = Around()
    around.version = 5
    collector = make(around, eval_flag=True, n_episode=3)
    collector.start()
    info = collector.get_finish_info()
    assert info["train_iter"] == 5
    assert info["reward_raw"] == [20.0] * 3
    assert (info["reward_mean"], info["real_episode_count"], info["eval_flag"]) == (20.0, 3, True)
    assert info["collector_done"]
    assert around.said == []


def test_a_collecting_task_may_end_after_some_episodes() -> None:
    around = Around(100)
    collector = make(around, n_episode=4)
    collector.start()
    assert collector.get_finish_info()["real_episode_count"] == 4


@pytest.mark.parametrize("evaluates", [False, True])
def test_a_task_ends_in_the_middle_of_something_when_it_is_closed_or_the_lease_is_lost(evaluates: bool) -> None:
    around = Around(100)
    collector = make(around, n_sample=1000, eval_flag=evaluates, n_episode=1000 if evaluates else None)

    def close_at_third_step() -> None:
        Around.tick(around)
        if around.ticks == 3:
            collector.close()

    collector.tick = close_at_third_step
    collector.start()
    assert around.ticks == 3
    assert around.data == []
    assert collector.get_finish_info()["collector_done"] is not evaluates

    def lose() -> None:
        raise LeaseLostError("gone")

    around.tick = lose  # type: ignore[method-assign]
    with pytest.raises(LeaseLostError):
        make(around, eval_flag=evaluates, n_episode=1).start()


def test_a_fault_of_an_env_fails_the_task_or_drops_the_episode() -> None:
    env = {"env_kwargs": {"fault_at": 6}, "collector_env_num": 1}
    with pytest.raises(ArithmeticError):
        make(Around(), env=env).start()
    around = Around()
    make(around, env=env, env_fault="drop").start()
    assert [said["dropped_episodes"] for said in around.said] == [[], [1], [], [], []]
    assert sum(said["env_step"] for said in around.said) == sum(len(data["action"]) for data in around.data) == 24


def test_evaluating_task_repeats_the_episode_of_a_fault_if_faults_are_dropped() -> None:
    env = {"env_kwargs": {"fault_at": 6}, "evaluator_env_num": 1}
    with pytest.raises(ArithmeticError):
        make(Around(), env=env, eval_flag=True, n_episode=2).start()
    collector = make(Around(), env=env, eval_flag=True, n_episode=2, env_fault="drop")
    collector.start()
    assert collector.get_finish_info()["real_episode_count"] == 2


def test_waiting_for_weights_has_a_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    around = Around(1)
    around.version = -1
    monkeypatch.setattr(weights_module, "PAUSE", 0.001)

    def publish_later() -> None:
        Around.tick(around)
        if around.ticks == 3:
            around.version = 1

    around.tick = publish_later  # type: ignore[method-assign]
    make(around).start()
    assert len(around.data) == 1
    around = Around(1)
    around.version = -1
    monkeypatch.setattr(weights_module.PolicyWeights.wait_for_first, "__defaults__", (0.05,))
    with pytest.raises(TimeoutError, match="no weights of 'mine'"):
        make(around).start()


def test_envs_are_closed_whatever_ends_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[Any] = []
    monkeypatch.setattr(SyncVectorEnv, "close_extras", lambda self, **_: closed.append(self))
    make(Around(1)).start()
    with pytest.raises(KeyError):
        make(Broken()).start()
    assert len(closed) == 2


class Broken(Around):
    def send_metadata(self, metadata: dict[str, Any]) -> dict[str, Any]:
        return {}


def test_messages_are_logged_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="lightning_ding.distributed")
    make(Around(4), print_freq=2).start()
    found: list[Any] = [record.args for record in caplog.records if "messages" in record.msg]
    assert [arguments[0] for arguments in found] == [2, 4]
    assert [arguments[2]["collect/envs"] for arguments in found] == [found[0][2]["collect/envs"]] * 2


@pytest.mark.parametrize(
    "wrong",
    [
        {"n_sample": 0},
        {"n_episode": 0},
        {"eval_flag": True},
        {"policy_update_path": ["mine", "other"]},
        {"policy_update_flag": [False]},
        {"print_freq": 0},
        {"unknown": 1},
        {"seed": -1},
    ],
)
def test_a_task_that_cannot_be_done_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"n_sample|n_episode|policy_update_|print_freq|unknown|seed"):
        make(Around(), **wrong)


def test_parallel_collectors_are_found_by_name() -> None:
    assert get_parallel_collector_cls({"type": "marine"}) is MarineParallelCollector
    around = Around()
    names = ("get_policy_update_info", "send_stepdata", "send_metadata", "tick")
    made = create_parallel_collector({"type": "zergling"}, **{name: getattr(around, name) for name in names})
    assert isinstance(made, ZerglingParallelCollector)
    with pytest.raises(KeyError, match="marine"):
        get_parallel_collector_cls({"type": "marin"})


def test_envs_are_named_and_wrapped_as_in_a_datamodule() -> None:
    around = Around(num_messages=1)
    limit = {"class_path": "gymnasium.wrappers.TimeLimit", "init_args": {"max_episode_steps": 2}}
    home = WeightEnv.__module__
    make(around, env={"env_id": f"{home}.WeightEnv", "wrappers": [limit], "import_names": [home]}).start()
    assert around.data[0]["truncated"].flatten().tolist() == [False, False, True, True, False, False]


def test_collecting_and_evaluating_have_separate_wrappers_and_arguments() -> None:
    def limit(steps: int) -> dict[str, Any]:
        return {"class_path": "gymnasium.wrappers.TimeLimit", "init_args": {"max_episode_steps": steps}}

    def steps_of_an_evaluation(**changes: Any) -> int:
        evaluation = make(Around(), eval_flag=True, n_episode=2, **changes)
        evaluation.start()
        return int(evaluation._statistics.step)

    own = {"train_wrappers": [limit(2)], "eval_wrappers": [limit(3)]}
    around = Around(num_messages=1)
    make(around, env=own).start()
    assert around.data[0]["truncated"].flatten().tolist() == [False, False, True, True, False, False]
    assert steps_of_an_evaluation() == 2 * 4  # the length of its episodes
    assert steps_of_an_evaluation(env=own) == 2 * 3
    assert steps_of_an_evaluation(env={"eval_env_kwargs": {"length": 7}}) == 2 * 7
    other = {"class_path": f"{WeightEnv.__module__}.WeightEnv", "init_args": {"length": 5}}
    assert steps_of_an_evaluation(env={"eval_env_id": other, "eval_env_kwargs": {}}) == 2 * 5
    short = {**POLICY, "eval": {"evaluator": {"max_episode_steps": 1}}}
    assert steps_of_an_evaluation(policy=short) == 2 * 1
