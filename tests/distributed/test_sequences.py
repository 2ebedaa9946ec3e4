"""Policies that learn from sequences: a parallel collector sends what a local one with its weights collects."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lightning_ding import nested
from lightning_ding.config import deep_merge
from lightning_ding.distributed import ZerglingParallelCollector
from lightning_ding.distributed.coordinator.coordinator import Coordinator
from lightning_ding.distributed.in_process import MemoryStore
from lightning_ding.distributed.transport import Refusal
from lightning_ding.envs import make_vector_env
from lightning_ding.policy import create_policy
from lightning_ding.worker import SampleSerialCollector, create_buffer
from tests.distributed.coordinator.coordinating import Run, both, config

ENVS, MESSAGES, N_SAMPLE, SEED = 2, 5, 16, 3
ENV = {"env_id": "CartPole-v1", "collector_env_num": ENVS}
ROUND = {"batch_size": 4, "update_per_collect": 2}
POLICIES: dict[str, dict[str, Any]] = {
    "impala": {
        "type": "impala",
        "unroll_len": 6,
        "model": {"actor_head_hidden_size": 8, "critic_head_hidden_size": 8},
        "learn": ROUND,
        "collect": {"n_sample": N_SAMPLE},
    },
    "r2d2": {
        "type": "r2d2",
        "burnin_step": 2,
        "learn_unroll_len": 4,
        "nstep": 2,
        "random_collect_size": 0,
        "model": {"core": {"hidden_size": 5}, "encoder_hidden_size_list": [8], "dueling": False},
        "learn": ROUND,
        "collect": {"n_sample": N_SAMPLE},
    },
}
GTRXL = {"type": "gtrxl", "hidden_size": 8, "memory_length": 3}
POLICIES["r2d2 with gtrxl"] = deep_merge(POLICIES["r2d2"], {"model": {"core": GTRXL}})
OF_PAIRS = {"impala": ("log_prob",)} | dict.fromkeys(("r2d2", "r2d2 with gtrxl"), ("recurrent_state", "is_first"))


class Around:
    """The functions of a collector: weights that are newer for its third message, and a list of its blocks."""

    def __init__(self, weights: list[dict[str, Any]]) -> None:
        self.weights = weights
        self.blocks: list[dict[str, Any]] = []

    def get_policy_update_info(self, path: str, serial: int) -> dict[str, Any] | None:
        newest = self.serial()
        return None if serial >= newest else {**self.weights[newest], "iter": newest, "serial": newest}

    def send_stepdata(self, data: dict[str, Any]) -> int:
        self.blocks.append(data)
        return len(self.blocks)

    def send_metadata(self, metadata: dict[str, Any]) -> dict[str, Any]:
        serials = {"policy": self.serial()}
        return {"close": len(self.blocks) >= MESSAGES, "policy": serials, "random": False, "collect_setting": {}}

    def serial(self) -> int:
        return int(len(self.blocks) >= 2)


def weights_of(policy: Any) -> dict[str, Any]:
    return {"model": {name: value.clone() for name, value in policy.model.state_dict().items()}}


def collected_here(cfg: dict[str, Any], weights: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return what a collector without a coordinator collects with the same weights and seeds."""
    torch.manual_seed(SEED)
    seeds = np.random.SeedSequence(SEED).spawn(3)
    with closing(make_vector_env("CartPole-v1", ENVS, "sync", seeds[0])) as env:
        policy = create_policy(cfg, enable_field=["collect"])
        policy.build(env.single_observation_space, env.single_action_space)
        policy.seed(seeds[1])
        collector, blocks = SampleSerialCollector(env=env, policy=policy), []
        for message in range(MESSAGES):
            version = int(message >= 2)
            policy.model.load_state_dict(weights[version]["model"])
            blocks.append(collector.collect(N_SAMPLE, version, drop_extra=False))
    return blocks


