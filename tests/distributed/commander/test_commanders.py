from __future__ import annotations

import json
from typing import Any

import pytest

from lightning_ding.config import resolve
from lightning_ding.distributed import (
    BaseParallelCommander,
    NaiveParallelCommander,
    OneVsOneParallelCommander,
    SoloParallelCommander,
    create_parallel_commander,
    get_parallel_commander_cls,
)
from lightning_ding.distributed.commander import solo as solo_module
from lightning_ding.distributed.config import CollectorTaskConfig

EPISODES = {"n_sample": None, "n_episode": 3, "collector": {"type": "episode"}}
POLICY = {"type": "dqn", "collect": {"n_sample": 12}, "other": {"eps": {"start": 1.0, "end": 0.0, "decay": 100}}}


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(solo_module, "time", clock)
    return clock


def config(main: Any = None, env: Any = None, collector: Any = None, **commander: Any) -> dict[str, Any]:
    one_vs_one = commander.get("type") == "one_vs_one"
    collector = {"type": "marine" if one_vs_one else "zergling", **(collector or {})}
    system = {"collector": collector, "coordinator": {"commander": commander}}
    return {"main": {"policy": POLICY, "env": env or {}, **(main or {})}, "system": system}


def make(cfg: dict[str, Any] | None = None, **commander: Any) -> Any:
    return create_parallel_commander(cfg or config(**commander))


def evaluated(mean: float, version: int = 5, **more: Any) -> dict[str, Any]:
    info = {"eval_flag": True, "collector_done": True, "train_iter": version, "reward_mean": mean, "reward_std": 0.0}
    return {**info, "real_episode_count": 20, **more}


def at_evaluation(commander: Any, clock: Clock) -> dict[str, Any]:
    """Return the next evaluation's task."""
    clock.now += 1000.0
    commander.wants_snapshot(next(iter(commander.needed_policies([]))), 5)
    task = commander.get_collector_task()
    assert task["collector_cfg"]["eval_flag"]
    return task  # type: ignore[no-any-return]


# ------------------------------------------------------------------ by name


@pytest.mark.parametrize(
    ("name", "expected"),
    [("naive", NaiveParallelCommander), ("solo", SoloParallelCommander), ("one_vs_one", OneVsOneParallelCommander)],
)
def test_commanders_are_found_by_name(name: str, expected: type[BaseParallelCommander]) -> None:
    assert get_parallel_commander_cls({"type": name}) is expected
    assert type(make(type=name)) is expected
    with pytest.raises(KeyError, match="solo"):
        get_parallel_commander_cls({"type": "sole"})


# ------------------------------------------------------------------ naive


def test_a_naive_commander_continues_from_the_checkpoint_once_something_was_learned() -> None:
    commander = make(type="naive", learner_task_space=2)
    assert not commander.get_learner_task()["resume"]
    commander.update_learner_info("any", {"learner_step": 2})
    assert commander.get_learner_task()["resume"]


def test_a_naive_commander_counts_tasks_of_constant_names() -> None:
    commander = make(type="naive", collector_task_space=2, learner_task_space=2)
    tasks = [commander.get_collector_task() for _ in range(3)]
    assert tasks[2] is None
    assert [task["task_id"] for task in tasks[:2]] == ["collector_task_1", "collector_task_2"]
    assert tasks[0]["collector_cfg"]["policy_update_path"] == ["policy_test"]
    assert tasks[0]["collector_cfg"]["collect_setting"] == {"eps": 0.9}
    learners = [commander.get_learner_task() for _ in range(3)]
    assert learners[2] is None
    assert (learners[0]["policy_id"], learners[0]["buffer_id"]) == ("policy_test", "buffer_test")
    assert commander.finish_learner_task("learner_task_3", {"learner_done": True})
    assert commander.get_learner_task() is not None


# ------------------------------------------------------------------ solo


