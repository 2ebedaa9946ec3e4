"""Runs with ``mode="tensor"``: the same data as with arrays, nothing read on the host, errors, and exact resume."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode
from lightning.pytorch import Trainer
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils._python_dispatch import TorchDispatchMode

from lightning_ding import nested
from lightning_ding.callbacks import RunCheckpoint
from lightning_ding.datamodules import RolloutDataModule
from lightning_ding.datamodules.rank_state import load_collecting
from lightning_ding.envs.tensor import CartPole
from lightning_ding.envs.tensor.reader import TensorEnv
from lightning_ding.policy import A2CPolicy, DQNPolicy, PGPolicy, PPOPolicy, PQNPolicy, RecurrentPPOPolicy
from lightning_ding.policy.base import non_finite
from lightning_ding.policy.base.metrics import MeanMetrics
from lightning_ding.policy.base.non_finite import NonFiniteGuard
from lightning_ding.worker.collector.tensor import TensorCollector
from tests.envs.tensor.fakes import FromArrays, IsaacLike, ManiSkillLike
from tests.processes import run_ranks_of_lightning

N = 8
QUIET: dict[str, Any] = {
    "accelerator": "cpu",
    "logger": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "enable_checkpointing": False,
}


def trainer(**kwargs: Any) -> Trainer:
    return Trainer(**{**QUIET, **kwargs})


def short(policy_class: Any = PPOPolicy, **sections: Any) -> Any:
    """Return a policy with rollouts of 16 steps of 8 envs."""
    learn = {"batch_size": 64, **sections.pop("learn", {})}
    learn |= {} if policy_class is A2CPolicy else {"epoch_per_collect": 2}
    if policy_class is PQNPolicy:  # schedules that do not depend on the budget
        learn["lr_scheduler"], sections["other"] = {"type": "constant"}, {"eps": {"decay": 500}}
    return policy_class({"collect": {"n_sample": 16 * N}, "learn": learn, **sections})


def with_gtrxl(config: dict[str, Any]) -> RecurrentPPOPolicy:
    """Return a policy whose memory is that of a transformer."""
    core = {"type": "gtrxl", "hidden_size": 16, "memory_length": 5}
    return RecurrentPPOPolicy({**config, "model": {"core": core, "encoder_hidden_size_list": [16]}})


def short_cart_poles() -> Any:
    """Return gymnasium's envs with a time limit in the middle of usual episodes, as tensors."""
    make = lambda: gym.make("CartPole-v1", max_episode_steps=14)  # noqa: E731
    return FromArrays(gym.vector.SyncVectorEnv([make] * N, autoreset_mode=AutoresetMode.SAME_STEP))


def set_up(policy: Any, mode: str, env: Any, datamodule_class: Any = RolloutDataModule, **kwargs: Any) -> Any:
    """Return a datamodule that has begun a fit."""
    datamodule = datamodule_class(env, num_envs=N, mode=mode, seed=5, **kwargs)
    policy.trainer = one = trainer()
    one.strategy._lightning_module = policy
    one.datamodule = datamodule  # type: ignore[attr-defined]
    datamodule.trainer = one
    datamodule.setup("fit")
    policy.train()
    return datamodule


def acts_by_script(policy: Any) -> None:
    """Let a policy take actions that do not depend on the source of its random numbers."""
    rng = np.random.default_rng(0)
    policy._draw = lambda distribution, logit: torch.from_numpy(rng.integers(2, size=N))


def of_both_paths(policy_class: Any) -> list[tuple[Any, Any]]:
    """Return the policy and two rollouts of the same trajectories, with arrays and as tensors."""
    found = []
    weights: Any = None
    for mode, env in (("sync", "CartPole-v1"), ("tensor", short_cart_poles)):
        policy = short(policy_class)
        kwargs = {"env_kwargs": {"max_episode_steps": 14}} if mode == "sync" else {}
        datamodule = set_up(policy, mode, env, **kwargs)
        weights = weights or policy.model.state_dict()
        policy.model.load_state_dict(weights)
        datamodule._start()
        seeds = list(range(100, 100 + N))
        if mode == "sync":
            datamodule.collector._stepper.reset(seeds)
            obs = datamodule.collector._stepper.obs
        else:
            obs = datamodule.collector._env.reset(seeds)
            datamodule.collector._obs = obs
        acts_by_script(policy)
        rollouts = [nested.apply(torch.clone, datamodule._next_round()) for _ in range(2)]
        found.append((policy, rollouts))
        datamodule.close()
    return found


