"""A policy that is written as DI-engine's documentation teaches it works with learner, workers and Trainer."""

from __future__ import annotations

from collections import namedtuple
from pathlib import Path
from typing import Any, ClassVar, cast

import gymnasium as gym
import numpy as np
import pytest
import torch
from lightning import seed_everything
from torch import nn
from torch.testing import assert_close
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import MeanSquaredError

from lightning_ding.config import deep_merge
from lightning_ding.datamodules import ReplayDataModule, RolloutDataModule
from lightning_ding.distributed.config import resolve_policy
from lightning_ding.entry.lightning_cli import policy_class
from lightning_ding.envs import make_vector_env
from lightning_ding.policy import DQNPolicy, Policy, ReferencePolicy, create_policy, get_policy_cls
from lightning_ding.registry import POLICY_REGISTRY
from lightning_ding.worker import (
    BaseLearner,
    BaseSerialCommander,
    EpisodeSerialCollector,
    InteractionSerialEvaluator,
    MetricSerialEvaluator,
    SampleSerialCollector,
    create_buffer,
)
from tests.conftest import MakeTrainer
from tests.toys.reference_policies import PlainDQN, PlainDQNCommand, PlainPG

Timestep = namedtuple("Timestep", ["obs", "reward", "done", "info"])
Policies = Any


def samples(number: int = 4) -> list[dict[str, Any]]:
    generator = torch.Generator().manual_seed(0)
    return [
        {
            "obs": torch.randn(4, generator=generator),
            "next_obs": torch.randn(4, generator=generator),
            "action": torch.tensor([row % 2]),
            "reward": torch.tensor([1.0]),
            "done": row == 0,
        }
        for row in range(number)
    ]


def envs(number: int = 2) -> Any:
    return make_vector_env("CartPole-v1", number)


# The class


def test_a_dict_config_gives_a_class_the_base_for_policies_in_dings_form() -> None:
    bases = [one.__name__ for one in PlainDQNCommand.__mro__[:5]]
    assert bases == ["PlainDQNCommand", "PlainDQN", "EpsCommandModePolicy", "ReferencePolicy", "Policy"]
    assert isinstance(PlainDQN(), Policy)


def test_default_config_merges_the_configs_of_the_bases() -> None:
    class Smaller(PlainDQN):
        config = {"learn": {"batch_size": 2}, "mine": 1}  # type: ignore[misc]  # noqa: RUF012

    cfg = Smaller.default_config()
    assert (cfg.learn.batch_size, cfg.learn.learning_rate, cfg.mine, cfg.cfg_type) == (2, 0.01, 1, "SmallerDict")
    assert (cfg.cuda, cfg.multi_gpu, cfg.traj_len_inf) == (False, False, False)
    cfg.learn.batch_size = 99
    assert Smaller.default_config().learn.batch_size == 2
    assert cast(Any, Smaller({"learn": {"batch_size": 3}}))._cfg.learn.batch_size == 3


@pytest.mark.parametrize(
    ("method", "call"),
    [
        ("_forward_learn", lambda policy: policy.learn_mode.forward(samples())),
        ("_forward_collect", lambda policy: policy.collect_mode.forward({0: torch.zeros(4)})),
        ("_forward_eval", lambda policy: policy.eval_mode.forward({0: torch.zeros(4)})),
    ],
)
def test_a_method_that_a_subclass_misses_is_named_when_it_is_called(method: str, call: Any) -> None:
    class Bare(Policy[Any]):
        config = {"on_policy": False}  # noqa: RUF012

    with pytest.raises(NotImplementedError, match=rf"^Bare must implement {method} "):
        call(Bare(model=nn.Linear(4, 2)))


def test_class_without_a_config_is_in_the_form_too() -> None:
    class Bare(Policy[Any]):
        pass

    policy = Bare({"learn": {"batch_size": 3}}, model=nn.Linear(4, 2))
    assert policy.learn_mode.get_attribute("batch_size") == 3
    with pytest.raises(NotImplementedError, match=r"^Bare must implement _process_transition "):
        policy.collect_mode.process_transition(torch.zeros(4), {}, Timestep(torch.zeros(4), 1.0, False, {}))


def test_a_policy_without_a_network_names_default_model() -> None:
    class Bare(Policy[Any]):
        config = {"on_policy": False}  # noqa: RUF012

    with pytest.raises(NotImplementedError, match=r"^Bare must implement default_model "):
        Bare()