def test_collectors_wait_until_there_is_a_learner_which_names_policy_and_buffer() -> None:
    commander = make(config(main={"seed": 3, "max_env_step": 9}))
    assert commander.get_collector_task() is None
    assert commander.needed_policies([]) == set()
    learner = commander.get_learner_task()
    assert commander.get_learner_task() is None
    task = commander.get_collector_task()
    assert task["collector_cfg"]["policy_update_path"] == [learner["policy_id"]]
    assert commander.needed_policies(commander.tasks("collector")) == {learner["policy_id"]}
    assert task["buffer_id"] == learner["buffer_id"]
    assert learner["policy_id"].startswith("policy_")
    assert learner["buffer_id"].startswith("buffer_")
    assert (learner["resume"], learner["main"]["max_env_step"], learner["policy"]) == (False, 9, POLICY)
    assert learner["replay_buffer_cfg"]["replay_buffer_size"] == 1_000_000
    assert learner["learner_cfg"]["send_policy_freq"] == 1


def test_task_has_the_options_of_the_config_and_a_different_seed() -> None:
    section = {"update_policy_second": 2.5, "print_freq": 7, "env_fault": "drop", "import_names": ["json"]}
    env = {"env_id": "CartPole-v1", "collector_env_num": 3, "n_evaluator_episode": 4}
    commander = make(config({"seed": 3, "exp_name": "runs/x"}, env, section, collector_task_space=3))
    commander.get_learner_task()
    tasks = [commander.get_collector_task()["collector_cfg"] for _ in range(3)]
    assert len({task["seed"] for task in tasks}) == 3
    told = resolve(CollectorTaskConfig, json.loads(json.dumps(tasks[0])))
    assert (told.n_sample, told.update_policy_second, told.print_freq) == (12, 2.5, 7)
    assert (told.env_fault, told.import_names, told.exp_name) == ("drop", ("json",), "runs/x")
    assert (told.env.collector_env_num, told.n_episode, told.eval_flag) == (3, None, False)
    assert told.collect_setting == {"eps": 1.0}
    other = make(config({"seed": 4}))
    other.get_learner_task()
    assert other.get_collector_task()["collector_cfg"]["seed"] != tasks[0]["seed"]
    more = make(config(collector={"n_sample": 30}))
    more.get_learner_task()
    assert more.get_collector_task()["collector_cfg"]["n_sample"] == 30


def test_there_is_room_for_as_many_tasks_as_configured_and_it_grows_and_shrinks() -> None:
    commander = make(collector_task_space=1)
    commander.get_learner_task()
    first = commander.get_collector_task()["task_id"]
    assert commander.get_collector_task() is None
    assert commander.increase_collector_task_space() == 2
    second = commander.get_collector_task()["task_id"]
    assert commander.decrease_collector_task_space(5) == 0
    assert commander.increase_collector_task_space(1) == 1
    assert not commander.finish_collector_task(first, {"collector_done": True})
    assert not commander.finish_collector_task(first, {"collector_done": True})  # is not counted twice
    assert commander.get_collector_task() is None
    commander.notify_fail_collector_task(second)
    assert commander.get_collector_task() is not None
    with pytest.raises(ValueError, match="n must be >= 1"):
        commander.increase_collector_task_space(0)
    with pytest.raises(ValueError, match="n must be >= 1"):
        commander.decrease_collector_task_space(-1)


def test_the_settings_for_collecting_follow_the_policy_and_how_far_the_run_is() -> None:
    commander = make()
    assert commander.collect_setting(0) == {"eps": 1.0}
    assert commander.collect_setting(1000)["eps"] < 0.01
    for name in ("sac", "ppo"):
        assert make(config(main={"policy": {"type": name}})).collect_setting(0) == {}
    weighing = make(config(main={"policy": {"type": "weight", "import_names": ["tests.distributed.weight_policy"]}}))
    weighing.update_learner_info("any", {"learner_step": 7})
    assert weighing.collect_setting(5) == {"told": 12}


def test_evaluations_come_when_it_is_time_and_there_is_something_learned(clock: Clock) -> None:
    commander = make(eval_interval=60.0, collector_task_space=0)
    policy_id = commander.get_learner_task()["policy_id"]
    clock.now += 100.0
    commander.wants_snapshot(policy_id, 0)
    assert commander.get_collector_task() is None
    commander.wants_snapshot("another", 1)
    assert commander.get_collector_task() is None
    assert commander.wants_snapshot(policy_id, 1) is None
    task = commander.get_collector_task()
    assert (task["collector_cfg"]["eval_flag"], task["collector_cfg"]["n_episode"]) == (True, 20)
    clock.now += 100.0
    assert commander.get_collector_task() is None  # it is under way
    assert not commander.finish_collector_task(task["task_id"], evaluated(1.0))
    assert commander.get_collector_task() is not None
    clock.now += 59.0
    assert commander.get_collector_task() is None