@pytest.fixture(scope="module")
def both() -> list[tuple[Any, Any]]:
    return of_both_paths(PPOPolicy)


def test_rollout_equals_that_with_arrays(both: list[tuple[Any, Any]]) -> None:
    (_, arrays), (_, tensors) = both
    for one, other in zip(arrays, tensors, strict=True):
        for name in ("obs", "action", "log_prob", "reward", "next_obs", "terminated", "truncated", "env_id"):
            assert one[name].dtype == other[name].dtype, name
            assert torch.equal(one[name], other[name]), name
    ended = [rollout["terminated"] | rollout["truncated"] for rollout in tensors]
    assert all(rollout["truncated"].any() and rollout["terminated"].any() for rollout in tensors)
    assert all(one.sum() >= N for one in ended)


def test_advantages_equal_those_with_arrays(both: list[tuple[Any, Any]]) -> None:
    (first, arrays), (second, tensors) = both
    for one, other in zip(arrays, tensors, strict=True):
        want = first._learning_data(one, first._sequences_of(one))
        found = second._learning_data(other, second._sequences_of(other))
        assert torch.equal(found["advantage"], want["advantage"])
        assert torch.equal(found["return"], want["return"])


def test_returns_of_pqn_equal_those_with_arrays() -> None:
    (first, arrays), (second, tensors) = of_both_paths(PQNPolicy)
    for one, other in zip(arrays, tensors, strict=True):
        want = first._learning_data(one, first._sequences_of(one))
        found = second._learning_data(other, second._sequences_of(other))
        assert torch.equal(found["return"], want["return"])


def test_truncated_step_bootstraps_from_the_final_observation_and_a_terminated_one_does_not() -> None:
    policy = short()
    datamodule = set_up(policy, "tensor", short_cart_poles)
    datamodule._start()
    rollout = datamodule._next_round()
    policy.config = policy.config.__class__(**{**vars(policy.config)})
    data = policy._learning_data(rollout, policy._sequences_of(rollout))
    gamma = policy.config.discount_factor
    with torch.no_grad():
        final = policy._returns_of(policy._values(rollout["next_obs"]))
    target = policy._returns_of(data["return"])
    truncated = rollout["truncated"] & ~rollout["terminated"]
    torch.testing.assert_close(target[truncated], 1 + gamma * final[truncated])
    torch.testing.assert_close(target[rollout["terminated"]], torch.ones(int(rollout["terminated"].sum())))
    datamodule.close()


class InPlace(CartPole):
    """An env that writes the results of each step into the same memory, as Isaac Gym's envs do."""

    gives_final = True

    def reset(self, **kwargs: Any) -> Any:
        self.obs_memory = super().reset(**kwargs)[0].clone()
        self.success_memory = torch.zeros(self.num_envs)
        return self.obs_memory, {}

    def step(self, actions: torch.Tensor) -> Any:
        obs, reward, terminated, truncated, info = super().step(actions)
        self.obs_memory.copy_(obs)
        self.success_memory.copy_(terminated | truncated)
        final = {"final_obs": info["final_obs"]} if self.gives_final else {}
        return self.obs_memory, reward, terminated, truncated, {**final, "success": self.success_memory}


class InPlaceWithoutFinal(InPlace):
    """The same without final observations."""

    gives_final = False


@pytest.mark.parametrize("env", [InPlace, InPlaceWithoutFinal])
def test_env_may_write_into_the_memory_of_its_results(env: Any) -> None:
    policy = short()
    datamodule = set_up(policy, "tensor", env, env_kwargs={"max_episode_steps": 9})
    datamodule._start()
    first = datamodule.collector._obs.clone()
    rollout = {name: column.view(16, N, *column.shape[1:]) for name, column in datamodule._next_round().items()}
    ended = rollout["terminated"] | rollout["truncated"]
    obs, next_obs = rollout["obs"], rollout["next_obs"]
    assert torch.equal(obs[0], first)
    assert torch.equal(obs[1:][~ended[:-1]], next_obs[:-1][~ended[:-1]])
    assert not (obs == next_obs).all(-1)[~ended].any()
    assert torch.equal(next_obs[ended], obs[ended]) == (env is InPlaceWithoutFinal)
    datamodule.pop_episode_sums()
    assert datamodule.pop_infos()["success_rate"] == (ended.sum(), ended.sum())
    datamodule.close()


