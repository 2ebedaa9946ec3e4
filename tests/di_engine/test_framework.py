"""Scripts in DI-engine's middleware style run with the classes of this package."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from easydict import EasyDict

from lightning_ding.di_engine import config, data, model, policy, rl_utils, utils, worker
from lightning_ding.di_engine.envs import BaseEnvManagerV2, DingEnvWrapper
from lightning_ding.di_engine.framework import (
    CkptSaver,
    ContextExchanger,
    EpisodeCollector,
    HERLearner,
    ModelExchanger,
    OfflineRLContext,
    OffPolicyLearner,
    OnlineRLContext,
    StepCollector,
    Task,
    data_pusher,
    ding_init,
    eps_greedy_handler,
    final_ctx_saver,
    gae_estimator,
    interaction_evaluator,
    multistep_trainer,
    nstep_reward_enhancer,
    offline_data_fetcher,
    offline_data_saver,
    offline_logger,
    online_logger,
    sqil_data_pusher,
    task,
    termination_checker,
    trainer,
)
from lightning_ding.di_engine.reward_model import HerRewardModel

MODEL = {"obs_shape": 4, "action_shape": 2, "encoder_hidden_size_list": [16]}
EPS = {"type": "exp", "start": 0.95, "end": 0.1, "decay": 2000}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Work in an empty folder, and end the task."""
    monkeypatch.chdir(tmp_path)
    yield
    task.stop()


def cartpole() -> DingEnvWrapper:
    return DingEnvWrapper(gym.make("CartPole-v1"), EasyDict(env_wrapper="default"))


def compiled(kind: str, section: dict[str, Any], **env: Any) -> Any:
    section = {"cuda": False, "model": dict(MODEL), **section}
    main = {"exp_name": "run", "seed": 0, "env": {"n_evaluator_episode": 2, "stop_value": 1e10, **env}}
    create = {"env": {"type": "cartpole"}, "env_manager": {"type": "base"}, "policy": {"type": kind}}
    if kind in ("cql", "discrete_cql"):
        create["env"] = {"type": "cartpole"}
    return config.compile_config(EasyDict({**main, "policy": section}), create_cfg=EasyDict(create), auto=True)


def dqn(number: int = 1, **section: Any) -> tuple[Any, Any, BaseEnvManagerV2]:
    learn = {"update_per_collect": 2, "batch_size": 16, **section.pop("learn", {})}
    fixed = {"collect": {"n_sample": 16}, "other": {"eps": EPS, "replay_buffer": {"replay_buffer_size": 1000}}}
    cfg = compiled("dqn", {**fixed, "learn": learn, **section})
    utils.set_pkg_seed(0, use_cuda=False)
    learned = policy.DQNPolicy(cfg.policy, model=model.DQN(**cfg.policy.model))
    learned.seed(0)
    return cfg, learned, BaseEnvManagerV2([cartpole for _ in range(number)], cfg.env.manager)


def weights(learned: Any) -> list[torch.Tensor]:
    return [one.detach().clone() for one in learned.model.parameters()]


# ---------------------------------------------------------------------- whole scripts


def test_dqn_has_the_weights_of_the_loop_of_serial_workers() -> None:
    cfg, learned, envs = dqn()
    buffer = worker.NaiveReplayBuffer(cfg.policy.other.replay_buffer, seed=0)
    with task.start(ctx=OnlineRLContext()):
        task.use(eps_greedy_handler(cfg))
        task.use(StepCollector(cfg, learned.collect_mode, envs))
        task.use(data_pusher(cfg, buffer))
        task.use(OffPolicyLearner(cfg, learned.learn_mode, buffer))
        task.run(max_step=4)
        assert (task.ctx.env_step, task.ctx.train_iter) == (64, 8)

    cfg, other, envs = dqn()
    envs.seed(0)
    buffer = worker.NaiveReplayBuffer(cfg.policy.other.replay_buffer, seed=0)
    collector = worker.SampleSerialCollector({}, envs, other.collect_mode)
    learner = worker.BaseLearner({}, other.learn_mode)
    epsilon = rl_utils.get_epsilon_greedy_fn(EPS["start"], EPS["end"], EPS["decay"], EPS["type"])
    for _ in range(4):
        kwargs = {"eps": epsilon(collector.envstep)}
        buffer.push(collector.collect(train_iter=learner.train_iter, policy_kwargs=kwargs))
        for _ in range(2):
            learner.train(buffer.sample(16), collector.envstep)
    assert all(torch.equal(*pair) for pair in zip(weights(learned), weights(other), strict=True))


