"""A coordinator that is killed and started again has lost nothing that it acknowledged."""

from __future__ import annotations

import json
import os
import random
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from lightning_ding.distributed.coordinator import endpoints
from lightning_ding.distributed.coordinator.coordinator import Coordinator
from lightning_ding.distributed.coordinator.database import Database
from lightning_ding.distributed.coordinator.publications import PublishedWeights
from lightning_ding.distributed.file_store import FileStore
from lightning_ding.distributed.in_process import MemoryStore
from lightning_ding.distributed.messages import version
from lightning_ding.distributed.transport import LeaseLostError, Refusal
from tests.distributed.coordinator.coordinating import POLICY, Run, Worker, both, config, transitions
from tests.processes import start


class Process:
    """A coordinator in a separate process."""

    def __init__(self, folder: Path, snapshot_interval: float) -> None:
        self.folder = folder
        self.interval = snapshot_interval
        self.start("new")

    def start(self, how: str) -> None:
        script = ["-m", "tests.distributed.coordinator.coordinator_script"]
        self.process = start([*script, self.folder, self.interval, how], stdin=subprocess.PIPE)

    def ask(self, name: str, **message: Any) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps([name, message]) + "\n")
        self.process.stdin.flush()
        while not (line := self.process.stdout.readline()).startswith("{"):
            assert line, "the coordinator ended"
        answer: dict[str, Any] = json.loads(line)
        return answer

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()

    def begin(self, worker_id: str, role: str) -> dict[str, Any]:
        said = {"worker_id": worker_id, "version": version(), "resource": {}}
        self.ask("connect", role=role, **said)
        task = self.ask("task", worker_id=worker_id)["task"]
        return {"worker_id": worker_id, "task_id": task["task_id"], "run_id": task["run_id"]}


@pytest.mark.parametrize(("snapshot_interval", "kills"), [(1000.0, 1), pytest.param(0.05, 3, marks=pytest.mark.slow)])
def test_acknowledged_data_survive_sigkill_of_the_coordinator(
    tmp_path: Path, snapshot_interval: float, kills: int
) -> None:
    process = Process(tmp_path / "run", snapshot_interval)
    store = FileStore(tmp_path / "run/data")
    try:
        process.begin("learner", "learner")
        about = process.begin("collector", "collector")
        for seq in range(4 * kills):
            metadata = {"env_step": 4, "returns": [float(seq)], "lengths": [4], "dropped_episodes": []}
            handle = store.put("data", transitions(first=4 * seq))
            said = {**about, "seq": seq, "data_id": handle, "metadata": metadata}
            assert process.ask("collector_data_task", **said)["accepted"]
            if seq % 4 == 3:
                shown = process.ask("show")
                process.kill()
                process.start("resume")
                assert process.ask("collector_data_task", **said)["duplicate"]
                assert process.ask("show") == shown
        assert (shown["env_step"], shown["episode"], shown["sample"]) == (16 * kills, 4 * kills, 16 * kills)
    finally:
        process.kill()