# ---------------------------------------------------------------------- nothing is read on the host


class NothingIsRead(TorchFunctionMode):
    """Raises when a tensor becomes an array or a Python number."""

    methods = frozenset(
        {"numpy", "item", "tolist", "cpu", "__array__", "__bool__", "__float__", "__int__", "__index__"}
    )

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = (resolve_name(func) or "").rpartition(".")[2]
        if name in self.methods:
            raise AssertionError(f"a tensor was read by {name}")
        return func(*args, **(kwargs or {}))


class NoScalar(TorchDispatchMode):
    """Raises when an operation reads a number of a tensor."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            raise AssertionError("a number was read")
        return func(*args, **(kwargs or {}))


no_scalar: Callable[[], Any] = NoScalar  # torch's modes have no annotations


@pytest.mark.parametrize("policy_class", [PPOPolicy, A2CPolicy, PQNPolicy, RecurrentPPOPolicy, with_gtrxl])
def test_a_round_reads_nothing_on_the_host(policy_class: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # on a device, the guard leaves the check of an update to the optimizer and reads the results once a round
    monkeypatch.setattr(non_finite, "READ_AT_ONCE", ())
    looks: list[bool] = []

    def look(self: NonFiniteGuard) -> bool:
        looks.append(True)
        self._unseen.clear()
        return True

    monkeypatch.setattr(NonFiniteGuard, "look", look)
    policy = short(policy_class)
    datamodule = set_up(policy, "tensor", "CartPole-v1", env_kwargs={"max_episode_steps": 9})
    datamodule._start()
    policy.training_step(datamodule._next_round(), 0)
    with NothingIsRead(), no_scalar():
        policy.training_step(datamodule._next_round(), 1)
    assert looks
    returns, lengths, count = datamodule.pop_episode_sums()
    assert count >= 2 * N
    assert returns == lengths  # a reward of 1 for each step
    datamodule.close()


def test_the_modes_of_this_test_see_reads() -> None:
    for read in (lambda x: x.numpy(), lambda x: x.item(), bool, float, lambda x: x.tolist(), np.asarray):
        with pytest.raises(AssertionError, match="read"), NothingIsRead(), no_scalar():
            read(torch.ones(()))


# ---------------------------------------------------------------------- whole runs


@pytest.mark.parametrize("policy_class", [PPOPolicy, A2CPolicy, PQNPolicy, RecurrentPPOPolicy, with_gtrxl])
def test_a_fit_collects_learns_and_evaluates(policy_class: Any) -> None:
    policy = short(policy_class)
    datamodule = RolloutDataModule("CartPole-v1", num_envs=N, mode="tensor", max_env_step=512, n_evaluator_episode=3)
    before = [parameter.clone() for parameter in policy.parameters()]
    one = trainer(log_every_n_steps=2)
    one.fit(policy, datamodule)
    assert policy.progress.env_step == 512
    assert policy.progress.episode > 0
    assert one.callback_metrics["collect/return_mean"] == one.callback_metrics["collect/length_mean"]
    assert one.callback_metrics["eval/return_mean"] > 0
    if before:
        assert not all(torch.equal(*pair) for pair in zip(before, policy.parameters(), strict=True))


@pytest.mark.parametrize("env", [IsaacLike, ManiSkillLike])
def test_envs_of_other_packages_train(env: Any, caplog: pytest.LogCaptureFixture) -> None:
    one = trainer(log_every_n_steps=1)
    one.fit(short(), RolloutDataModule(env, num_envs=N, mode="tensor", max_env_step=256, n_evaluator_episode=2))
    said = [line.message for line in caplog.records if "gives no final observations" in line.message]
    assert [line[:10] for line in said] == (["IsaacLike "] if env is IsaacLike else [])
    if env is IsaacLike:
        assert one.callback_metrics["collect/Episode/tracking"] == 1
    else:
        assert one.callback_metrics["collect/success_rate"] == 0
        assert one.callback_metrics["eval/return_mean"] > 0


def test_object_trains_without_evaluations_and_stays_open() -> None:
    class Closing(CartPole):
        is_closed = False

        def close(self, **kwargs: Any) -> None:
            self.is_closed = True

    env: Any = Closing(N)
    policy, one = short(), trainer(log_every_n_steps=1)
    one.fit(policy, RolloutDataModule(env, num_envs=N, mode="tensor", max_env_step=256))
    assert policy.progress.env_step == 256
    assert not env.is_closed
    assert "eval/return_mean" not in one.callback_metrics


def test_continuous_actions_train() -> None:
    policy = short()
    trainer().fit(policy, RolloutDataModule("Pendulum-v1", num_envs=N, mode="tensor", max_env_step=128))
    assert policy.progress.env_step == 128


def test_observations_are_normalised() -> None:
    policy = short()
    datamodule = RolloutDataModule("CartPole-v1", num_envs=N, mode="tensor", max_env_step=256, norm_obs=True)
    trainer().fit(policy, datamodule)
    assert int(policy.normaliser.get_submodule("obs").count) == 256


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Return what two ranks ended with, with PPO and with DQN."""
    folder = tmp_path_factory.mktemp("ranks")
    run_ranks_of_lightning(Path(__file__).with_name("tensor_ranks_script.py"), folder)
    return [torch.load(folder / f"rank_{rank}.pt", weights_only=True) for rank in range(2)]