def test_there_are_no_evaluations_without_an_interval(clock: Clock) -> None:
    commander = make(eval_interval=None, collector_task_space=0)
    commander.wants_snapshot(commander.get_learner_task()["policy_id"], 1)
    clock.now += 10**6
    assert commander.get_collector_task() is None


@pytest.mark.parametrize("is_closed", [False, True])
@pytest.mark.parametrize(("interval", "pause"), [(60.0, 10.0), (4.0, 4.0)])
def test_an_evaluation_that_failed_is_made_up_for_after_a_pause(
    clock: Clock, interval: float, pause: float, is_closed: bool
) -> None:
    commander = make(eval_interval=interval, collector_task_space=0)
    commander.get_learner_task()
    task = at_evaluation(commander, clock)
    if is_closed:
        commander.finish_collector_task(task["task_id"], evaluated(1.0) | {"collector_done": False})
    else:
        commander.notify_fail_collector_task(task["task_id"])
    clock.now += 0.99 * pause
    assert commander.get_collector_task() is None
    clock.now += 0.02 * pause
    assert commander.get_collector_task()["collector_cfg"]["eval_flag"]


def test_a_run_is_over_when_an_evaluation_of_what_was_learned_reaches_the_stop_value(clock: Clock) -> None:
    for mean, version, is_over in ((9.9, 5, False), (10.0, 5, True), (10.0, 0, False)):
        commander = make(config(env={"stop_value": 10.0}))
        commander.get_learner_task()
        task = at_evaluation(commander, clock)
        assert commander.finish_collector_task(task["task_id"], evaluated(mean, version)) is is_over
        assert not commander.finish_collector_task(task["task_id"], evaluated(mean, version))  # it is over already
    commander = make()
    commander.get_learner_task()
    task = at_evaluation(commander, clock)
    assert not commander.finish_collector_task(task["task_id"], evaluated(1e9))


def test_finished_learner_ends_the_run_and_a_lost_or_failed_one_is_replaced_by_one_that_resumes() -> None:
    commander = make()
    first = commander.get_learner_task()
    commander.notify_fail_learner_task(first["task_id"])
    second = commander.get_learner_task()
    assert not commander.finish_learner_task(second["task_id"], {"learner_step": 4, "learner_done": False})
    third = commander.get_learner_task()
    assert [task["resume"] for task in (first, second, third)] == [False, True, True]
    assert len({task["policy_id"] for task in (first, second, third)}) == 1
    assert len({task["buffer_id"] for task in (first, second, third)}) == 1
    assert len({task["task_id"] for task in (first, second, third)}) == 3
    assert commander.finish_learner_task(third["task_id"], {"learner_step": 9, "learner_done": True})


def test_finish_infos_say_themselves_whether_a_task_is_over() -> None:
    commander = make()
    assert commander.judge_collector_finish("a", {"collector_done": True})
    assert not commander.judge_collector_finish("a", {})
    assert commander.judge_learner_finish("a", {"learner_done": True})
    assert not commander.judge_learner_finish("a", {"learner_step": 3})


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        (config(learner_task_space=2), "learner_task_space"),
        (config(collector={"type": "marine"}), "collector.type"),
        (config(league={"max_players": 3}), "league"),
        (config(collector={"type": "zergling"}, type="one_vs_one"), "collector.type"),
        (config(main={"policy": {"type": "dqn", "collect": EPISODES}}), "n_sample"),
    ],
)
def test_what_has_no_use_with_a_commander_is_refused(wrong: dict[str, Any], name: str) -> None:
    with pytest.raises(ValueError, match=name):
        make(wrong)


# ------------------------------------------------------------------ one against one