class Script:
    """Messages of one learner and two collectors, drawn from a seed."""

    def __init__(self, folder: Path, seed: int, steps: int, restarts: set[int]) -> None:
        self.random = random.Random(seed)
        self.run = Run(config(folder, {"other": {"replay_buffer": {"replay_buffer_size": 50}}}, max_policy_lag=6))
        self.learner, first = both(self.run)
        second = Worker(self.run, "collector")
        second.take()
        self.collectors = [first, second]
        self.version = 0
        self.sent = 0
        self.answers: list[Any] = []
        for step in range(steps):
            if step in restarts:
                self.run.restart()
            self.step()

    def step(self) -> None:
        deeds = [self.send] * 6 + [self.send_again, self.send_bad, self.get, self.publish, self.save, self.fail]
        draw, collector = self.random.choice(deeds), self.random.choice(self.collectors)
        seed = self.random.getrandbits(32)  # as many numbers are drawn whatever happens
        try:
            draw(collector, random.Random(seed))
        except Refusal as refusal:
            self.answers.append(refusal.status)

    def send(self, collector: Worker, rng: random.Random) -> None:
        size, self.sent = rng.randint(1, 5), self.sent + 5
        said: dict[str, Any] = {"env_step": size, "returns": [float(self.sent)] * rng.randint(0, 2)}
        said |= {"lengths": [size] * len(said["returns"]), "dropped_episodes": [rng.randint(0, 3)] * rng.randint(0, 1)}
        rows = transitions(size, self.sent, max(0, self.version - rng.randint(0, 8)), rng.randint(0, 3))
        answer = collector.send(rows if rng.random() < 0.9 else None, **said)
        self.answers.append({**answer, "policy": list(answer["policy"].values())})  # their names are random

    def send_again(self, collector: Worker, rng: random.Random) -> None:
        if collector.seq:
            answer = collector.send(transitions(), seq=collector.seq - 1)
            assert answer["duplicate"]

    def send_bad(self, collector: Worker, rng: random.Random) -> None:
        name = rng.choice(["obs", "reward", "env_id", "truncated"])
        missing: dict[str, Any] = {name: None}
        collector.send(transitions(**missing), seq=collector.seq + rng.randint(0, 1))

    def get(self, collector: Worker, rng: random.Random) -> None:
        self.learner.get()

    def publish(self, collector: Worker, rng: random.Random) -> None:
        self.version += rng.randint(1, 3)
        self.answers.append(self.learner.publish(self.version))

    def save(self, collector: Worker, rng: random.Random) -> None:
        self.run.coordinator.save()

    def fail(self, collector: Worker, rng: random.Random) -> None:
        collector.call("fail", error="an error")
        collector.take()
        collector.call("heartbeat")

    def outcome(self) -> dict[str, Any]:
        counts = self.run.counts
        names = ("env_step", "episode", "sample", "too_old", "dropped_episodes", "lag_sum", "lag_max", "accepted")
        told = {name: getattr(counts, name) for name in names}
        buffer, ratio = self.run.replay.buffer, self.run.replay.ratio
        rest = {"rows": self.run.rows(), "count": buffer.count(), "inserted": ratio.inserted, "answers": self.answers}
        seqs = [counts.next_seq.get(one.task["run_id"], 0) for one in self.collectors]
        return {**told, **rest, "seqs": seqs, "version": counts.data_policy_version}


@settings(deadline=None, max_examples=8)
@given(seed=st.integers(0, 2**32), restarts=st.sets(st.integers(0, 39), max_size=6))
def test_restarts_between_any_two_messages_change_nothing(seed: int, restarts: set[int], tmp_path_factory: Any) -> None:
    folder = tmp_path_factory.mktemp("runs")
    quiet = Script(folder / "quiet", seed, 40, set()).outcome()
    assert Script(folder / "restarted", seed, 40, restarts).outcome() == quiet


def test_resumed_run_uses_the_current_config(tmp_path: Path) -> None:
    run = Run(config(tmp_path / "run"))
    learner, collector = both(run)
    learner.call("learner_close_task", info={"learner_step": 3, "learner_done": False, "results": {}})
    main, system = run.cfg["main"], run.cfg["system"]
    main = {**main, "max_env_step": 8, "max_train_iter": 7, "env": {"n_evaluator_episode": 3}}
    changed = {"learner": {"trainer": {"max_epochs": 5}, "prefetch": 0}, "collector": {"print_freq": 9}}
    run.cfg = {"main": main, "system": {**system, **changed}}
    run.restart()
    learner.connect()
    learner.take()
    told = learner.info()
    assert told["resume"]
    assert (told["main"]["max_env_step"], told["main"]["max_train_iter"]) == (8, 7)
    assert (told["learner_cfg"]["trainer"]["max_epochs"], told["learner_cfg"]["prefetch"]) == (5, 0)
    other = Worker(run, "collector")
    other.take()
    settings = other.info()["collector_cfg"]
    assert (settings["print_freq"], settings["env"]["n_evaluator_episode"]) == (9, 3)
    assert len(run.coordinator.run.scheduler.book.tasks) == 3
    for first in (0, 4):
        collector.send(transitions(first=first))
    assert run.coordinator.system_shutdown_flag