def test_each_rank_has_a_shard_of_the_envs(ranks: list[dict[str, Any]]) -> None:
    one, other = (rank["ppo"] for rank in ranks)
    assert one["env_step"] == other["env_step"] == 512
    assert one["env_step_of_rank"] == other["env_step_of_rank"] == 256
    assert one["episode"] == other["episode"] == one["episodes_of_rank"] + other["episodes_of_rank"] > 0
    assert not torch.equal(one["obs"], other["obs"])
    for name, tensor in one["weights"].items():
        assert torch.equal(tensor, other["weights"][name]), name


def test_each_rank_has_a_buffer_of_its_envs(ranks: list[dict[str, Any]]) -> None:
    one, other = (rank["dqn"] for rank in ranks)
    assert one["env_step"] == other["env_step"] == 320
    assert one["updates"] == other["updates"] == 2 * 16  # after four rounds of warm-up
    for rank in (one, other):
        assert len(rank["obs"]) == 160
        assert (rank["drawn"][:, None] == rank["obs"]).all(-1).any(1).all()
    assert not torch.equal(one["obs"], other["obs"])
    assert not torch.equal(one["rows"], other["rows"])
    for name, tensor in one["weights"].items():
        assert torch.equal(tensor, other["weights"][name]), name


# ---------------------------------------------------------------------- errors


def fit(policy: Any, datamodule_class: Any = RolloutDataModule, **kwargs: Any) -> None:
    arguments = {"env_id": "CartPole-v1", "num_envs": N, "mode": "tensor", "max_env_step": 64, **kwargs}
    trainer().fit(policy, datamodule_class(**arguments))