def test_dqn_learns_cartpole() -> None:
    section = {"learn": {"update_per_collect": 5, "batch_size": 64, "learning_rate": 0.001}, "nstep": 3}
    section |= {"collect": {"n_sample": 40}, "model": {**MODEL, "encoder_hidden_size_list": [64, 64]}}
    section["eval"] = {"evaluator": {"eval_freq": 100}}
    cfg, learned, envs = dqn(4, **section)
    cfg.env.stop_value, cfg.env.n_evaluator_episode = 150, 4
    evaluation = BaseEnvManagerV2([cartpole for _ in range(2)], cfg.env.manager)
    buffer = data.DequeBuffer(size=10_000)
    ding_init(cfg)
    with task.start(ctx=OnlineRLContext()):
        task.use(ContextExchanger(skip_n_iter=1)).use(ModelExchanger(learned.model))
        task.use(interaction_evaluator(cfg, learned.eval_mode, evaluation))
        task.use(eps_greedy_handler(cfg))
        task.use(StepCollector(cfg, learned.collect_mode, envs))
        task.use(nstep_reward_enhancer(cfg))
        task.use(data_pusher(cfg, buffer))
        task.use(OffPolicyLearner(cfg, learned.learn_mode, buffer))
        task.use(online_logger(train_show_freq=100))
        task.use(CkptSaver(learned, cfg.exp_name, train_freq=500))
        task.use(final_ctx_saver(cfg.exp_name))
        task.use(termination_checker(max_env_step=30_000))
        task.run()
        assert task.ctx.last_eval_value >= 150
    result = json.loads(Path("run/result.json").read_text())
    assert result["eval_value"] >= 150
    names = {file.name for file in Path("run/ckpt").iterdir()}
    assert {"eval.pth.tar", "final.pth.tar", "iteration_500.pth.tar"} <= names
    state = torch.load("run/ckpt/final.pth.tar", weights_only=True)
    assert all(torch.equal(value, learned.model.state_dict()[name]) for name, value in state["model"].items())
    assert list(Path("run/log").glob("events*"))


def test_ppo_has_the_weights_of_the_loop_of_serial_workers() -> None:
    section = {"learn": {"epoch_per_collect": 2, "batch_size": 16}, "collect": {"n_sample": 32}}
    found = []
    for with_task in (True, False):
        cfg = compiled("ppo", {**section, "action_space": "discrete", "model": {**MODEL, "action_space": "discrete"}})
        utils.set_pkg_seed(0, use_cuda=False)
        learned = policy.PPOPolicy(cfg.policy, model=model.VAC(**cfg.policy.model))
        learned.seed(0)
        envs = BaseEnvManagerV2([cartpole], cfg.env.manager)
        if with_task:
            with task.start(ctx=OnlineRLContext()):
                task.use(StepCollector(cfg, learned.collect_mode, envs))
                task.use(gae_estimator(cfg, learned.collect_mode))
                task.use(multistep_trainer(learned.learn_mode, log_freq=50))
                task.run(max_step=3)
                assert task.ctx.train_iter == 12
                assert isinstance(task.ctx.train_output, list)
        else:
            envs.seed(0)
            collector = worker.SampleSerialCollector({}, envs, learned.collect_mode)
            learner = worker.BaseLearner({}, learned.learn_mode)
            for _ in range(3):
                learner.train(collector.collect(32, train_iter=learner.train_iter), collector.envstep)
        found.append(weights(learned))
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))