def test_the_first_tasks_of_a_league_are_against_itself_and_a_random_player() -> None:
    league = {"self_play": 0.5, "random_play": 0.5, "task_episodes": 9}
    commander = make(type="one_vs_one", collector_task_space=50, league=league)
    assert commander.get_collector_task() is None
    own = commander.get_learner_task()["policy_id"]
    tasks = [commander.get_collector_task() for _ in range(50)]
    against = {(tuple(t["collector_cfg"]["policy_update_path"]), tuple(t["collector_cfg"]["policy_update_flag"]))
               for t in tasks}  # fmt: skip
    assert against == {((own, own), (True, True)), ((own, "random"), (True, False))}
    assert {task["opponent"] for task in tasks} == {own, "random"}
    assert {task["collector_cfg"]["n_episode"] for task in tasks} == {9}
    assert {task["collector_cfg"]["type"] for task in tasks} == {"marine"}


def test_former_selves_are_kept_as_long_as_somebody_may_ask_for_them() -> None:
    league = {"self_play": 0.0, "random_play": 0.0, "snapshot_interval": 10, "max_players": 1}
    commander = make(type="one_vs_one", league=league)
    own = commander.get_learner_task()["policy_id"]
    assert commander.wants_snapshot(own, 9) is None
    assert commander.wants_snapshot("another", 50) is None
    former = commander.wants_snapshot(own, 10)
    assert former == f"{own}_at_10"
    task = commander.get_collector_task()
    assert task["opponent"] == former
    assert task["collector_cfg"]["policy_update_flag"] == [True, False]
    later = commander.wants_snapshot(own, 20)
    assert commander.needed_policies(commander.tasks("collector")) == {
        own,
        former,
        later,
    }  # the first one's is under way
    commander.finish_collector_task(task["task_id"], {"result": {"wins": 1, "draws": 0, "losses": 1}})
    assert commander.needed_policies(commander.tasks("collector")) == {own, later}
    task = commander.get_collector_task()
    commander.finish_collector_task(task["task_id"], {"result": {"wins": 3, "draws": 0, "losses": 1}})
    assert commander.league.win_rate(later) == 0.75


def test_evaluations_are_against_a_random_player_and_the_hardest_former_self_in_turn(clock: Clock) -> None:
    commander = make(type="one_vs_one", league={"snapshot_interval": 10})
    own = commander.get_learner_task()["policy_id"]
    met = []
    for version in (10, 20, 30, 40):
        commander.wants_snapshot(own, version)
        task = at_evaluation(commander, clock)
        met.append(task["opponent"])
        assert task["collector_cfg"]["policy_update_path"] == [own, task["opponent"]]
        assert task["collector_cfg"]["policy_update_flag"] == [True, False]
        assert task["collector_cfg"]["n_episode"] == 20
        result = {"wins": 9, "draws": 0, "losses": 1}
        commander.finish_collector_task(task["task_id"], evaluated(0.8, result=result))
    assert met == ["random", f"{own}_at_10", "random", f"{own}_at_20"]


def test_a_league_is_over_when_stop_value_is_reached_and_the_hardest_player_beaten(clock: Clock) -> None:
    def play(stop_value: float | None, mean: float, wins: int, version: int = 5) -> list[bool]:
        commander = make(config(env={"stop_value": stop_value}, type="one_vs_one", league={"snapshot_interval": 10}))
        commander.wants_snapshot(commander.get_learner_task()["policy_id"], 10)
        over = []
        for _ in range(2):
            task = at_evaluation(commander, clock)
            result = {"wins": wins, "draws": 2, "losses": 8 - wins}
            over.append(commander.finish_collector_task(task["task_id"], evaluated(mean, version, result=result)))
        return over

    assert play(0.8, 0.8, wins=7) == [False, True]
    assert play(0.8, 0.7, wins=7) == [False, False]
    assert play(0.8, 0.8, wins=6) == [False, False]
    assert play(None, 0.8, wins=7) == [False, False]
    assert play(0.8, 0.8, wins=7, version=0) == [False, False]


def test_without_former_selves_evaluations_are_against_a_random_player_and_end_nothing(clock: Clock) -> None:
    commander = make(config(env={"stop_value": 0.5}, type="one_vs_one"))
    commander.get_learner_task()
    for _ in range(3):
        task = at_evaluation(commander, clock)
        assert task["opponent"] == "random"
        result = {"wins": 10, "draws": 0, "losses": 0}
        assert not commander.finish_collector_task(task["task_id"], evaluated(1.0, result=result))