BAD: dict[str, tuple[Callable[[], None], str]] = {
    "algorithm": (
        lambda: fit(PGPolicy()),
        "policy must be one of a2c, .*ppo, .*or a class .* got 'PGPolicy'",
    ),
    "replay": (lambda: fit(DQNPolicy()), "policy must be one that learns from rollouts"),
    "collector": (
        lambda: fit(short(collect={"n_episode": 8, "n_sample": None, "collector": {"type": "episode"}})),
        'collect.collector.type must be "sample"',
    ),
    "reward": (lambda: fit(short(), norm_reward=True), "norm_reward must be False"),
    "sde": (lambda: fit(short(model={"use_sde": True}), env_id="Pendulum-v1"), "model.use_sde must be False"),
    "wrappers": (lambda: fit(short(), wrappers="flatten"), "wrappers must be"),
    "faults": (
        lambda: fit(short(collect={"collector": {"env_fault": "drop"}, "n_sample": 64})),
        "mode must be one of \\('sync', 'async'\\)",
    ),
    "arguments of an object": (
        lambda: fit(short(), env_id=CartPole(N), env_kwargs={"max_episode_steps": 3}),
        "env_kwargs must be {} with an object as env_id",
    ),
    "statistic": (lambda: fit(short(), info_keys={"laps": "sum"}), "info_keys\\['laps'\\] must be \"last\""),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_work_is_refused_at_the_start(case: str) -> None:
    run, text = BAD[case]
    with pytest.raises(ValueError, match=text):
        run()


# ---------------------------------------------------------------------- exact resume


def run_to(
    folder: Path,
    end: int,
    policy_class: Any = PPOPolicy,
    env: Any = "CartPole-v1",
    compile: Any = False,
    accelerator: str = "cpu",
    **kwargs: Any,
) -> Any:
    """Train to an env step with checkpoints in a folder, resuming if ``ckpt_path`` is given; return the policy."""
    torch.manual_seed(0)
    policy = short(policy_class, compile=compile)
    datamodule = RolloutDataModule(
        env, num_envs=N, mode="tensor", seed=3, max_env_step=end, rounds_per_epoch=2, n_evaluator_episode=2
    )
    flags = {"enable_checkpointing": True, "accelerator": accelerator, "devices": 1}
    one = trainer(default_root_dir=folder, callbacks=[RunCheckpoint(folder)], **flags)
    one.fit(policy, datamodule, **kwargs)
    return policy


@pytest.mark.parametrize("policy_class", [PPOPolicy, PQNPolicy, RecurrentPPOPolicy, with_gtrxl])
def test_a_resumed_run_is_exact(policy_class: Any, tmp_path: Path) -> None:
    whole = run_to(tmp_path / "whole", 768, policy_class)
    run_to(tmp_path / "half", 256, policy_class)
    resumed = run_to(tmp_path / "half", 768, policy_class, ckpt_path=tmp_path / "half" / "last.ckpt")
    assert resumed.progress.env_step == whole.progress.env_step == 768
    assert resumed.progress.episode == whole.progress.episode
    for (name, one), other in zip(whole.state_dict().items(), resumed.state_dict().values(), strict=True):
        assert torch.equal(one, other), name


def test_a_repeated_run_is_exact(tmp_path: Path) -> None:
    first, second = (run_to(tmp_path / name, 256) for name in ("first", "second"))
    for one, other in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(one, other)


class Opaque(CartPole):
    """An env whose state cannot be read."""

    state_dict = load_state_dict = None  # type: ignore[assignment]

    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs)
        self.simulator = object()


class InAttributes(CartPole):
    """An env whose state is in attributes: its first states do not depend on a generator."""

    state_dict = load_state_dict = None  # type: ignore[assignment]

    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs)
        del self._generator
        self.starts = torch.zeros((), dtype=torch.int64)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return super().reset()

    def _new_states(self) -> torch.Tensor:
        self.starts = self.starts + 1
        numbers = torch.arange(4 * self.num_envs).view(4, -1) + self.starts
        return self._first_state(torch.frac(numbers * 0.618))


def test_env_that_cannot_hand_over_its_state_is_named_at_the_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run_to(tmp_path, 256, env=Opaque)
    lines = [line.message for line in caplog.records if "the checkpoints of this run will not contain" in line.message]
    assert len(lines) == 1
    assert "the state of its envs, so that a resumed run starts new episodes: Opaque." in lines[0]


def test_state_in_attributes_is_restored(tmp_path: Path) -> None:
    whole = run_to(tmp_path / "whole", 512, env=InAttributes)
    run_to(tmp_path / "half", 256, env=InAttributes)
    resumed = run_to(tmp_path / "half", 512, env=InAttributes, ckpt_path=tmp_path / "half" / "last.ckpt")
    for one, other in zip(whole.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(one, other)


class WithOwnState(CartPole):
    """An env whose rewards follow from the number of steps so far, in a tensor and a number that steps set."""

    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs)
        self.count, self.number, self.unseen = torch.zeros(num_envs), 0, lambda: None

    def _advance(self, state: torch.Tensor, action: torch.Tensor) -> tuple[torch.Tensor, ...]:  # type: ignore[override]
        self.count, self.number = self.count + 1, self.number + 1
        state, reward, terminated = super()._advance(state, action)
        return state, reward + self.count.sin() + self.number % 3, terminated