@pytest.fixture(scope="module", params=sorted(POLICIES))
def collected(request: pytest.FixtureRequest) -> tuple[str, list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the name of a policy, the blocks of a parallel collector, and those of a local one."""
    cfg = POLICIES[request.param]
    weights = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        with closing(make_vector_env("CartPole-v1", 1, "sync", seed)) as env:
            policy = create_policy(cfg, enable_field=["collect"])
            policy.build(env.single_observation_space, env.single_action_space)
        weights.append(weights_of(policy))
    around = Around(weights)
    task = {"policy": cfg, "env": ENV, "n_sample": N_SAMPLE, "seed": SEED}
    names = ("get_policy_update_info", "send_stepdata", "send_metadata")
    ZerglingParallelCollector(task, **{name: getattr(around, name) for name in names}).start()
    return request.param, around.blocks, collected_here(cfg, weights)


def test_blocks_of_a_parallel_collector_equal_those_of_a_local_one(collected: Any) -> None:
    name, sent, here = collected
    assert {*OF_PAIRS[name]} <= sent[0].keys()
    assert [block["policy_version"].unique().tolist() for block in sent] == [[0], [0], [1], [1], [1]]
    for one, other in zip(sent, here, strict=True):
        assert one.keys() == other.keys()
        for column, values in one.items():
            assert torch.equal(values, torch.as_tensor(other[column])), column


def test_states_continue_from_one_message_to_the_next(collected: Any) -> None:
    name, sent, _ = collected
    if name != "impala":
        first = nested.index(sent[1], slice(ENVS))
        continues = ~first["is_first"]
        assert continues.any()
        assert first["recurrent_state"][continues].abs().sum(1).min() > 0


def test_a_learner_gets_the_sequences_that_a_local_buffer_gives(collected: Any, tmp_path: Path) -> None:
    name, sent, _ = collected
    cfg = POLICIES[name]
    run = Run(config(tmp_path / "run", main={"policy": cfg, "env": ENV}))
    learner, collector = both(run)
    for block in sent:
        collector.send(block)
    options = create_policy(cfg, enable_field=["collect"]).get_attribute("sample_options")
    drawn = run.store.get(learner.get(**options)["data"]).tensors

    buffer = create_buffer(run.coordinator.run.settings.buffer, seed=0)
    for block in sent:
        buffer.push(block)
    expected = buffer.sample(4, num_batches=2, **options)
    for column in expected.keys() - {"episode_id"}:  # which has a different number in every attempt at a task
        assert torch.equal(drawn[column], expected[column]), column
    assert drawn["mask"].shape == (2, options["sequence"], 4)
    assert {*OF_PAIRS[name]} <= drawn.keys()


def test_a_learner_cannot_ask_for_options_that_its_policy_does_not_need(tmp_path: Path) -> None:
    run = Run(config(tmp_path / "run", main={"policy": POLICIES["impala"], "env": ENV}))
    learner, _ = both(run)
    for wrong in ({"sequence": 0}, {"sequence": 10_001}, {"sequence": 2.5}, {"burn_in": 1}):
        with pytest.raises(Refusal, match="must be") as caught:
            learner.get(**wrong)
        assert caught.value.status == 400


def test_blocks_without_states_are_refused_for_a_policy_with_memory(collected: Any, tmp_path: Path) -> None:
    _, sent, _ = collected
    run = Run(config(tmp_path / "run", main={"policy": POLICIES["r2d2"], "env": ENV}))
    _, collector = both(run)
    without = {column: value for column, value in sent[0].items() if column not in OF_PAIRS["r2d2"]}
    with pytest.raises(Refusal, match=r"transitions need \['recurrent_state', 'is_first'\]") as caught:
        collector.send(without)
    assert caught.value.status == 422


def test_hindsight_draws_goals_that_were_reached_with_the_rewards_of_the_env(tmp_path: Path) -> None:
    env_id, bits = "lightning_ding.envs.bit_flip.BitFlipEnv", {"n_bits": 4}
    cfg = {
        "type": "dqn",
        "nstep": 1,
        "random_collect_size": 0,
        "learn": {"batch_size": 32, "update_per_collect": 2},
        "other": {"replay_buffer": {"type": "her"}},
    }
    run = Run(config(tmp_path / "run", main={"policy": cfg, "env": {"env_id": env_id, "env_kwargs": bits}}))
    learner, collector = both(run)
    with closing(make_vector_env(env_id, 2, "sync", 0, env_kwargs=bits)) as env:
        policy = create_policy(cfg, enable_field=["collect"])
        policy.build(env.single_observation_space, env.single_action_space)
        found = SampleSerialCollector(env=env, policy=policy).collect(64)
    tensors: Any = nested.to_tensor(found)
    collector.send(tensors)
    drawn = run.store.get(learner.get(32, n_step=1)["data"]).tensors
    wanted, reached = drawn["obs"]["desired_goal"], drawn["next_obs"]["achieved_goal"]
    assert torch.equal(drawn["reward"].bool(), (wanted == reached).all(-1))
    assert drawn["reward"].mean() > found["reward"].mean() + 0.1
    run.coordinator.close()
    with pytest.raises(Refusal, match="422: the buffer gives no minibatch: nstep must be 1 with the buffer 'her'"):
        learner.get(32, n_step=2)


def test_policies_and_buffers_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    def refused(policy: dict[str, Any], match: str, collector: str = "zergling") -> None:
        run = {"main": {"exp_name": str(tmp_path / "run"), "policy": policy}}
        with pytest.raises(ValueError, match=match):
            Coordinator({**run, "system": {"collector": {"type": collector}}}, MemoryStore())

    r2d2, sequences = POLICIES["r2d2"], {"type": "prioritised_sequence"}
    refused(r2d2, "main.policy must be one without memory with marine collectors, got 'r2d2'", "marine")
    refused(
        r2d2 | {"other": {"replay_buffer": {"type": "naive"}}}, "type must be one whose samples are sequences.*'naive'"
    )
    refused(r2d2 | {"other": {"replay_buffer": {"type": "sequence"}}}, "priority needs a prioritised buffer")
    refused(r2d2 | {"other": {"replay_buffer": {**sequences, "burn_in": 1, "sequence_length": 2}}}, "sequence_length")
    refused({"type": "dt"}, "main.policy must be one of .* in a distributed run .*, got 'dt'")
