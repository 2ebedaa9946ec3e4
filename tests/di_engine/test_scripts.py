"""Loops that a script in DI-engine's form writes itself run with the classes of this package."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from easydict import EasyDict
from torch import nn

from lightning_ding.di_engine import config, envs, model, policy, rl_utils, utils, worker
from lightning_ding.di_engine.envs import BaseEnv, BaseEnvManager, BaseEnvTimestep, DingEnvWrapper
from lightning_ding.di_engine.keys import KEYS
from lightning_ding.di_engine.policy_section import CLASSES
from lightning_ding.di_engine.translate import translate
from tests.di_engine.pairs import OFFLINE, env_of

MODEL = {"obs_shape": 4, "action_shape": 2, "encoder_hidden_size_list": [16]}
SHAPES: dict[str, dict[str, Any]] = {
    "bdq": {"obs_shape": 4, "num_branches": 1, "action_bins_per_branch": 2},
    "coma": {"agent_num": 2, "obs_shape": {"agent_state": 4, "global_state": 8}, "action_shape": 2},
    "happo": {"agent_num": 2, "agent_obs_shape": 4, "global_obs_shape": 8, "action_shape": 2},
    "pdqn": {"obs_shape": 4, "action_shape": {"action_type_shape": 3, "action_args_shape": 2}},
}
"""Shapes of the networks that need others than the size of an observation and the number of actions."""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in an empty folder."""
    monkeypatch.chdir(tmp_path)


def cartpole() -> DingEnvWrapper:
    return DingEnvWrapper(gym.make("CartPole-v1"), EasyDict(env_wrapper="default"))


def compiled(main: dict[str, Any], policy_class: Any, buffer: Any = None) -> Any:
    workers = (worker.BaseLearner, worker.SampleSerialCollector, worker.InteractionSerialEvaluator)
    return config.compile_config(EasyDict(main), BaseEnvManager, policy_class, *workers, buffer)


def managers(cfg: Any) -> list[BaseEnvManager]:
    made = [BaseEnvManager([cartpole for _ in range(number)], cfg.env.manager) for number in (2, 1)]
    made[0].seed(0)
    made[1].seed(0, dynamic_seed=False)
    return made


def test_loop_of_learning_from_replay() -> None:
    main = {
        "exp_name": "loop",
        "env": {"n_evaluator_episode": 2, "stop_value": 1e10},
        "policy": {
            "cuda": False,
            "priority": True,
            "nstep": 2,
            "model": MODEL,
            "learn": {"update_per_collect": 2, "batch_size": 16},
            "collect": {"n_sample": 8},
            "other": {"eps": {"type": "exp", "start": 0.9, "end": 0.1, "decay": 100}},
        },
    }
    cfg = compiled(main, policy.DQNPolicy, worker.AdvancedReplayBuffer)
    assert (cfg.policy.type, cfg.policy.cuda, cfg.policy.other.replay_buffer.type) == ("dqn", False, "advanced")
    assert "'batch_size': 16" in Path("loop/total_config.py").read_text()
    utils.set_pkg_seed(0, use_cuda=cfg.policy.cuda)
    learned = policy.DQNPolicy(cfg.policy, model=model.DQN(**cfg.policy.model))
    assert (learned.nstep, learned.priority, learned.batch_size) == (2, True, 16)
    collector_env, evaluator_env = managers(cfg)
    learner = worker.BaseLearner(cfg.policy.learn.learner, learned.learn_mode, exp_name=cfg.exp_name)
    collector = worker.SampleSerialCollector(cfg.policy.collect.collector, collector_env, learned.collect_mode)
    evaluator = worker.InteractionSerialEvaluator(cfg.policy.eval.evaluator, evaluator_env, learned.eval_mode)
    buffer = worker.AdvancedReplayBuffer(cfg.policy.other.replay_buffer, exp_name=cfg.exp_name)
    eps = cfg.policy.other.eps
    epsilon = rl_utils.get_epsilon_greedy_fn(eps.start, eps.end, eps.decay, eps.type)

    stop, result = evaluator.eval(learner.save_checkpoint, learner.train_iter, collector.envstep)
    assert not stop
    assert len(result["eval_episode_return"]) == 2
    state = torch.load("loop/ckpt/ckpt_best.pth.tar", weights_only=True)
    assert state["model"].keys() == learned.model.state_dict().keys()

    for round_number in range(4):
        data = collector.collect(train_iter=learner.train_iter, policy_kwargs={"eps": epsilon(collector.envstep)})
        assert isinstance(data, list)
        assert len(data) == 8
        assert isinstance(data[0]["done"], bool)
        buffer.push(data, cur_collector_envstep=collector.envstep)
        if round_number == 0:
            assert buffer.sample(64, learner.train_iter) is None
            continue
        for _ in range(cfg.policy.learn.update_per_collect):
            batch = buffer.sample(learner.policy.get_attribute("batch_size"), learner.train_iter)
            assert isinstance(batch, list)
            assert {"done", "discount", "IS", "replay_unique_id"} <= batch[0].keys()  # of n-step returns
            learner.train(batch, collector.envstep)
            buffer.update(learner.priority_info)
    assert learner.train_iter == 6
    assert collector.envstep == 32