def test_own_attributes_of_a_batched_env_are_restored(tmp_path: Path) -> None:
    whole = run_to(tmp_path / "whole", 512, env=WithOwnState)
    run_to(tmp_path / "half", 256, env=WithOwnState)
    resumed = run_to(tmp_path / "half", 512, env=WithOwnState, ckpt_path=tmp_path / "half" / "last.ckpt")
    for one, other in zip(whole.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"num_envs": 4}, "CartPole: num_envs must be 8, as in the saved state, got 4"),
        ({"env_kwargs": {"max_episode_steps": 9}}, "CartPole: made_with must be {}, as in the saved state"),
    ],
    ids=["number", "arguments"],
)
def test_envs_that_were_made_in_another_way_start_new_episodes(
    changed: dict[str, Any], text: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run_to(tmp_path, 256)
    arguments: dict[str, Any] = {"num_envs": N, "mode": "tensor", "seed": 3, "max_env_step": 512, **changed}
    datamodule, policy = RolloutDataModule("CartPole-v1", **arguments), short()
    trainer().fit(policy, datamodule, ckpt_path=tmp_path / "last.ckpt")
    assert policy.progress.env_step == 512
    assert [text in line.message for line in caplog.records if "start new episodes" in line.message] == [True]


def test_episodes_after_a_state_of_more_envs_have_new_numbers() -> None:
    datamodule = set_up(short(), "tensor", "CartPole-v1")
    datamodule._start()
    ids = datamodule._next_round()["episode_id"]
    state = datamodule.collector.state_dict()
    fewer = TensorCollector(TensorEnv(CartPole(2)), datamodule._policy)
    fewer.reset_env()
    fewer.load_state_dict(state, continues=False)
    fewer.reset_env()
    assert fewer._first_episode.min() * 2 > ids.max()
    datamodule.close()


def test_checkpoint_of_a_gpu_is_read_without_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(torch.serialization, "location_tag", lambda storage: "cuda:0")
        torch.save({"obs": torch.ones(3)}, tmp_path / "collecting.pt")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert load_collecting(tmp_path / "collecting.pt")["obs"].tolist() == [1, 1, 1]


def test_numbers_for_the_log_are_on_the_device_of_the_envs() -> None:
    metrics = MeanMetrics()
    env, policy = SimpleNamespace(device=torch.device("meta"), env=None), SimpleNamespace(collect_metrics=metrics)
    collector = TensorCollector(env, policy)  # type: ignore[arg-type]
    collector._log({"log": {"by_float": 0.5, "by_tensor": torch.ones(1), "text": "no number"}})
    collector._log({"log": {"by_float": torch.ones(())}})
    assert {name: total.device.type for name, total in metrics._sums.items()} == {
        "by_float": "meta",
        "by_tensor": "meta",
    }


@pytest.mark.parametrize(("of_env", "of_policy"), [("meta:1", "meta:0"), ("cpu", "meta"), ("meta:1", "cpu")])
def test_envs_on_another_device_than_the_policy_are_refused(of_env: str, of_policy: str) -> None:
    env = SimpleNamespace(device=torch.device(of_env), env=None, num_envs=2, reset=lambda: None)
    collector = TensorCollector(env, SimpleNamespace(device=torch.device(of_policy)))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=f"on the device of the policy, {of_policy}, got {of_env}: choose it with"):
        collector.reset_env()


@pytest.mark.parametrize(("of_env", "of_policy"), [("cpu", "cpu:0"), ("cpu:0", "cpu"), ("cpu", "cpu")])
def test_a_device_without_an_index_is_any_of_its_type(of_env: str, of_policy: str) -> None:
    env = SimpleNamespace(device=torch.device(of_env), env=None, num_envs=2, reset=lambda: torch.zeros(2, 1))
    policy = SimpleNamespace(device=torch.device(of_policy), reset_collect_where=lambda ended: None)
    collector = TensorCollector(env, policy)  # type: ignore[arg-type]
    collector.reset_env()
    assert collector._env_id.tolist() == [0, 1]