@pytest.mark.parametrize(
    ("main", "system", "told"),
    [
        ({"policy": {"type": "dqn", "learn": {"batch_size": 8}}}, {}, r"main.policy.\S+ must be"),
        ({"policy": POLICY | {"discount_factor": 0.5}}, {}, r"main.policy.discount_factor must be 0.99, .* got 0.5"),
        ({"policy": POLICY | {"type": "c51"}}, {}, "main.policy.type must be 'dqn'"),
        ({"env": {"env_id": "Acrobot-v1"}}, {}, "main.env.env_id must be 'CartPole-v1'"),
        ({}, {"coordinator": {"commander": {"type": "naive"}}}, "system.coordinator.commander.type must be 'solo'"),
    ],
)
def test_run_cannot_be_resumed_with_a_config_that_changes_what_is_learned(
    run: Run, main: Any, system: Any, told: str
) -> None:
    cfg = run.cfg
    run.cfg = {"main": {**cfg["main"], **main}, "system": {**cfg["system"], **system}}
    with pytest.raises(ValueError, match=told):
        run.restart()
    run.cfg = cfg
    run.cfg["main"]["policy"] = {**cfg["main"]["policy"], "discount_factor": 0.99}  # as it is by default
    run.restart()


@pytest.mark.parametrize("resume", [True, False])
def test_data_without_the_state_of_their_run_are_never_deleted(run: Run, resume: bool) -> None:
    _, collector = both(run)
    collector.send(transitions())
    run.coordinator.save()
    collector.send(transitions(first=4))
    folder = Path(run.cfg["main"]["exp_name"])
    run.coordinator.run.database.close()
    state = folder / "coordinator" / "run.db"
    kept = state.read_bytes()
    state.unlink()
    before = contents(folder)
    with pytest.raises(ValueError, match=r"files of a run, .* but not coordinator/run\.db, .* nothing was changed"):
        Coordinator(run.cfg, run.store, resume=resume)
    assert contents(folder) == before
    state.write_bytes(kept)
    run.restart()
    assert run.rows()["reward"] == list(range(8))


@pytest.mark.parametrize("listens", [True, False])
def test_resuming_a_folder_without_a_run_is_refused_and_writes_nothing(tmp_path: Path, listens: bool) -> None:
    with pytest.raises(ValueError, match=r"'.*/misspelt' contains no run to resume"):
        Coordinator(config(tmp_path / "misspelt"), None if listens else MemoryStore(), resume=True)
    assert not (tmp_path / "misspelt").exists()


def test_new_run_does_not_replace_the_result_of_another_one(run: Run) -> None:
    run.coordinator.handle("shutdown", {})
    run.coordinator.close()
    result = Path(run.cfg["main"]["exp_name"], "result.json")
    before = result.read_text()
    with pytest.raises(ValueError, match="contains a run: --resume continues it, a finished one with a larger limit"):
        Coordinator(run.cfg, run.store)
    assert result.read_text() == before


@pytest.mark.parametrize("left", [0.0, 0.5, 1.0])
def test_damaged_state_ends_in_one_line_that_names_the_file(run: Run, left: float) -> None:
    run.coordinator.run.database.close()
    state = Path(run.cfg["main"]["exp_name"], "coordinator", "run.db")
    content = state.read_bytes()
    state.write_bytes(content[: int(left * len(content))] if left < 1 else content[::-1])
    before = state.read_bytes()
    with pytest.raises(ValueError, match=f"^{state} is damaged, so the run cannot be resumed: ") as raised:
        run.restart()
    assert "\n" not in str(raised.value)
    assert state.read_bytes() == before


@pytest.mark.parametrize(("kind", "value"), [("state", "{}"), ("tasks", "[]"), ("contents", "5")])
def test_changed_record_of_the_state_ends_in_one_line_that_names_the_file(run: Run, kind: str, value: str) -> None:
    run.change_record(kind, value)
    state = Path(run.cfg["main"]["exp_name"], "coordinator", "run.db")
    with pytest.raises(ValueError, match=f"^{state} is damaged, .*: it has changed since it was written"):
        run.restart()