@pytest.mark.parametrize("name", ["DQNPolicy", "C51Policy", "DDPGPolicy", "SACPolicy", "PPOPolicy"])
def test_seed_of_the_package_decides_the_whole_loop(name: str) -> None:
    first, second, other = (weights_of_a_loop(name, seed) for seed in (1, 1, 2))
    assert all(torch.equal(one, second[key]) for key, one in first.items())
    assert any(not torch.equal(one, other[key]) for key, one in first.items())


def weights_of_a_loop(name: str, seed: int) -> dict[str, torch.Tensor]:
    """Return what a policy learned in a loop, from the same weights with each seed."""
    continuous = name in ("DDPGPolicy", "SACPolicy")
    shape = {"obs_shape": 3, "action_shape": 1} if continuous else MODEL
    main = {"exp_name": "loop", "policy": {"cuda": False, "model": shape, "learn": {"batch_size": 8}}}
    cls = getattr(policy, name)
    cfg = compiled(main, cls, worker.AdvancedReplayBuffer)
    torch.manual_seed(0)
    learned = cls(cfg.policy)
    utils.set_pkg_seed(seed, use_cuda=False)  # after the policy, as some scripts do, and before the buffer
    make = pendulum if continuous else cartpole
    env = BaseEnvManager([make for _ in range(2)], cfg.env.manager)
    env.seed(0)
    learner = worker.BaseLearner(cfg.policy.learn.learner, learned.learn_mode)
    collector = worker.SampleSerialCollector(cfg.policy.collect.collector, env, learned.collect_mode)
    buffer = worker.AdvancedReplayBuffer(cfg.policy.other.get("replay_buffer", {}))
    eps = {"eps": 0.5} if name in ("DQNPolicy", "C51Policy") else None
    for _ in range(2):
        data = collector.collect(n_sample=32, train_iter=learner.train_iter, policy_kwargs=eps)
        if not learned.on_policy:
            buffer.push(data)
            data = buffer.sample(8, learner.train_iter)
        learner.train(data, collector.envstep)
    return {key: one.clone() for key, one in learned.model.state_dict().items()}


def pendulum() -> DingEnvWrapper:
    return DingEnvWrapper(gym.make("Pendulum-v1"), EasyDict(env_wrapper="default"))


def test_loop_of_learning_from_rollouts() -> None:
    main = {
        "exp_name": "rollouts",
        "env": {"n_evaluator_episode": 1},
        "policy": {
            "cuda": False,
            "model": MODEL,
            "learn": {"epoch_per_collect": 2, "batch_size": 16},
            "collect": {"n_sample": 32},
        },
    }
    cfg = compiled(main, policy.PPOPolicy)
    learned = policy.PPOPolicy(cfg.policy, model=model.VAC(**cfg.policy.model))
    collector = worker.SampleSerialCollector(cfg.policy.collect.collector, managers(cfg)[0], learned.collect_mode)
    learner = worker.BaseLearner(cfg.policy.learn.learner, learned.learn_mode)
    before = {name: one.clone() for name, one in learned.model.named_parameters()}
    data = collector.collect(train_iter=learner.train_iter)
    learner.train(data, collector.envstep)
    assert learner.train_iter == 4  # two passes over two minibatches
    assert any(not torch.equal(one, before[name]) for name, one in learned.model.named_parameters())


