"""Envs that step while the policy learns: the lag, repeats and resumed runs to the last bit, faults, and refusals."""

from __future__ import annotations

import copy
import functools
import inspect
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
import yaml
from lightning.pytorch import Callback

from lightning_ding.callbacks import RunCheckpoint
from lightning_ding.config import deep_merge
from lightning_ding.datamodules import OfflineDataModule, RemoteReplayDataModule, ReplayDataModule, RolloutDataModule
from lightning_ding.datamodules.replay_round import ReplayRound
from lightning_ding.entry.cli import main
from lightning_ding.envs import EnvProcessError
from lightning_ding.policy import DQNPolicy, PPOPolicy, R2D2Policy, RainbowPolicy, SACPolicy
from lightning_ding.policy.base.dump import NonFiniteError
from lightning_ding.policy.base.policy import Policy
from lightning_ding.worker.buffer.ring_buffer import RingBuffer
from lightning_ding.worker.collector.overlap import KeptWeights, Overlap
from tests.conftest import MakeTrainer
from tests.envs.faulty import FaultyEnv
from tests.processes import run_ranks_of_lightning
from tests.toys.envs import CountingEnv

Config = dict[str, Any]
NUM_ENVS = 2
OFF_POLICY: Config = {
    "random_collect_size": 16,
    "learn": {"update_per_collect": 3, "batch_size": 8},
    "other": {"replay_buffer": {"replay_buffer_size": 500}},
}
NETWORK = {"model": {"encoder_hidden_size_list": [16]}}
ACTOR_AND_CRITIC = {"model": {"actor_head_hidden_size": 16, "critic_head_hidden_size": 16}}
ON_POLICY: Config = {
    "collect": {"n_sample": 16},
    "learn": {"epoch_per_collect": 2, "batch_size": 8},
    "model": {"encoder_hidden_size_list": [16, 16]},
}


@pytest.fixture(autouse=True)
def _forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start env processes by a fork, which takes milliseconds."""
    monkeypatch.setattr("lightning_ding.envs.process.vector_env.start_method", lambda name: "fork")


def merged(*parts: Config) -> Config:
    return functools.reduce(deep_merge, parts)


def n_sample(number: int) -> Config:
    return {"collect": {"n_sample": number}}


class Versioned:
    """Takes the number of its updates so far as action; the number is one of its weights."""

    version: Any

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.register_buffer("version", torch.zeros((), dtype=torch.int64))  # type: ignore[attr-defined]
        self.seen: list[Any] = []

    def _forward_collect(self, obs: Any, **kwargs: Any) -> Any:
        output = super()._forward_collect(obs, **kwargs)  # type: ignore[misc]
        return {**output, "action": output["action"] * 0 + self.version}

    def _process_transition(self, obs: Any, output: Any, timestep: Any) -> Any:
        self.seen.append((int(self.version), int(output["action"][0])))
        return super()._process_transition(obs, output, timestep)  # type: ignore[misc]


class VersionedDQN(Versioned, DQNPolicy):
    def _forward_learn(self, batch: Any) -> Any:
        report = super()._forward_learn(batch)
        self.version += 1
        return report


class VersionedPPO(Versioned, PPOPolicy):
    """Also notes whether the probabilities of a rollout are those that the weights of its version give."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.weights: list[Any] = []
        self.agrees: list[bool] = []

    def _forward_learn(self, batch: Any) -> Any:
        now = {name: one.clone() for name, one in self.model.state_dict().items()}
        self.weights.append(now)
        self.model.load_state_dict(self.weights[max(len(self.weights) - 2, 0)])
        with torch.no_grad():
            distribution = self._distribution(self._logit(batch["obs"]), batch["obs"])
            self.agrees.append(torch.allclose(distribution.log_prob(batch["action"]), batch["log_prob"], atol=1e-6))
        self.model.load_state_dict(now)
        return super()._forward_learn(batch)

    def _update(self, minibatch: Any) -> Any:
        self.version += 1
        return super()._update(minibatch)


class ManyActions(CountingEnv):
    """A CountingEnv with as many actions as a run has updates, which keeps those that it took."""

    taken: list[int]

    def __init__(self) -> None:
        super().__init__(0, (5,))
        self.action_space = gym.spaces.Discrete(1000)
        self.taken = []

    def step(self, action: Any) -> Any:
        self.taken.append(int(action))
        return super().step(action)