def test_gae_estimator_has_the_discount_of_the_policy() -> None:
    cfg = compiled("ppo", {"action_space": "discrete", "model": {**MODEL, "action_space": "discrete"}})
    learned = policy.PPOPolicy(cfg.policy, model=model.VAC(**cfg.policy.model))
    cfg.policy.collect.discount_factor = 0.5
    with pytest.raises(ValueError, match=r"policy.collect.discount_factor must be that of the policy, 0.99, got 0.5"):
        gae_estimator(cfg, learned.collect_mode)


def test_offline_script_learns_a_data_set() -> None:
    generator = np.random.default_rng(0)
    obs = generator.normal(size=(400, 4)).astype(np.float32)
    action = generator.integers(2, size=400)
    good = (obs[:, 0] > 0).astype(np.int64)
    rows = [
        {"obs": obs[i], "action": action[i], "reward": float(action[i] == good[i]), "next_obs": obs[i]}
        | {"terminated": True, "truncated": False, "env_id": 0, "episode_id": i}
        for i in range(400)
    ]
    ctx = OnlineRLContext(trajectories=rows)
    offline_data_saver("data/expert.hdf5")(ctx)
    learn = {"batch_size": 64, "learning_rate": 0.01, "train_epoch": 10}
    cfg = compiled("discrete_cql", {"learn": learn, "collect": {"data_path": "data/expert.npz"}})
    cfg.policy.learn.batch_size = 64
    utils.set_pkg_seed(0, use_cuda=False)
    found = data.create_dataset(cfg)
    assert len(found) == 400
    assert found[3]["reward"] == rows[3]["reward"]
    learned = policy.DiscreteCQLPolicy(cfg.policy)
    ding_init(cfg)
    with task.start(ctx=OfflineRLContext()):
        task.use(offline_data_fetcher(cfg, found))
        task.use(trainer(cfg, learned.learn_mode))
        task.use(CkptSaver(learned, cfg.exp_name, train_freq=100))
        task.use(offline_logger())
        task.use(termination_checker(max_train_iter=400))
        task.run()
        assert (task.ctx.train_iter, task.ctx.train_epoch, task.ctx.trained_env_step) == (401, 57, 400 * 57 + 128)
    chosen = learned.eval_mode.forward(torch.from_numpy(obs))["action"]
    assert np.mean(chosen.numpy() == good) > 0.9


def test_network_of_sac_describes_a_distribution() -> None:
    shapes = {"obs_shape": 3, "action_shape": 1, "action_space": "reparameterization"}
    assert model.ContinuousQAC(**shapes).compute_actor(torch.zeros(2, 3))["mu"].shape == (2, 1)


# ---------------------------------------------------------------------- the task


def test_generators_end_in_reversed_order_and_functions_of_the_user_see_the_context() -> None:
    order: list[Any] = []

    def outer(ctx: Any) -> Iterator[None]:
        order.append("outer")
        yield
        order.append(("outer ends", ctx.seen))

    def inner(ctx: Any) -> Iterator[None]:
        order.append("inner")
        yield
        order.append("inner ends")

    class Counter:
        def __call__(self, ctx: Any) -> None:
            ctx.seen = ctx.total_step + 10

    def stop(ctx: Any) -> None:
        order.append("stop")
        task.finish = ctx.total_step == 1

    with task.start(async_mode=False, ctx=OnlineRLContext()) as started:
        assert started is task
        task.use(outer).use(Counter()).use(task.serial(inner, lambda ctx: order.append("in turn"))).use(stop)
        task.run()
    step = ["outer", "inner", "in turn", "stop", "inner ends"]
    assert order == [*step, ("outer ends", 10), *step, ("outer ends", 11)]
    with pytest.raises(RuntimeError, match=r"call task.start"):
        task.run()


def test_wrapped_middleware_ends_when_its_caller_says_so() -> None:
    order: list[str] = []

    def inner(ctx: Any) -> Iterator[None]:
        order.append("inner")
        yield
        order.append("inner ends")

    one = Task().start()
    wrapped = one.wrap(inner)

    def outer(ctx: Any) -> None:
        end = wrapped(ctx)
        order.append("outer")
        end()
        end()
        order.append("after")

    one.use(outer).run(max_step=1)
    assert order == ["inner", "outer", "inner ends", "after"]