@pytest.mark.parametrize("name", [one for one, family in CLASSES.items() if family in KEYS])
def test_config_of_a_policy_is_that_of_a_translated_run(name: str) -> None:
    family = CLASSES[name]
    cls = getattr(policy, name)
    continuous = env_of(family) == "pendulum"
    cfg = cls.default_config()
    cfg.setdefault("model", EasyDict()).update(SHAPES.get(family, {"obs_shape": 4, "action_shape": 2}))
    if family == "ppo":
        cfg.model.action_space = "discrete"
    cfg.collect.setdefault("n_episode" if family == "pg" else "n_sample", 8)
    made: Any = cls(cfg)
    assert made.model is not None
    assert issubclass(cls, type(made).__mro__[1])
    env = {"collector_env_num": 1, "evaluator_env_num": 1, "n_evaluator_episode": 1}
    section = {"model": dict(cfg.model), "collect": {"n_sample": cfg.collect.get("n_sample")}}
    if family == "pg":
        section["collect"] = {"n_episode": 8}
    create = {"env": {"type": "pendulum" if continuous else "cartpole"}, "policy": {"type": family}}
    if family == "pg":
        create["collector"] = {"type": "episode"}
    elif family in ("dqfd", "r2d3") or family in OFFLINE:
        section["collect"]["data_path"] = "demos.npz"
    run = translate(({"exp_name": "x", "env": env, "policy": section}, create))
    wanted: Any = run.policy_class(run.policy_config).config
    for part in ("learn", "discount_factor", "nstep", "model", "random_collect_size"):
        if hasattr(wanted, part):
            assert getattr(made.config, part) == getattr(wanted, part)


@pytest.mark.parametrize(
    ("name", "names"),
    [
        ("TD3Policy", ("optimizer_actor", "optimizer_critic")),
        ("SACPolicy", ("optimizer_policy", "optimizer_q")),
        ("DQNPolicy", ("optimizer", None)),
    ],
)
def test_optimizers_are_found_by_dings_names_and_used(name: str, names: tuple[str, str | None]) -> None:
    cls = getattr(policy, name)
    cfg = cls.default_config()
    cfg.model.update(obs_shape=3, action_shape=2)
    cfg.learn.update(update_per_collect=1, batch_size=8)
    made = cls(cfg)
    found: list[Any] = [made.learn_mode.get_attribute(one) if one else None for one in names]
    actor, critic = found
    parts = (made.model.actor, made.model.critic) if critic is not None else (made.model, None)
    for optimizer, part in zip((actor, critic), parts, strict=True):
        assert optimizer is None or optimizer.param_groups[0]["params"] == list(part.parameters())
    torch.optim.lr_scheduler.LambdaLR(actor, lr_lambda=lambda _: 0.0)
    before = [one.clone() for one in parts[0].parameters()]
    action = torch.rand(8, 2) if critic is not None else torch.zeros(8, dtype=torch.int64)
    batch = {"obs": torch.rand(8, 3), "next_obs": torch.rand(8, 3), "action": action, "reward": torch.rand(8)}
    for _ in range(2):  # TD3 updates the actor in every second update
        made.learn_mode.forward([{key: one[row] for key, one in batch.items()} | {"done": False} for row in range(8)])
    assert all(torch.equal(one, old) for one, old in zip(parts[0].parameters(), before, strict=True))
    with pytest.raises(NotImplementedError, match="has no attribute 'optimizer_of_nothing' for workers"):
        made.learn_mode.get_attribute("optimizer_of_nothing")


def test_network_takes_the_section_of_a_policy() -> None:
    section = policy.DQNPolicy.default_config().model
    network = model.DQN(4, 2, **section)
    assert network(torch.zeros(3, 4))["logit"].shape == (3, 2)
    with pytest.raises(ValueError, match="obs_shape must be the shape of the env's space, got None"):
        model.DQN(**section)


def test_policy_is_found_by_its_type() -> None:
    assert policy.get_policy_cls({"type": "dqn_command"}) is policy.DQNPolicy is policy.DQNCommandModePolicy
    made = policy.create_policy(EasyDict(type="c51", cuda=False, model=MODEL), enable_field=["eval"])
    assert type(made) is policy.C51Policy
    mode = made.eval_mode
    action = policy.single_env_forward_wrapper(mode.forward)(np.zeros(4, np.float32))
    assert action in (0, 1)