def fit(
    make_trainer: MakeTrainer,
    policy: Any,
    env_id: Any = "CartPole-v1",
    rounds: int = 6,
    callbacks: Any = (),
    overlap: bool = True,
    ckpt_path: Any = None,
    limit_val_batches: int = 0,
    **arguments: Any,
) -> Any:
    """Train for a number of rounds; return the datamodule."""
    kind = RolloutDataModule if policy.on_policy else ReplayDataModule
    per_round = policy.config.collect.n_sample or 0
    warm_up = policy.random_collect_size if hasattr(policy, "random_collect_size") else 0
    made = {"num_envs": NUM_ENVS, "mode": "async", "rounds_per_epoch": 2, "num_workers": 2, **arguments}
    made.setdefault("max_env_step", warm_up + (rounds + overlap) * per_round)
    datamodule = kind(env_id, overlap=overlap, **made)
    flags = {"limit_val_batches": limit_val_batches, "enable_checkpointing": bool(callbacks)}
    trainer = make_trainer(callbacks=list(callbacks), **flags)
    trainer.fit(policy, datamodule, ckpt_path=ckpt_path)
    return datamodule


# ---------------------------------------------------------------------- the lag


class Taken(Callback):
    """Notes the actions of each round that the envs took, as soon as its updates have been made."""

    def __init__(self) -> None:
        self.rounds: list[list[int]] = []

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        taken = trainer.datamodule.training_envs().get_attr("taken")[0]
        self.rounds.append(taken[sum(map(len, self.rounds)) :])


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 9])
def test_replayed_actions_are_of_the_weights_before_the_updates_of_the_round_before(
    make_trainer: MakeTrainer, steps: int
) -> None:
    taken = Taken()
    policy = VersionedDQN(merged(OFF_POLICY, n_sample(steps * NUM_ENVS), NETWORK, {"random_collect_size": 0}))
    datamodule = fit(make_trainer, policy, ManyActions, callbacks=[taken], rounds=8, max_env_step=72 * steps)
    at_first = 8 // (steps * NUM_ENVS) + bool(8 % (steps * NUM_ENVS))  # collections until there is a minibatch
    first, *later = taken.rounds
    assert first == [0] * steps * (at_first + 1)  # before any update, and the second round with the first one's weights
    for number, actions in enumerate(later, 1):
        assert actions == [3 * number] * steps
    assert {seen for seen, action in policy.seen if seen != action} == set()  # also where transitions are made
    assert datamodule.collector._kept.count == steps * NUM_ENVS


def test_rollouts_are_of_the_weights_before_the_updates_of_the_round_before(make_trainer: MakeTrainer) -> None:
    taken = Taken()
    policy = VersionedPPO(ON_POLICY)
    fit(make_trainer, policy, ManyActions, callbacks=[taken], rounds=5)
    first, *later = taken.rounds
    assert first == [0] * 16
    assert later == [[4 * number] * 8 for number in range(1, 5)]
    assert policy.agrees == [True] * 5


def test_env_steps_count_once_and_runs_end_at_their_limit(make_trainer: MakeTrainer) -> None:
    policy = DQNPolicy(merged(OFF_POLICY, n_sample(2), NETWORK))
    datamodule = fit(make_trainer, policy, max_env_step=40)
    assert policy.progress.env_step == datamodule.collector.envstep == 40
    assert policy.progress.sample == 38
    assert policy.progress.train_iter == 3 * (40 - 16 - 2) // 2


def test_without_overlap_nothing_is_loaded_or_kept(make_trainer: MakeTrainer) -> None:
    policy = DQNPolicy(merged(OFF_POLICY, n_sample(2), NETWORK))
    datamodule = fit(make_trainer, policy, overlap=False, rounds=2)
    assert policy.learner.meanwhile is None
    assert datamodule._overlap is None
    assert datamodule.collector._kept.count == 0