def test_wrappers_roles_labels_and_events() -> None:
    one = Task().start(labels={"mine"})
    calls: list[Any] = []

    def noted(fn: Any) -> Any:
        def call(ctx: Any) -> Any:
            calls.append("wrapped")
            return fn(ctx)

        return call

    one.use(lambda ctx: calls.append("first")).use_wrapper(noted).use(lambda ctx: one.emit("told", 3))
    one.once("told", calls.append)
    one.run(max_step=2)
    assert calls == ["wrapped", "first", "wrapped", 3, "wrapped", "first", "wrapped"]
    assert one.has_role(one.role.LEARNER)
    one.add_role(one.role.COLLECTOR)
    assert not one.has_role(one.role.LEARNER)
    assert one.match_labels("mi*")
    assert one.match_labels(["standalone"])
    assert not one.match_labels("node.*")
    assert (one.router.is_active, one.router.node_id) == (False, 0)


def test_what_needs_several_processes_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(RuntimeError, match=r"wait_for\('x'\) would wait for ever: a task runs in one process here"):
        task.start().wait_for("x")
    with pytest.raises(RuntimeError, match="FileModelLoader hands weights to other processes"):
        data.FileModelLoader(None, "x")
    with pytest.raises(
        ImportError, match=r"^Parallel of ding.framework is not available .*: a task runs in one process"
    ):
        exec("from lightning_ding.di_engine.framework import Parallel")
    with pytest.raises(TypeError, match="a middleware must be a function of the context, got 3"):
        task.use(3)  # type: ignore[arg-type]
    with caplog.at_level(logging.WARNING):
        task.start(async_mode=True)
    assert "the middleware run in order" in caplog.text


def test_unknown_attribute_of_a_context_is_named() -> None:
    with pytest.raises(AttributeError, match="no middleware has set 'logits' of the OnlineRLContext"):
        _ = OnlineRLContext().logits
    ctx = OnlineRLContext(env_step=3, train_data=[1])
    ctx.keep("extra")
    assert not ctx.renew().has_attr("extra")
    any_ctx: Any = ctx
    any_ctx.extra = 1
    after = ctx.renew().renew()
    assert (after.env_step, after.extra, after.train_data, after.total_step) == (3, 1, None, 2)


# ---------------------------------------------------------------------- data


def test_rewards_of_several_steps_are_summed_to_the_end_of_the_episode() -> None:
    def row(episode: int, reward: float, done: bool = False) -> dict[str, Any]:
        ends = {"terminated": done, "truncated": False, "done": done}
        return {"obs": 0, "next_obs": reward, "env_id": 0, "episode_id": episode, "reward": reward, **ends}

    rows = [row(0, 1.0), row(0, 2.0, True), row(1, 4.0), row(1, 8.0), row(1, 16.0)]
    ctx = OnlineRLContext(trajectories=rows)
    nstep_reward_enhancer(EasyDict(policy={"nstep": 3, "discount_factor": 0.5}))(ctx)
    found = [(one["reward"], one["discount"], one["next_obs"], one["done"]) for one in ctx.trajectories]
    whole = (4 + 8 / 2 + 16 / 4, 0.125, 16.0, False)
    assert found == [
        (2.0, 0.25, 2.0, True),
        (2.0, 0.5, 2.0, True),
        whole,
        (16.0, 0.25, 16.0, False),
        (16.0, 0.5, 16.0, False),
    ]
    assert rows[0]["reward"] == 1.0


def test_rewards_of_several_steps_need_the_enhancer_once() -> None:
    cfg, learned, envs = dqn(nstep=3)
    ctx = OnlineRLContext()
    collect = StepCollector(cfg, learned.collect_mode, envs)
    collect(ctx)
    with pytest.raises(
        ValueError, match=r"policy.nstep must be 1 without nstep_reward_enhancer before the buffer, got 3"
    ):
        data_pusher(cfg, data.DequeBuffer(10))(ctx)
    nstep_reward_enhancer(cfg)(ctx)
    with pytest.raises(ValueError, match="nstep_reward_enhancer must be left out with a buffer that sums"):
        data_pusher(cfg, worker.NaiveReplayBuffer({}))(ctx)
    data_pusher(cfg, data.DequeBuffer(10))(ctx)
    assert ctx.trajectories is None
    with pytest.raises(RuntimeError, match=r"data_pusher needs ctx.trajectories"):
        data_pusher(cfg, data.DequeBuffer(10))(ctx)