class TwoPlayers(BaseEnv):  # type: ignore[misc]
    """Both players get 1 for equal actions, and -1 and 1 for others, three times."""

    observation_space = gym.spaces.Box(0, 1, (2, 3), np.float32)
    action_space = gym.spaces.Discrete(2)
    reward_space = None

    def reset(self) -> Any:
        self._step = 0
        return np.zeros((2, 3), np.float32)

    def step(self, action: Any) -> Any:
        assert all(type(one) is int for one in action)
        self._step += 1
        reward = np.array([[1.0], [1.0]]) if action[0] == action[1] else np.array([[-1.0], [1.0]])
        obs = np.full((2, 3), self._step / 3, np.float32)
        return BaseEnvTimestep(obs, reward, self._step == 3, ({"result": "wins"}, {"result": "losses"}))

    def seed(self, seed: int, dynamic_seed: bool = True) -> None: ...

    def close(self) -> None: ...


def test_two_players_play() -> None:
    made = [policy.DQNPolicy(EasyDict(type="dqn", cuda=False, model={**MODEL, "obs_shape": 3})) for _ in range(2)]
    games = BaseEnvManager([lambda: TwoPlayers({}), lambda: TwoPlayers({})])
    games.seed(0)
    modes = [one.collect_mode for one in made]
    collector = worker.BattleEpisodeSerialCollector(EasyDict(type="episode_1v1"), games, modes)
    data, infos = collector.collect(n_episode=4, policy_kwargs={"eps": 1.0})
    assert [len(episode) for player in data for episode in player] == [3] * 8
    assert [step["done"] for step in data[0][0]] == [False, False, True]
    for player in range(2):
        assert infos[player][0]["eval_episode_return"] == sum(step["reward"] for step in data[player][0])
    games = BaseEnvManager([lambda: TwoPlayers({})])
    evaluator = worker.BattleInteractionSerialEvaluator({"n_episode": 2}, games, [one.eval_mode for one in made])
    assert len(evaluator.eval()[1]["eval_episode_return"]) == 2


# ---------------------------------------------------------------------- supervised learning


class Classifier(policy.Policy):  # type: ignore[type-arg]
    _cfg: Any
    _model: Any
    config = {"type": "classifier", "on_policy": False}  # noqa: RUF012

    def _init_learn(self) -> None:
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=self._cfg.learn.learning_rate)
        self._timer = utils.EasyTimer(cuda=False)

    def _forward_learn(self, data: Any) -> Any:
        inputs, label = data
        with self._timer:
            loss = nn.functional.cross_entropy(self._model(inputs), label)
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        return {"total_loss": loss.item(), "cur_lr": 0.1, "forward_time": self._timer.value}

    def _monitor_vars_learn(self) -> list[str]:
        return ["total_loss", "cur_lr", "forward_time"]

    def _init_eval(self) -> None: ...

    def _forward_eval(self, data: Any) -> Any:
        with torch.no_grad():
            return self._model(data)


class Accuracy(worker.IMetric):  # type: ignore[misc]
    def eval(self, inputs: Any, label: Any) -> dict[str, float]:
        return {"accuracy": (inputs.argmax(1) == label).float().mean().item()}

    def gt(self, metric1: Any, metric2: Any) -> bool:
        return metric2 is None or metric1["accuracy"] >= metric2["accuracy"]


class Show(worker.LearnerHook):  # type: ignore[misc]
    seen: list[float] = []  # noqa: RUF012

    def __call__(self, engine: Any) -> None:
        for name, value in engine.log_buffer["scalar"].items():
            setattr(engine.monitor, name, value)
        engine.monitor.time.step()
        self.seen.append(engine.monitor.avg["total_loss"]())