class Layers(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.memory, self.norm = torch.nn.LSTM(3, 4, batch_first=True), torch.nn.BatchNorm1d(4)
        self.head = torch.nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.head(self.norm(self.memory(x)[0][:, -1]))
        return found


@pytest.mark.parametrize("autocast", [False, True])
def test_kept_weights_are_all_those_of_the_layers_and_go_back(autocast: bool) -> None:
    layers, x = Layers(), torch.randn(5, 2, 3)
    weights, optimizer = KeptWeights(layers), torch.optim.Adam(layers.parameters(), lr=0.5)
    for _ in range(2):  # the second copy uses the memory of the first one
        layers.eval()
        before = layers(x)
        weights.keep()
        layers.train()
        layers(x).sum().backward()  # which changes the buffers too
        optimizer.step()
        layers.eval()
        places = [one.data_ptr() for one in layers.state_dict().values()]
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            after = layers(x)
            with weights:
                kept = layers(x)
            assert torch.equal(layers(x), after)
        assert not torch.equal(kept, after)
        assert torch.allclose(kept.float(), before, atol=0.02 if autocast else 0)
        assert [one.data_ptr() for one in layers.state_dict().values()] == places


# ---------------------------------------------------------------------- to the last bit

CASES: dict[str, tuple[type[Policy[Any]], Config, dict[str, Any]]] = {
    "dqn_one_step": (DQNPolicy, merged(OFF_POLICY, n_sample(2), NETWORK), {}),
    "dqn_priority": (
        DQNPolicy,
        merged(OFF_POLICY, n_sample(6), NETWORK, {"priority": True, "other": {"replay_buffer": {"type": "advanced"}}}),
        {},
    ),
    "rainbow": (
        RainbowPolicy,
        merged(OFF_POLICY, n_sample(6), NETWORK),
        {"norm_obs": True},
    ),
    "sac": (SACPolicy, merged(OFF_POLICY, n_sample(8), ACTOR_AND_CRITIC), {"env_id": "Pendulum-v1"}),
    "r2d2": (
        R2D2Policy,
        merged(
            OFF_POLICY,
            n_sample(6),
            {
                "learn_unroll_len": 4,
                "burnin_step": 1,
                "learn": {"batch_size": 2},
                "model": {"core": {"hidden_size": 8}},
            },
            {"model": {"encoder_hidden_size_list": [8]}},
        ),
        {},
    ),
    "ppo": (PPOPolicy, ON_POLICY, {"norm_obs": True, "norm_reward": True}),
}


@pytest.fixture(params=sorted(CASES))
def case(request: pytest.FixtureRequest) -> tuple[type[Policy[Any]], Config, dict[str, Any]]:
    return CASES[request.param]


def ended_with(policy: Any, datamodule: Any) -> dict[str, Any]:
    """Return the numbers that a run ended with."""
    found = {name: one.clone() for name, one in policy.state_dict().items()}
    found |= {"progress": torch.tensor([policy.progress.env_step, policy.progress.train_iter, policy.progress.sample])}
    found |= {"torch": torch.get_rng_state(), "returns": torch.tensor(datamodule.collector.returns)}
    found |= {f"waiting/{name}": one for name, one in arrays(datamodule.collector._kept.state()[0])}
    if getattr(datamodule, "buffer", None) is not None:
        found |= {f"buffer/{name}": one for name, one in datamodule.buffer.state_dict()["tensors"].items()}
    return found


def arrays(columns: Any) -> Iterator[tuple[str, Any]]:
    for name, column in columns.items():
        if isinstance(column, dict):
            yield from ((f"{name}/{below}", one) for below, one in arrays(column))
        else:
            yield name, torch.from_numpy(np.asarray(column))


def check_equal(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert torch.equal(tensor, other[name]), name


def test_run_repeats_and_resumes_to_the_last_bit(make_trainer: MakeTrainer, tmp_path: Path, case: Any) -> None:
    kind, config, arguments = case
    ends = []
    for name, parts in {"unbroken": (7,), "broken": (2, 3, 7)}.items():
        file = None
        for rounds in parts:
            torch.manual_seed(1)
            policy = kind(config)
            saves = [RunCheckpoint(tmp_path / name)]
            datamodule = fit(make_trainer, policy, callbacks=saves, rounds=rounds, ckpt_path=file, **arguments)
            file = tmp_path / name / "last.ckpt"
        ends.append(ended_with(policy, datamodule))
    check_equal(*ends)


def test_saving_after_each_round_changes_nothing(make_trainer: MakeTrainer, tmp_path: Path) -> None:
    ends = []
    for every in (1, 100):
        torch.manual_seed(1)
        policy = SACPolicy(merged(OFF_POLICY, n_sample(2), ACTOR_AND_CRITIC))
        saves = [RunCheckpoint(tmp_path / str(every))]
        datamodule = fit(make_trainer, policy, "Pendulum-v1", callbacks=saves, rounds_per_epoch=every)
        ends.append(ended_with(policy, datamodule))
    check_equal(*ends)


def test_run_goes_on_without_overlap_and_with_it_again(make_trainer: MakeTrainer, tmp_path: Path) -> None:
    file = None
    for overlap, end in ((False, 24), (True, 32), (False, 40)):
        policy = DQNPolicy(merged(OFF_POLICY, n_sample(4), NETWORK))
        saves = [RunCheckpoint(tmp_path)]
        fit(make_trainer, policy, callbacks=saves, overlap=overlap, max_env_step=end, ckpt_path=file)
        assert policy.progress.env_step == end
        file = tmp_path / "last.ckpt"
    assert policy.progress.sample == 40  # the transitions that waited are learned from as well


def test_priorities_of_each_update_reach_the_buffer(make_trainer: MakeTrainer, monkeypatch: pytest.MonkeyPatch) -> None:
    updated: list[Any] = []
    monkeypatch.setattr(ReplayRound, "update_priority", lambda self, batch, priority: updated.append(priority))
    kind, config, _ = CASES["dqn_priority"]
    policy: Any = kind(config)
    fit(make_trainer, policy, rounds=3)
    assert len(updated) == policy.progress.train_iter > 0


def test_two_ranks_stay_equal_and_resume_to_the_last_bit(tmp_path: Path) -> None:
    run_ranks_of_lightning(Path(__file__).with_name("overlap_ranks_script.py"), tmp_path)
    ranks = [torch.load(tmp_path / f"rank_{rank}.pt", weights_only=True) for rank in range(2)]
    for reports in ranks:
        check_equal(reports["broken"]["weights"], reports["unbroken"]["weights"])
        check_equal(reports["broken"]["buffer"], reports["unbroken"]["buffer"])
        check_equal(reports["unbroken"]["weights"], ranks[0]["unbroken"]["weights"])
        assert reports["unbroken"]["env_step"] == 2 * reports["unbroken"]["env_step_of_rank"] == 140


def test_evaluations_between_rounds_change_nothing(make_trainer: MakeTrainer) -> None:
    ends = []
    for number in (0, 1):
        torch.manual_seed(1)
        policy = DQNPolicy(merged(OFF_POLICY, n_sample(6), NETWORK, {"eval": {"evaluator": {"n_episode": 2}}}))
        datamodule = fit(make_trainer, policy, limit_val_batches=number)
        assert ("eval/return_mean" in datamodule.trainer.callback_metrics) == bool(number)
        ends.append(ended_with(policy, datamodule))
    check_equal(*ends)


class Signals(Callback):
    """Sends SIGTERM to this process during the updates of the third round."""

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        if pl_module.progress.train_iter == 7:
            assert trainer.datamodule._collector_env.unwrapped._is_sent
            os.kill(os.getpid(), signal.SIGTERM)


def test_run_that_a_signal_stops_during_its_updates_resumes_to_the_last_bit(
    make_trainer: MakeTrainer, tmp_path: Path
) -> None:
    ends = []
    for name in ("unbroken", "broken"):
        saves, file = RunCheckpoint(tmp_path / name), None
        if name == "broken":
            with pytest.raises(SystemExit):
                fit(make_trainer, seeded(), callbacks=[saves, Signals()])
            file = tmp_path / name / "last.ckpt"
        policy = seeded()
        datamodule = fit(make_trainer, policy, callbacks=[saves], ckpt_path=file)
        ends.append(ended_with(policy, datamodule))
    check_equal(*ends)


def seeded(kind: type[DQNPolicy] = DQNPolicy) -> DQNPolicy:
    torch.manual_seed(1)
    return kind(merged(OFF_POLICY, n_sample(6), NETWORK))


class OwnRounds(DQNPolicy):
    """Makes its updates without the surroundings of a round, as a user may who overrides ``training_step``."""

    def training_step(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        for minibatch in batch:
            report = self._learn(minibatch)
        report.pop("priority", None)
        return report


def test_rounds_of_a_training_step_of_the_user_are_saved_whole(make_trainer: MakeTrainer, tmp_path: Path) -> None:
    ends = []
    for name, parts in {"unbroken": (7,), "broken": (3, 7)}.items():
        file = None
        for rounds in parts:
            policy, saves = seeded(OwnRounds), [RunCheckpoint(tmp_path / name)]
            datamodule = fit(make_trainer, policy, callbacks=saves, rounds=rounds, rounds_per_epoch=1, ckpt_path=file)
            assert policy.progress.env_step == datamodule.collector.envstep
            file = tmp_path / name / "last.ckpt"
        ends.append(ended_with(policy, datamodule))
    check_equal(*ends)


def test_second_fit_counts_on_and_ends_at_its_limit(make_trainer: MakeTrainer) -> None:
    policy = seeded()
    for limit in (28, 28 + 16 + 12):  # each fills its buffer with 16 random actions
        datamodule = fit(make_trainer, policy, max_env_step=limit)
        assert policy.progress.env_step == limit
        assert datamodule.collector._kept.count == 6
        assert policy.learner.meanwhile is None
    assert policy.progress.train_iter == 2 * 3


# ---------------------------------------------------------------------- faults


def faulty(kind: str, marker: Path) -> Any:
    return functools.partial(FaultyEnv, 1, kind, [(3, 2)], marker)


@pytest.mark.parametrize(("kind", "steps"), [("kill", 1), ("raise", 3), ("stop", 3)])
def test_fault_of_a_process_while_the_policy_learns_drops_the_episodes(
    make_trainer: MakeTrainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, steps: int
) -> None:
    drops = {"collect": {"collector": {"env_fault": "drop"}}, "random_collect_size": 0}
    policy = DQNPolicy(merged(OFF_POLICY, n_sample(NUM_ENVS * steps), NETWORK, drops))
    limit: Config = {"env_timeout": (60, 1)} if kind == "stop" else {}
    marker, forgotten, drop = tmp_path / "marker", [], RingBuffer.drop_episodes

    def note(self: Any, ids: Any) -> None:
        forgotten.extend(ids)
        drop(self, ids)

    monkeypatch.setattr(RingBuffer, "drop_episodes", note)
    datamodule = fit(make_trainer, policy, faulty(kind, marker), max_env_step=60, **limit)
    assert marker.exists()
    assert 1 <= datamodule.collector.dropped_episode == len(forgotten) <= NUM_ENVS
    assert policy.progress.env_step >= 60


def test_fault_of_a_process_in_a_rollout_is_made_up_for(make_trainer: MakeTrainer, tmp_path: Path) -> None:
    drops = {"collect": {"collector": {"env_fault": "drop"}}}
    policy = PPOPolicy(merged(ON_POLICY, drops))
    datamodule = fit(make_trainer, policy, faulty("kill", tmp_path / "marker"), rounds=4)
    assert datamodule.collector.dropped_episode >= 1
    assert policy.progress.env_step >= 5 * 16


class Kills(Callback):
    """Kills an env process during the updates of a round, in which its envs have got their actions."""

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        if pl_module.progress.train_iter == 4:
            core = trainer.datamodule._collector_env.unwrapped
            assert core._is_sent
            assert core.in_progress() is None  # the run does not wait for them
            os.kill(core._processes.all[0].process.pid, signal.SIGKILL)


def test_process_that_dies_while_the_policy_learns_ends_the_run(make_trainer: MakeTrainer) -> None:
    policy = DQNPolicy(merged(OFF_POLICY, n_sample(6), NETWORK))
    with pytest.raises(EnvProcessError, match=r"env 0 failed in step\(\): its process was ended by SIGKILL"):
        fit(make_trainer, policy, functools.partial(CountingEnv, lengths=(100,)), callbacks=[Kills()])


def test_error_of_an_update_ends_the_processes(make_trainer: MakeTrainer, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: Any, batch: Any) -> Any:
        raise ArithmeticError("of the update")

    monkeypatch.setattr(DQNPolicy, "_forward_learn", fails)
    policy = DQNPolicy(merged(OFF_POLICY, n_sample(4), NETWORK))
    with pytest.raises(ArithmeticError, match="of the update"):
        fit(make_trainer, policy)
    monkeypatch.undo()
    fit(make_trainer, policy, overlap=False, mode="sync", num_workers=None)  # nothing of the first fit is left
    assert policy.learner.meanwhile is None


def test_weights_that_are_not_finite_are_found_in_their_round(make_trainer: MakeTrainer) -> None:
    class Breaks(DQNPolicy):
        def loss(self, batch: Any) -> Any:
            loss, report = super().loss(batch)
            return (loss * torch.nan if self.progress.train_iter == 7 else loss), report

    policy = Breaks(merged(OFF_POLICY, n_sample(6), NETWORK))
    with pytest.raises(NonFiniteError):
        fit(make_trainer, policy)
    assert policy.progress.train_iter <= 9


# ---------------------------------------------------------------------- between rounds


class Settings(Callback):
    """Sets an attribute of the envs before or after the updates of each round."""

    def __init__(self, hook: str) -> None:
        setattr(self, hook, self.set)

    def set(self, trainer: Any, pl_module: Any, *arguments: Any) -> None:
        envs, number = trainer.datamodule.training_envs(), trainer.global_step // 3
        envs.set_attr("number", number)
        assert envs.get_attr("number") == (number,) * NUM_ENVS


@pytest.mark.parametrize(("hook", "numbers"), [("on_train_batch_start", [1, 2, 2]), ("on_train_batch_end", [2, 2, 2])])
def test_settings_of_envs_hold_from_the_next_step_on(make_trainer: MakeTrainer, hook: str, numbers: Any) -> None:
    policy = DQNPolicy(merged(OFF_POLICY, n_sample(6), NETWORK))
    env = functools.partial(CountingEnv, lengths=(100,))
    datamodule = fit(make_trainer, policy, env, callbacks=[Settings(hook)], rounds=3)
    waiting = datamodule.collector._kept.state()[0]["next_obs"][:, 0]
    assert waiting.tolist() == [number for number in numbers for _ in range(NUM_ENVS)]


def test_copy_of_a_policy_in_a_fit_does_not_collect() -> None:
    assert copy.deepcopy({"meanwhile": Overlap.__new__(Overlap)}) == {"meanwhile": None}


def test_command_line_reads_the_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    data = {"env_id": "CartPole-v1", "num_envs": 2, "mode": "async", "max_env_step": 24, "overlap": True}
    quiet = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False, "limit_val_batches": 0}
    cfg = merged(OFF_POLICY, n_sample(2), NETWORK)
    Path("run.yaml").write_text(yaml.safe_dump({"model": {"cfg": cfg}, "data": data, "trainer": quiet}))
    made: list[bool] = []
    begin = Overlap.begin
    monkeypatch.setattr(Overlap, "begin", lambda self, *args: made.append(True) or begin(self, *args))  # type: ignore[func-returns-value]
    main(["fit", "--policy", "dqn", "--config", "run.yaml"])
    assert len(made) == 3


# ---------------------------------------------------------------------- what is refused


@pytest.mark.parametrize("mode", ["sync", "native", "tensor"])
@pytest.mark.parametrize("kind", [ReplayDataModule, RolloutDataModule])
def test_modes_without_env_processes_are_refused(kind: Any, mode: Any) -> None:
    allowed = (
        f"overlap must be False with mode='{mode}': envs can step while the policy learns only with mode=\"async\""
    )
    with pytest.raises(ValueError, match=allowed + ", got True"):
        kind("CartPole-v1", mode=mode, overlap=True)


def test_sources_that_do_not_collect_have_no_overlap() -> None:
    assert "overlap" not in inspect.signature(OfflineDataModule).parameters
    with pytest.raises(TypeError, match="overlap"):
        OfflineDataModule({}, overlap=True)
    with pytest.raises(TypeError, match="overlap"):
        RemoteReplayDataModule(None, "CartPole-v1", overlap=True)  # type: ignore[arg-type]


def test_whole_episodes_are_refused(make_trainer: MakeTrainer) -> None:
    config = {"collect": {"n_sample": None, "n_episode": 2, "collector": {"type": "episode"}}}
    policy = PPOPolicy(merged(ON_POLICY, config))
    with pytest.raises(ValueError, match="overlap must be False unless a collector of the type 'sample'"):
        fit(make_trainer, policy, max_env_step=64)