def test_transitions_are_env_by_env_and_begin_with_random_actions() -> None:
    cfg, learned, envs = dqn(3)
    ctx = OnlineRLContext()
    collect = StepCollector(cfg, learned.collect_mode, envs, random_collect_size=30)
    collect(ctx)
    ids = [one.env_id for one in ctx.trajectories]
    assert ids == [0] * 10 + [1] * 10 + [2] * 10
    assert ctx.trajectory_end_idx == [9, 19, 29]
    collect(ctx)
    assert (len(ctx.trajectories), ctx.env_step) == (16, 48)
    assert ctx.trajectories[0].reward == 1.0


def test_sqil_learns_from_two_buffers() -> None:
    cfg, learned, envs = dqn()
    buffers = [data.DequeBuffer(100), data.DequeBuffer(100)]
    collect = StepCollector(cfg, learned.collect_mode, envs)
    seen: list[float] = []
    with task.start(ctx=OnlineRLContext()):
        for place, buffer in enumerate(buffers):
            task.use(collect).use(sqil_data_pusher(cfg, buffer, expert=place == 1))
        task.use(OffPolicyLearner(cfg, learned.learn_mode, [(buffers[0], 0.25), (buffers[1], 0.75)]))
        task.use(lambda ctx: seen.extend(row["reward"] for row in ctx.train_data))
        task.run(max_step=1)
    assert (seen.count(0.0), seen.count(1.0)) == (4, 12)


def test_priorities_of_updates_go_to_the_buffer() -> None:
    cfg, learned, envs = dqn(priority=True, priority_IS_weight=True)
    buffer = data.DequeBuffer(100)
    buffer.use(data.PriorityExperienceReplay(buffer, IS_weight=True))
    with task.start(ctx=OnlineRLContext()):
        task.use(StepCollector(cfg, learned.collect_mode, envs))
        task.use(data_pusher(cfg, buffer))
        task.use(OffPolicyLearner(cfg, learned.learn_mode, buffer))
        task.run(max_step=2)
        assert 0 < task.ctx.train_data[0]["IS"] <= 1
    priorities = {entry.meta["priority"] for entry in buffer}
    assert len(priorities) > 3
    assert "IS" not in next(iter(buffer)).data


def test_buffer_draws_in_proportion_to_priority() -> None:
    np.random.seed(0)
    buffer = data.DequeBuffer(4)
    buffer.use(data.PriorityExperienceReplay(buffer, True, priority_power_factor=1.0, IS_weight_power_factor=1.0))
    for number in range(6):  # the first two leave
        buffer.push({"number": number}, {"priority": float(number)})
    drawn = [entry.data for entry in buffer.sample(20_000)]
    shares = [sum(one["number"] == number for one in drawn) / 20_000 for number in range(6)]
    assert shares == pytest.approx([0, 0, 2 / 14, 3 / 14, 4 / 14, 5 / 14], abs=0.015)
    assert {one["number"]: one["IS"] for one in drawn} == pytest.approx({2: 1, 3: 2 / 3, 4: 0.5, 5: 0.4})


def test_views_of_a_buffer_have_their_own_middleware() -> None:
    buffer = data.DequeBuffer(10)
    first, second = buffer.view(), buffer.view()
    first.use(data.sample_range_view(first, start=-2))
    second.use(data.use_time_check(second, max_use=1))
    for number in range(6):
        buffer.push(number)
    assert sorted(entry.data for entry in first.sample(2)) == [4, 5]
    drawn = {entry.data for entry in second.sample(4)}
    assert {entry.data for entry in buffer} == set(range(6)) - drawn