def test_registered_class_is_created_by_its_type() -> None:
    POLICY_REGISTRY.register("plain_dqn")(PlainDQN)
    try:
        assert get_policy_cls({"type": "plain_dqn"}) is PlainDQN
        policy: Any = create_policy(PlainDQN.default_config())
        assert policy._cfg.learn.target_update_freq == 5
    finally:
        del cast(Any, POLICY_REGISTRY)._entries["plain_dqn"]


@pytest.mark.parametrize(
    ("cfg", "message"),
    [
        ({"traj_len_inf": True}, "traj_len_inf must be False: collect whole episodes"),
        ({"collect": {"collector": {"typ": "sample"}}}, "unknown config key 'collect.collector.typ'"),
        ({"eval": {"evaluator": {"n_episode": 0}}}, "n_episode must be >= 1"),
    ],
)
def test_a_key_of_a_worker_that_cannot_be_is_refused(cfg: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PlainDQN(cfg)


def test_command_line_and_distributed_runs_name_what_such_a_class_lacks() -> None:
    with pytest.raises(TypeError, match=r"policy must name a class with a config_class, got 'tests.toys.*PlainDQN'"):
        policy_class("tests.toys.reference_policies.PlainDQN")
    POLICY_REGISTRY.register("plain_dqn")(PlainDQN)
    try:
        with pytest.raises(ValueError, match=r"main.policy.type must be that of a class with a config_class"):
            resolve_policy({"type": "plain_dqn"})
    finally:
        del cast(Any, POLICY_REGISTRY)._entries["plain_dqn"]


def test_dict_config_of_a_policy_with_a_config_class_is_refused() -> None:
    message = r"^Mine.config is not read, because the defaults are those of DQNConfig; set others in a dataclass"
    with pytest.raises(TypeError, match=message):
        type("Mine", (DQNPolicy,), {"config": {"nstep": 3}})


# Names


def test_names_that_the_documentation_gives() -> None:
    policy: Any = PlainDQN({"learn": {"batch_size": 5}})
    assert policy._cfg is policy.cfg
    assert policy._model is policy.model is policy._learn_model is policy._collect_model is policy._eval_model
    assert (policy._cuda, policy._rank, str(policy._device)) == (False, 0, "cpu")
    values = {"batch_size": 5, "n_sample": 8, "n_episode": None, "unroll_len": 1, "priority": False, "on_policy": False}
    assert {name: policy._get_attribute(name) for name in values} == values
    assert policy.learn_mode.get_attribute("gamma") == 0.9  # the class sets _gamma
    policy._set_attribute("gamma", 0.5)
    assert policy._gamma == policy.collect_mode.get_attribute("gamma") == 0.5
    with pytest.raises(NotImplementedError, match="PlainDQN has no attribute 'nothing' for workers"):
        policy._get_attribute("nothing")


def test_enabled_fields_alone_are_initialised() -> None:
    policy: Any = PlainDQN(enable_field=["eval"])
    assert "_optimizer" not in vars(policy)
    assert policy.eval_mode.forward({0: torch.zeros(4)})[0]["action"].shape == (1,)
    with pytest.raises(RuntimeError, match="the field 'learn' is not enabled"):
        policy.learn_mode.forward(samples())
    with pytest.raises(ValueError, match="enable_field must be among"):
        PlainDQN(enable_field=["lern"])


# Modes


def test_learn_mode_passes_the_list_and_returns_what_the_policy_returns() -> None:
    policy: Any = PlainDQN()
    before = {name: value.clone() for name, value in policy.model.state_dict().items()}
    report = policy.learn_mode.forward(samples())
    assert report["cur_lr"] == 0.01
    assert isinstance(report["total_loss"], float)
    assert len(report["priority"]) == 4
    assert any(not torch.equal(value, before[name]) for name, value in policy.model.state_dict().items())


def test_batch_with_a_leading_axis_gives_the_loss_of_the_list() -> None:
    columns = {name: torch.stack([torch.as_tensor(one[name]) for one in samples()]) for name in samples()[0]}
    torch.manual_seed(0)
    by_list = PlainDQN().learn_mode.forward(samples())
    torch.manual_seed(0)
    by_columns = PlainDQN().learn_mode.forward(columns)
    assert by_list["total_loss"] == pytest.approx(by_columns["total_loss"])


def test_modes_take_observations_by_env_and_in_a_batch() -> None:
    policy: Any = PlainDQN()
    obs = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
    for mode in (policy.eval_mode, policy.collect_mode):
        by_env = mode.forward({5: obs[0], 7: torch.from_numpy(obs[1]), 9: obs[2]})
        assert list(by_env) == [5, 7, 9]
        assert by_env[5]["action"].shape == (1,)
        batch = mode.forward(obs)["action"]
        assert batch.tolist() == [by_env[env_id]["action"].item() for env_id in (5, 7, 9)]
    assert policy(torch.from_numpy(obs)).shape == (3,)


def test_transition_of_one_env_is_made_of_its_timestep() -> None:
    policy: Any = PlainDQN()
    timestep = Timestep(torch.ones(4), torch.tensor([1.0]), True, {"TimeLimit.truncated": True})
    output = policy.collect_mode.forward({0: torch.zeros(4)})[0]
    made = policy.collect_mode.process_transition(torch.zeros(4), output, timestep)
    assert made["next_obs"] is timestep.obs
    assert (made["done"], made["reward"].item()) == (True, 1.0)
    assert policy.collect_mode.get_train_sample([made]) == [made]


def test_state_of_the_learn_mode_is_that_of_the_policy() -> None:
    policy, other = cast(Any, PlainDQN()), cast(Any, PlainDQN())
    for _ in range(3):
        policy.learn_mode.forward(samples())
    other.learn_mode.load_state_dict(policy.learn_mode.state_dict())
    assert policy.learn_mode.forward(samples()) == other.learn_mode.forward(samples())
    state = PlainPG().learn_mode.state_dict()  # the class has no method for it
    assert set(state) == {"model", "optimizer"}


# Workers


def test_learner_trains_with_a_list() -> None:
    learner = BaseLearner(policy=PlainDQN())
    (report,) = learner.train(samples(), envstep=4)
    assert report["total_loss"] > 0
    assert learner.train_iter == 1
    assert len(learner.priority_info["priority"]) == 4


def test_collector_returns_the_transitions_of_the_policy() -> None:
    policy: Any = PlainDQN()
    collector = SampleSerialCollector(env=envs(), policy=policy.collect_mode)
    data = collector.collect(10, policy_kwargs={"eps": 0.5})
    shapes = {name: data[name].shape for name in ("obs", "next_obs", "action", "reward", "done")}
    expected = {"obs": (10, 4), "next_obs": (10, 4), "action": (10, 1), "reward": (10, 1), "done": (10,)}
    assert shapes == expected
    steps = {"obs": data["obs"][:5], "next_obs": data["next_obs"][:5]}  # of the first env, in their order
    ended = data["done"][:4]
    assert_close(steps["next_obs"][:4][~ended], steps["obs"][1:][~ended])


def test_random_actions_make_transitions_of_the_same_form() -> None:
    policy: Any = PlainDQN()
    collector = SampleSerialCollector(env=envs(), policy=policy.collect_mode)
    random, own = collector.collect(6, random_collect=True), collector.collect(6)
    assert {name: column.shape for name, column in random.items()} == {
        name: column.shape for name, column in own.items()
    }


def test_train_samples_are_made_of_each_episode_of_each_env() -> None:
    seen: list[list[int]] = []

    class Watching(PlainDQN):
        def _get_train_sample(self, transitions: Any) -> Any:
            seen.append([int(one["episode_id"]) for one in transitions])
            assert all(one["env_id"] == transitions[0]["env_id"] for one in transitions)
            return [{**one, "place": place} for place, one in enumerate(transitions)]

    collector = SampleSerialCollector(env=envs(), policy=cast(Any, Watching()).collect_mode)
    data = collector.collect(60)
    assert sum(map(len, seen)) == 60
    assert all(len(set(ids)) == 1 for ids in seen)
    assert data["place"].tolist() == [place for ids in seen for place in range(len(ids))]


def test_a_time_limit_is_an_end_that_the_info_names() -> None:
    found: list[tuple[bool, bool]] = []

    class Watching(PlainDQN):
        def _process_transition(self, obs: Any, policy_output: Any, timestep: Any) -> Any:
            found.append((timestep.done, timestep.info["TimeLimit.truncated"]))
            return super()._process_transition(obs, policy_output, timestep)

    env = make_vector_env("CartPole-v1", 1, wrappers=[lambda one: gym.wrappers.TimeLimit(one, 3)])
    data = SampleSerialCollector(env=env, policy=cast(Any, Watching()).collect_mode).collect(3)
    assert found[:3] == [(False, False), (False, False), (True, True)]
    assert data["done"].tolist() == [False, False, True]
    assert (data["terminated"].tolist()[2], data["truncated"].tolist()[2]) == (False, True)


def test_collector_of_episodes_gives_samples_of_the_policy() -> None:
    policy: Any = PlainPG()
    collector = EpisodeSerialCollector({"get_train_sample": True}, env=envs(), policy=policy.collect_mode)
    data = cast(Any, collector.collect(2))
    last = data["done"].nonzero()[0]
    assert_close(data["return"][last], np.ones((2, 1), np.float32))
    before = data["return"][last - 1]
    assert_close(before, np.full((2, 1), 1.5, np.float32))  # 1 + 0.5 * 1


def test_loop_of_the_documentation_collects_stores_and_learns() -> None:
    policy: Any = PlainDQNCommand()
    collector = SampleSerialCollector(env=envs(), policy=policy.collect_mode)
    learner, buffer = BaseLearner(policy=policy.learn_mode), create_buffer({"type": "naive"})
    commander = BaseSerialCommander(None, learner, collector, None, buffer, policy.command_mode)
    evaluator = InteractionSerialEvaluator({"n_episode": 2}, env=envs(), policy=policy.eval_mode)
    for _ in range(3):
        settings = commander.step()
        buffer.push(collector.collect(train_iter=learner.train_iter, policy_kwargs=settings), collector.envstep)
        learner.train(buffer.sample(4, learner.train_iter), collector.envstep)
    assert settings["eps"] == pytest.approx(0.9 - 0.8 * 16 / 100)
    _, info = evaluator.eval(train_iter=learner.train_iter, envstep=collector.envstep)
    assert len(info["eval_episode_return"]) == 2


class Wrapper:
    """A network in a wrapper that is no module, as those of ``model_wrap``."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def __call__(self, *args: Any) -> Any:
        return self._model(*args)


class Wrapped(PlainDQN):
    """Wraps its target network, and has an optimizer of a tensor that is no parameter."""

    def _init_learn(self) -> None:
        super()._init_learn()
        self._target_model: Any = Wrapper(cast(nn.Module, self._target_model))
        self._alpha = torch.zeros(1, requires_grad=True)
        self._alpha_optim = torch.optim.SGD([self._alpha], lr=0.1)

    def _forward_learn(self, data: Any) -> dict[str, Any]:
        self._alpha.grad = torch.ones(1)
        self._alpha_optim.step()
        return dict(super()._forward_learn(data))


# In a Trainer


def test_fit_of_a_policy_with_a_wrapped_network_and_a_tensor_to_learn(make_trainer: MakeTrainer) -> None:
    policy: Any = Wrapped()
    assert isinstance(policy._target_model, Wrapper)
    assert any(name.startswith("_target_model_wrapped.") for name in policy.state_dict())  # for its device and state
    make_trainer(max_epochs=1).fit(policy, datamodule=ReplayDataModule("CartPole-v1", num_envs=2))
    assert policy._alpha.item() == pytest.approx(-0.1 * policy.progress.train_iter)
    assert len(policy.updater.optimizers) == 1


def test_fit_collects_learns_and_counts(make_trainer: MakeTrainer) -> None:
    policy: Any = PlainDQNCommand({"random_collect_size": 16})
    trainer = make_trainer(max_epochs=2)
    trainer.fit(policy, datamodule=ReplayDataModule("CartPole-v1", num_envs=2))
    # an epoch of 8 updates is 4 rounds of 8 transitions; the first 16 transitions come on top
    assert policy.progress.env_step == 16 + 2 * 4 * 8
    assert policy.progress.train_iter == trainer.global_step == policy._learn_updates == 16
    assert "eval/return_mean" in trainer.callback_metrics


def test_fit_draws_by_the_priorities_that_the_policy_returns(make_trainer: MakeTrainer) -> None:
    policy: Any = PlainDQN({"priority": True, "priority_IS_weight": True})
    datamodule = ReplayDataModule("CartPole-v1", num_envs=2)
    make_trainer(max_epochs=1).fit(policy, datamodule=datamodule)
    assert policy.config.other.replay_buffer.type == "advanced"
    priorities = cast(Any, datamodule.buffer).sample(16, 0)["priority"]
    assert len(set(priorities.tolist())) > 2


def test_fit_learns_from_the_samples_of_whole_episodes(make_trainer: MakeTrainer) -> None:
    policy: Any = PlainPG()
    trainer = make_trainer(max_epochs=2)
    trainer.fit(policy, datamodule=RolloutDataModule("CartPole-v1", num_envs=2, rounds_per_epoch=2))
    assert len(policy.seen) == 4
    assert sum(policy.seen) == policy.progress.env_step
    assert policy.progress.train_iter == trainer.global_step == 8  # two updates a call


def test_a_resumed_fit_ends_with_the_same_weights(make_trainer: MakeTrainer, tmp_path: Path) -> None:
    def run(epochs: int, saves: bool = False, ckpt_path: Any = None) -> Any:
        seed_everything(3)
        policy = PlainDQN()
        trainer = make_trainer(max_epochs=epochs, enable_checkpointing=saves)
        trainer.fit(policy, datamodule=ReplayDataModule("CartPole-v1", num_envs=2), ckpt_path=ckpt_path)
        return policy

    whole, half = run(4), run(2, saves=True)
    resumed = run(4, saves=True, ckpt_path="last")
    assert (half._learn_updates, resumed._learn_updates, whole._learn_updates) == (16, 32, 32)
    for name, value in whole.state_dict().items():
        assert torch.equal(resumed.state_dict()[name], value)


def test_policy_is_loaded_from_a_checkpoint_with_its_config(make_trainer: MakeTrainer, tmp_path: Path) -> None:
    policy, trainer = PlainDQN({"learn": {"batch_size": 7}}), make_trainer(max_epochs=1)
    trainer.fit(policy, datamodule=ReplayDataModule("CartPole-v1", num_envs=2))
    trainer.save_checkpoint(tmp_path / "one.ckpt")
    loaded: Any = PlainDQN.load_from_checkpoint(tmp_path / "one.ckpt")
    assert (loaded._cfg.learn.batch_size, loaded._learn_updates) == (7, 8)
    assert_close(loaded.state_dict(), policy.state_dict())


def test_the_native_form_stays_what_it_was() -> None:
    dqn: Any = get_policy_cls({"type": "dqn"})
    assert not issubclass(dqn, ReferencePolicy)
    policy: Any = dqn({"model": {"obs_shape": 4, "action_shape": 2}})
    assert deep_merge(dqn.config, {}) == {k: v for k, v in dqn.default_config().items() if k != "cfg_type"}
    assert policy.learn_mode == policy.learn_mode  # workers compare modes
    assert policy.collect_mode == policy.collect_mode


class Classifier(Policy):  # type: ignore[type-arg]
    """Supervised learning in DI-engine's form: a batch gives a batch of outputs."""

    config: ClassVar[dict[str, Any]] = {"type": "classifier", "model": {}}  # type: ignore[misc]

    def _init_eval(self) -> None:
        self._eval_model: Any = self._model

    def _forward_eval(self, data: Any) -> Any:
        assert isinstance(data, torch.Tensor)
        assert data.shape == (4, 3)
        assert data.dtype == torch.float64  # as it was loaded
        return self._eval_model(data)


def test_an_evaluator_of_supervised_learning_passes_a_batch_as_it_is() -> None:
    network = torch.nn.Linear(3, 2).double()
    with torch.no_grad():
        network.weight.copy_(torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]))
        network.bias.zero_()
    x = torch.eye(4, 3, dtype=torch.float64)  # outputs (1, 0), (0, 1), (0, 0), (0, 0)
    policy = Classifier({}, model=network, enable_field=["eval"])
    metric = MeanSquaredError()
    loader = DataLoader(TensorDataset(x, torch.ones(4, 2, dtype=torch.float64)), 4)
    values = MetricSerialEvaluator(None, (loader, metric), policy.eval_mode).run()
    assert values == {"MeanSquaredError": 6 / 8}