def test_supervised_learning() -> None:
    sections = {
        "learn": {"learning_rate": 0.5, "learner": {"log_show_freq": 1}},
        "eval": {"evaluator": {"eval_freq": 1}},
    }
    main = {"exp_name": "supervised", "env": {}, "policy": dict(cuda=False, multi_gpu=False, **sections)}
    main["policy"]["eval"]["evaluator"]["stop_value"] = {"accuracy": 1.0}  # type: ignore[index]
    cfg = config.compile_config(main, seed=0, policy=Classifier, evaluator=worker.MetricSerialEvaluator)
    utils.set_pkg_seed(cfg.seed, use_cuda=False)
    learned = Classifier(cfg.policy, model=nn.Linear(2, 2), enable_field=["learn", "eval"])
    learner = worker.BaseLearner(cfg.policy.learn.learner, learned.learn_mode, exp_name=cfg.exp_name)
    learner.register_hook(Show(name="show", priority=0, position="after_iter"))
    inputs = torch.tensor([[1.0, 0.0], [0.0, 1.0]] * 4)
    loader = [(inputs, inputs.argmax(1))]
    evaluator = worker.MetricSerialEvaluator(cfg.policy.eval.evaluator, [loader, Accuracy()], learned.eval_mode)
    learner.call_hook("before_run")
    stop = False
    for epoch in range(20):
        if evaluator.should_eval(learner.train_iter):
            stop, result = evaluator.eval(learner.save_checkpoint, epoch, 0)
            if stop:
                break
        for batch in loader:
            learner.train(batch)
    learner.call_hook("after_run")
    assert stop
    assert result == {"accuracy": 1.0}
    assert len(Show.seen) == learner.train_iter > 0
    assert Show.seen[-1] < Show.seen[0]
    assert Path("supervised/ckpt/ckpt_best.pth.tar").exists()


# ---------------------------------------------------------------------- configs


def test_user_values_precede_the_created_ones_and_the_defaults() -> None:
    main = {"exp_name": "a", "env": {"manager": {"step_timeout": 5}}, "policy": {"discount_factor": 0.5}, "seed": 3}
    create = {"env_manager": {"type": "subprocess"}, "policy": {"type": "dqn_command", "nstep": 2}}
    cfg = config.compile_config(main, auto=True, create_cfg=create, save_cfg=False)
    assert (cfg.policy.type, cfg.policy.discount_factor, cfg.policy.nstep, cfg.seed) == ("dqn", 0.5, 2, 3)
    assert cfg.policy.learn.target_update_freq == 100  # DI-engine's
    assert cfg.env.manager == {"type": "subprocess", "step_timeout": 5}
    assert not Path("a").exists()
    assert config.compile_config(main, policy=policy.DQNPolicy, save_cfg=False, seed=0).seed == 0


def test_existing_folder_gets_the_time() -> None:
    Path("a").mkdir()
    main = {"exp_name": "a", "policy": {"type": "dqn"}}
    assert config.compile_config(main, save_cfg=False).exp_name == "a"  # a script that reads the folder finds it
    assert config.compile_config(main, renew_dir=False).exp_name == "a"
    renewed = config.compile_config(main)
    assert renewed.exp_name.startswith("a_")
    assert (Path(renewed.exp_name) / "total_config.py").exists()


def test_other_ranks_write_no_config(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("a").mkdir()
    monkeypatch.setattr(config, "rank_and_world_size", lambda: (1, 2))
    assert config.compile_config({"exp_name": "a", "policy": {"type": "dqn"}}).exp_name == "a"
    assert list(Path().rglob("*")) == [Path("a")]


def test_key_without_effect_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        worker.NaiveReplayBuffer({"type": "naive", "replay_buffer_size": 4, "cfg_type": "x", "alpha": 0.6})
        policy.DQNPolicy(EasyDict(type="dqn", cuda=False, model=MODEL, learn={"batchsize": 3}))
    lines = [record.getMessage() for record in caplog.records]
    assert lines[0] == "NaiveReplayBuffer: alpha = 0.6 has no effect"
    assert lines[1].startswith("policy.learn.batchsize = 3 is not read by dqn; did you mean 'policy.learn.batch_size'?")


def test_files_of_configs_are_read() -> None:
    Path("pair.py").write_text("main_config = dict(env={}, policy={})\ncreate_config = dict(policy=dict(type='dqn'))\n")
    main, create = config.read_config("pair.py")
    assert (main.policy, create.policy.type) == ({}, "dqn")


def test_settings_of_envs_are_those_of_their_class() -> None:
    @utils.ENV_REGISTRY.register("two_players_of_script")
    class Named(TwoPlayers): ...

    cfg = EasyDict(type="two_players_of_script", collector_env_num=2, evaluator_env_num=1, level=3)
    env_fn, collector_cfg, evaluator_cfg = envs.get_vec_env_setting(cfg)
    assert env_fn is Named
    assert ([one.level for one in collector_cfg], len(evaluator_cfg)) == ([3, 3], 1)  # type: ignore[union-attr, arg-type]
    assert cfg.collector_env_num == 2  # unchanged
    assert envs.get_vec_env_setting(cfg, eval_=False)[2] is None