def test_policy_with_memory_draws_sequences() -> None:
    learn = {"update_per_collect": 1, "batch_size": 2}
    fixed = {"collect": {"n_sample": 32, "unroll_len": 6}, "other": {"eps": EPS}}
    cfg = compiled(
        "r2d2",
        {
            **fixed,
            "priority": False,
            "priority_IS_weight": False,
            "burnin_step": 2,
            "learn_unroll_len": 4,
            "nstep": 2,
            "learn": learn,
        },
    )
    learned = policy.R2D2Policy(cfg.policy, model=model.DRQN(**cfg.policy.model))
    buffer = data.DequeBuffer(1000)
    before = weights(learned)
    with task.start(ctx=OnlineRLContext()):
        task.use(StepCollector(cfg, learned.collect_mode, BaseEnvManagerV2([cartpole, cartpole], cfg.env.manager)))
        task.use(nstep_reward_enhancer(cfg)).use(data_pusher(cfg, buffer, group_by_env=True))
        task.use(OffPolicyLearner(cfg, learned.learn_mode, buffer))
        task.run(max_step=1)
        assert task.ctx.train_data["reward"].shape[1] == 2
    assert any(not torch.equal(*pair) for pair in zip(before, weights(learned), strict=True))


def test_impala_learns_from_sequences_across_episodes() -> None:
    learn = {"update_per_collect": 2, "batch_size": 4}
    section = {"model": {**MODEL, "action_space": "discrete"}, "collect": {"n_sample": 16, "unroll_len": 8}}
    cfg = compiled("impala", {**section, "unroll_len": 8, "learn": learn})
    learned = policy.IMPALAPolicy(cfg.policy, model=model.VAC(**cfg.policy.model))
    buffer = data.DequeBuffer(1000, sliced=True)
    with task.start(ctx=OnlineRLContext()):
        task.use(StepCollector(cfg, learned.collect_mode, BaseEnvManagerV2([cartpole] * 2, cfg.env.manager)))
        task.use(data_pusher(cfg, buffer, group_by_env=True))
        task.use(OffPolicyLearner(cfg, learned.learn_mode, buffer))
        task.run(max_step=2)
        assert (task.ctx.env_step, task.ctx.train_iter) == (256, 4)
        assert task.ctx.train_data["reward"].shape == (8, 4)


def test_hindsight_learner_learns_from_episodes() -> None:
    cfg, learned, envs = dqn()
    cfg.policy.collect.n_episode = 2
    buffer, model_ = (
        data.DequeBuffer(100),
        HerRewardModel({"her_strategy": "future", "her_replay_k": 1, "episode_size": 2}),
    )
    with task.start(ctx=OnlineRLContext()):
        task.use(EpisodeCollector(cfg, learned.collect_mode, envs)).use(data_pusher(cfg, buffer))
        task.use(HERLearner(cfg, learned.learn_mode, buffer, model_))
        task.run(max_step=1)
        assert (buffer.count(), task.ctx.env_episode, task.ctx.train_iter) == (2, 2, 2)


# ---------------------------------------------------------------------- imports


def test_ding_framework_is_this_package() -> None:
    script = """
import sys
import lightning_ding.di_engine.as_ding
import ding.data, ding.policy, ding.worker
assert ding.policy.DQNPolicy and ding.data.DequeBuffer and ding.worker.BaseLearner
assert not [name for name in sys.modules if name.startswith("lightning_ding.di_engine.framework")]
import ding.framework.task
from ding.framework import task, ding_init
from ding.framework.task import Task
from ding.framework.context import OnlineRLContext
from ding.framework.middleware import OffPolicyLearner
from ding.framework.middleware.functional import trainer
from ding.data.buffer.middleware import PriorityExperienceReplay
import lightning_ding.di_engine.framework as ours
assert task is ours.task and isinstance(task, Task) and OffPolicyLearner is ours.OffPolicyLearner
for line in ("from ding.framework import Supervisor", "from ding.framework.message_queue.nng import NNGMQ"):
    try:
        exec(line)
    except ImportError as error:
        assert "a task runs in one process here" in str(error), error
    else:
        raise AssertionError(line)
"""
    subprocess.run([sys.executable, "-c", script], check=True)