def test_change_of_a_task_rewrites_neither_the_other_tasks_nor_their_contents(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, collector = both(run)
    written: list[Any] = []
    monkeypatch.setattr(run.coordinator.run.database, "write", lambda changes, *_: written.extend(changes))
    collector.call("fail", error="an error")
    kinds = sorted(f"{kind}: {name.partition('_task_')[0]}" for kind, name in written)
    assert kinds == [
        "contents: collector",  # of the task that ended
        "state: results",
        "state: scheduler",
        "tasks: collector",
    ]


def test_evaluations_are_written_with_the_next_one_alone(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    _, collector = both(run)
    results = run.coordinator.run.results
    evaluations = [{"env_step": step, "reward_mean": 1.0} for step in (4, 8)]
    for step in (4, 8):
        results.note_evaluation({"reward_mean": 1.0}, step)
    written = run_and_write(run, monkeypatch, lambda: collector.call("fail", error="an error"))
    assert written["state", "evaluations"] == evaluations
    later = run_and_write(run, monkeypatch, lambda: collector.take())
    assert ("state", "results") in later
    assert ("state", "evaluations") not in later
    run.restart()
    assert run.coordinator.run.results.evaluations == evaluations


def run_and_write(run: Run, monkeypatch: pytest.MonkeyPatch, call: Callable[[], Any]) -> dict[Any, Any]:
    """Return what a call writes into the database."""
    database, written = run.coordinator.run.database, dict[Any, Any]()
    write = database.write

    def note(changes: dict[Any, Any], *arguments: Any) -> None:
        written.update(changes)
        write(changes, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(database, "write", note)
        call()
    return written


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(config(tmp_path / "run"))


def contents(folder: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def files(run: Run) -> list[Path]:
    return sorted(Path(run.cfg["main"]["exp_name"], "coordinator/journal").rglob("*.*"))


def snapshots(run: Run) -> list[Path]:
    """Return the folders of the snapshots, the oldest first."""
    return sorted(Path(run.cfg["main"]["exp_name"]).glob("coordinator/snapshots/*/0*"))


def test_journal_keeps_the_entries_that_only_the_newest_snapshot_contains(run: Run) -> None:
    _, collector = both(run)
    for first in (0, 4, 8):
        collector.send(transitions(first=first))
    assert (len(files(run)), list(run.entries), run.replay.stats()["journal_depth"]) == (3, [1, 2, 3], 3)
    run.coordinator.save()
    assert (len(files(run)), list(run.entries), run.replay.stats()["journal_depth"]) == (3, [1, 2, 3], 0)
    collector.send(transitions(first=12))
    run.coordinator.save()
    assert ([file.name[:12] for file in files(run)], list(run.entries)) == (["000000000004"], [4])
    collector.send(transitions(first=16))
    assert (len(files(run)), list(run.entries)) == (2, [4, 5])
    run.restart()
    assert run.rows()["reward"] == list(range(20))
    assert run.replay.stats()["journal_depth"] == 1
    run.coordinator.save()
    assert ([file.name[:12] for file in files(run)], list(run.entries)) == (["000000000005"], [5])
    assert len(snapshots(run)) == 2


def test_a_snapshot_forgets_where_a_run_is_only_when_it_is_over(run: Run) -> None:
    _, collector = both(run)
    collector.send(transitions())
    run.replay.snapshot(set())  # the run began after the finished run ids were listed
    assert collector.send(transitions(first=4))["accepted"]
    collector.call("fail", error="an error")
    run.coordinator.save()
    assert run.counts.next_seq == {}


def test_a_snapshot_that_was_not_finished_is_passed_over(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    _, collector = both(run)
    collector.send(transitions())
    run.coordinator.save()
    collector.send(transitions(first=4))

    def full(file: Path) -> None:
        Path(file).write_bytes(b"half of it")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(run.replay.buffer, "save_data", full)
    with pytest.raises(OSError, match="No space"):
        run.coordinator.save()
    assert len(files(run)) == 2
    run.restart()
    assert run.rows()["reward"] == list(range(8))
    run.coordinator.save()
    assert [file.name[:12] for file in files(run)] == ["000000000002"]


def test_entry_whose_writing_was_interrupted_is_deleted_with_a_warning(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    _, collector = both(run)
    collector.send(transitions())
    collector.send(transitions(first=4))
    (data := files(run)[-1]).unlink()  # as after a kill between its record and its data
    run.restart()
    assert (run.counts.env_step, list(run.entries)) == (4, [1])
    assert [one.levelname for one in caplog.records if data.stem in one.getMessage()] == ["WARNING"]
    answer = collector.send(transitions(first=4), seq=1)
    assert answer["accepted"]
    assert not answer["duplicate"]
    assert run.rows()["reward"] == list(range(8))


def test_entry_with_data_needs_one_rename(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    _, collector = both(run)
    renames, rename = [], os.replace

    def note(source: Any, target: Any) -> None:
        renames.append(target)
        rename(source, target)

    monkeypatch.setattr(os, "replace", note)
    collector.send(transitions())
    assert [Path(file).suffix for file in renames] == [".safetensors"]


def test_a_restart_between_accepting_and_refusing_leaves_bad_data_out(run: Run) -> None:
    _, collector = both(run)
    collector.send(transitions())
    replay = run.replay
    replay.journal.discard = lambda entry: None  # killed before it could
    with pytest.raises(Refusal, match="422"):
        collector.send(transitions(first=4, truncated=None))
    run.restart()
    assert run.counts.env_step == 4
    assert (len(files(run)), list(run.entries)) == (1, [1])
    assert collector.send(transitions(first=4), seq=1)["accepted"]


def test_whatever_the_buffer_raises_is_refused_and_the_next_start_does_not_meet_it(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, collector = both(run)
    collector.send(transitions())

    def break_down(*_: Any) -> None:
        raise TypeError("a type that it does not know")

    with monkeypatch.context() as patch:
        patch.setattr(run.replay.buffer, "push", break_down)
        with pytest.raises(Refusal, match=r"422.*a type that it does not know"):
            collector.send(transitions(first=4))
    assert (len(files(run)), list(run.entries)) == (1, [1])
    assert collector.send(transitions(first=8))["accepted"]
    run.restart()
    assert run.rows()["reward"] == [0, 1, 2, 3, 8, 9, 10, 11]


@pytest.mark.parametrize("left", ["", '{"number": 2, "run', "5", "{}"])
def test_data_that_a_power_cut_tore_do_not_stop_a_start(run: Run, left: str, caplog: pytest.LogCaptureFixture) -> None:
    _, collector = both(run)
    for first in (0, 4, 8, 12):
        collector.send(transitions(first=first))
    torn = files(run)[1:3]
    for file in torn:
        file.write_text(left)
    run.restart()
    assert run.rows()["reward"] == [0, 1, 2, 3, 12, 13, 14, 15]
    told = [record.message for record in caplog.records if record.levelname == "ERROR"]
    assert sorted(file.stem in message for file in torn for message in told) == [False, False, True, True]
    assert (len(files(run)), list(run.entries)) == (2, [1, 4])
    assert collector.send(transitions(first=16))["accepted"]


def test_snapshots_are_on_the_disk_before_their_entries_are_deleted(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: set[int] = set()
    fsync = os.fsync

    def note(number: int) -> None:
        synced.add(os.fstat(number).st_ino)
        fsync(number)

    monkeypatch.setattr(os, "fsync", note)
    learner, collector = both(run)
    learner.publish(1)
    collector.send(transitions())
    run.coordinator.save()
    needed = list(Path(run.cfg["main"]["exp_name"], "coordinator", "snapshots").rglob("*"))
    assert len(needed) == 5
    assert [file for file in needed if file.stat().st_ino not in synced] == []


def test_changes_of_tasks_wait_for_the_disk_and_entries_do_not(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    database, synced = run.coordinator.run.database, []
    write = database.write

    def note(changes: Any, is_synced: bool = True) -> None:
        synced.append(is_synced)
        write(changes, is_synced)
        mode = 2 if is_synced else 1  # SQLite's FULL and NORMAL
        assert database._connected().execute("PRAGMA synchronous").fetchone() == (mode,)

    monkeypatch.setattr(database, "write", note)
    _, collector = both(run)
    assert set(synced) == {True}
    synced.clear()
    collector.send(transitions())
    assert synced == [False]


def test_only_weights_that_are_kept_permanently_wait_for_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[bool] = []
    database = Database(tmp_path / "run.db")
    monkeypatch.setattr(database, "write", lambda changes, is_synced: synced.append(is_synced))
    weights = PublishedWeights(database, tmp_path / "policies", MemoryStore())
    weights.publish("main", 1, {"kind": "policy", "name": "a"})
    weights.publish("main", 2, {"kind": "policy", "name": "b"}, snapshot="main_at_2")
    assert synced == [False, True]


def test_damaged_record_of_publications_is_logged_and_the_learner_publishes_again(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    learner, collector = both(run)
    learner.publish(1)
    run.change_record("policy", "[]")
    run.restart()
    policy_id = learner.info()["policy_id"]
    assert f"the weights of {policy_id} are lost: it has changed since it was written" in caplog.text
    assert collector.call("get_policy", policy_id=policy_id, serial=-1)["handle"] is None
    learner.publish(2)
    assert collector.call("get_policy", policy_id=policy_id, serial=-1)["policy_version"] == 2


def test_workers_keep_their_tasks_with_a_full_lease_after_a_restart(run: Run) -> None:
    learner, collector = both(run)
    collector.send(transitions())
    run.clock.now += 14
    run.restart()
    run.clock.now += 14
    run.coordinator.sweep()
    assert collector.send(transitions(first=4))["accepted"]
    assert learner.get()["data"] is not None


def test_an_idle_worker_has_to_connect_again(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoints, "TASK_WAIT", 0.0)
    both(run)
    idle = Worker(run, "learner")
    assert idle.take()["task"] is None
    run.restart()
    with pytest.raises(LeaseLostError):
        idle.take()
    idle.connect()
    assert idle.take()["task"] is None


def test_every_former_self_that_a_restarted_coordinator_knows_has_its_weights(tmp_path: Path) -> None:
    league = {"snapshot_interval": 1, "max_players": 2}
    cfg = config(tmp_path / "run", commander={"type": "one_vs_one", "league": league})
    run = Run(cfg | {"system": {**cfg["system"], "collector": {"type": "marine"}}})
    learner, _ = both(run)
    for number in (1, 2, 3, 4):
        learner.publish(number)
        run.restart()  # after a kill
        players = run.coordinator.run.scheduler.commander.league.players
        assert len(players) == min(number, 2)
        for player in players:
            handle = run.coordinator.run.weights.newer(player, -1)["handle"]
            assert run.store.get(handle).tensors["weight"].tolist() == [float(player.rpartition("_")[2])]


def test_the_ratio_is_remembered(tmp_path: Path) -> None:
    run = Run(config(tmp_path / "run", samples_per_insert=2.0, tolerance=2.0))
    learner, collector = both(run)
    for first in range(0, 8, 4):
        collector.send(transitions(first=first))
        learner.get()
    collector.send(transitions(first=8))
    assert run.replay.ratio.sampled == 16
    run.restart()
    assert (run.replay.ratio.sampled, run.replay.ratio.inserted) == (16, 12)


def test_priorities_come_back_with_a_snapshot(tmp_path: Path) -> None:
    other = {"replay_buffer": {"type": "advanced"}}
    run = Run(config(tmp_path / "run", {"priority": True, "other": other}))
    learner, collector = both(run)
    collector.send(transitions())
    batch = run.store.get(learner.get(4, 1)["data"]).tensors
    said = {"priority": batch["reward"] + 1}
    said |= {name: batch[name] for name in ("replay_unique_id", "replay_buffer_idx")}
    handle = run.store.put("priority", said)
    learner.call("learner_learn_task", info={"learner_step": 1, "learner_done": False, "priority_info": handle})
    run.coordinator.save()
    before = run.replay.buffer._priority[:4].tolist()
    run.restart()
    assert run.replay.buffer._priority[:4].tolist() == before
    assert len(set(before)) == 4


@pytest.mark.parametrize(("asked", "space"), [(2, 3), (4, 4), (1, 1)])  # by the config of the resumed run
def test_the_number_of_collecting_tasks_is_that_of_the_newer_config(asked: int, space: int, tmp_path: Path) -> None:
    run = Run(config(tmp_path / "run"))
    first, second = both(run)[1], Worker(run, "collector")
    second.take()
    assert run.coordinator.handle("increase_collector", {"n": 1}) == {"collector_task_space": 3}
    run.cfg["system"]["coordinator"]["commander"]["collector_task_space"] = asked
    run.restart()
    third, fourth = Worker(run, "collector"), Worker(run, "collector")
    for worker in (third, fourth):
        worker.take()
    continues = [not worker.call("heartbeat")["close"] for worker in (first, second)]
    assert sum(continues) + bool(third.task) + bool(fourth.task) == space
    assert continues == [asked > 1, True]
    run.restart()
    assert run.coordinator.handle("increase_collector", {"n": 1}) == {"collector_task_space": space + 1}