@pytest.mark.parametrize("is_beaten", [False, True])
def test_how_often_a_player_must_be_beaten_is_configured(clock: Clock, is_beaten: bool) -> None:
    share = 0.3 if is_beaten else 0.4
    league = {"snapshot_interval": 10, "win_rate": share}
    commander = make(config(env={"stop_value": 0.5}, type="one_vs_one", league=league))
    commander.wants_snapshot(commander.get_learner_task()["policy_id"], 10)
    result = {"wins": 3, "draws": 7, "losses": 0}
    first, second = (
        commander.finish_collector_task(at_evaluation(commander, clock)["task_id"], evaluated(0.9, result=result))
        for _ in range(2)
    )
    assert (first, second) == (False, is_beaten)


def test_a_league_that_continues_must_reach_and_beat_again(clock: Clock) -> None:
    cfg = config(env={"stop_value": 0.5}, type="one_vs_one", league={"snapshot_interval": 10})
    commander, again = make(cfg), make(cfg)
    commander.wants_snapshot(commander.get_learner_task()["policy_id"], 10)
    won = {"wins": 10, "draws": 0, "losses": 0}
    ends = [
        commander.finish_collector_task(at_evaluation(commander, clock)["task_id"], evaluated(0.9, result=won))
        for _ in range(2)
    ]
    assert ends == [False, True]
    again.load_state_dict(json.loads(json.dumps(commander.state_dict())))
    again.reopen()
    lost = {"wins": 0, "draws": 0, "losses": 10}
    for result in (won, lost, won):  # against the random player, against the former self
        task = at_evaluation(again, clock)
        assert not again.finish_collector_task(task["task_id"], evaluated(0.9, result=result))
    assert again.finish_collector_task(at_evaluation(again, clock)["task_id"], evaluated(0.9, result=won))


# ------------------------------------------------------------------ state


@pytest.mark.parametrize("kind", ["naive", "solo", "one_vs_one"])
def test_a_commander_resumes_from_its_state_which_is_json(kind: str, clock: Clock) -> None:
    league = {"league": {"snapshot_interval": 10}} if kind == "one_vs_one" else {}
    cfg = config(env={"stop_value": 0.5}, type=kind, collector_task_space=3, eval_interval=60.0, **league)
    commander, again = make(cfg), make(cfg)
    own = commander.get_learner_task()["policy_id"]
    ids = {commander.get_collector_task()["task_id"]}
    commander.wants_snapshot(own, 10)
    commander.update_learner_info("any", {"learner_step": 50})
    clock.now += 70.0
    under_way = commander.get_collector_task()  # an evaluation, if there are any
    clock.now += 10.0
    state = json.loads(json.dumps(commander.state_dict()))
    clock.now += 1000.0  # no worker was connected during this time
    again.load_state_dict(state)
    assert again.state_dict() == state
    assert again.needed_policies([]) == commander.needed_policies([])
    assert again.next_task("learner", [], has_room=False) is None
    result = {"wins": 10, "draws": 0, "losses": 0}
    over = again.finish("collector", json.loads(json.dumps(under_way)), evaluated(0.9, result=result))
    assert over is (kind == "solo")
    tasks = [again.get_collector_task() for _ in range(4)]
    assert [task is None for task in tasks] == [False] * 3 + [True]
    assert not {*ids, under_way["task_id"]} & {task["task_id"] for task in tasks[:3]}


def test_memory_does_not_grow_with_the_number_of_tasks(clock: Clock) -> None:
    commander = make(type="one_vs_one", league={"snapshot_interval": 10, "max_players": 4})
    own = commander.get_learner_task()["policy_id"]
    sizes = []
    for version in range(10, 5000, 10):
        commander.wants_snapshot(own, version)
        task = commander.get_collector_task()
        commander.finish_collector_task(task["task_id"], {"result": {"wins": 1, "draws": 1, "losses": 1}})
        sizes.append(len(json.dumps(commander.state_dict())))
    assert sizes[-1] < sizes[50] + 400
