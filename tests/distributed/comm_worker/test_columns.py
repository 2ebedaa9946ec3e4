"""The columns that a learner announces are those of the blocks that collectors send."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from lightning_ding import nested
from lightning_ding.distributed.collector.base import create_parallel_collector
from lightning_ding.distributed.comm_worker.columns import columns_of, forms_of
from lightning_ding.distributed.messages import read_columns
from lightning_ding.policy.dqn import DQNPolicy
from lightning_ding.registry import POLICY_REGISTRY
from tests.distributed.comm_worker.learning_coordinator import Learner, LearningCoordinator

NUMBER: Any = ("float32", [], [], [])
VECTOR = spaces.Box(-9, 9, (4,))
DICT = spaces.Dict(
    {
        "image": spaces.Box(0, 255, (3, 8, 8), np.uint8),
        "place": spaces.Discrete(4, start=1),
        "action_mask": spaces.MultiBinary(3),
    }
)


def forms(policy: Mapping[str, Any], obs: Any, action: Any, **options: Any) -> dict[str, Any]:
    found = columns_of(policy, obs, action, **options)
    assert found["is_whole"]
    return {name: tuple(form.values()) for name, form in found["columns"].items()}


def test_columns_of_discrete_actions_have_the_limits_of_the_spaces() -> None:
    found = forms({"type": "dqn"}, DICT, spaces.Discrete(3, start=5))
    assert found == {
        "obs/action_mask": ("int8", [3], [0], [1]),
        "obs/image": ("uint8", [3, 8, 8], [], []),
        "obs/place": ("int64", [], [1], [4]),
        "next_obs/action_mask": ("int8", [3], [0], [1]),
        "next_obs/image": ("uint8", [3, 8, 8], [], []),
        "next_obs/place": ("int64", [], [1], [4]),
        "action": ("int64", [], [0], [2]),
        "reward": NUMBER,
        "terminated": ("bool", [], [], []),
        "truncated": ("bool", [], [], []),
    }


@pytest.mark.parametrize(
    ("name", "action", "more"),
    [
        ("sac", spaces.Box(-1, 1, (2,), np.float64), {"action": ("float32", [2], [], [])}),
        (
            "impala",
            spaces.MultiDiscrete([2, 3]),
            {"action": ("int64", [2], [0, 0], [1, 2]), "log_prob": ("float32", [], [], [])},
        ),
        ("r2d2", spaces.Discrete(2), {"recurrent_state": ("float32", [128], [], []), "is_first": ("bool", [], [], [])}),
        (
            "ppo_offpolicy",
            spaces.MultiBinary(2),
            {"action": ("int64", [2], [0], [1]), "advantage": NUMBER},
        ),
        (
            "ddpg",
            spaces.Dict({"action_type": spaces.Discrete(3), "action_args": spaces.Box(-1, 1, (2,))}),
            {"action/action_type": ("int64", [], [0], [2]), "action/action_args": ("float32", [2], [], [])},
        ),
    ],
)
def test_columns_are_those_of_the_policy_and_its_actions(name: str, action: Any, more: dict[str, Any]) -> None:
    before = torch.get_rng_state()
    found = forms({"type": name}, VECTOR, action)
    assert found.items() >= more.items()
    assert torch.equal(torch.get_rng_state(), before)


def test_transitions_of_games_have_a_player() -> None:
    assert forms({"type": "dqn"}, DICT, spaces.Discrete(3), is_game=True)["player"] == ("int64", [], [], [])


class ReadingInfo(DQNPolicy):
    def _process_transition(self, obs: Any, output: Mapping[str, Any], timestep: Any) -> dict[str, Any]:
        return super()._process_transition(obs, output, timestep) | {"level": timestep.info["level"]}


def test_policy_that_reads_the_info_of_its_env_announces_its_observations(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(POLICY_REGISTRY._entries, "reading_info", ReadingInfo)
    with caplog.at_level(logging.WARNING):
        found = columns_of({"type": "reading_info"}, VECTOR, spaces.Discrete(2))
    assert (found["columns"].keys(), found["is_whole"]) == ({"obs", "next_obs"}, False)
    assert "only the observations are announced, as the policy needs a real env: KeyError('level')" in caplog.text


def test_space_without_numbers_has_no_columns() -> None:
    assert forms_of(spaces.Sequence(spaces.Discrete(2)), "obs") == {}


@pytest.mark.parametrize(
    ("name", "random"),
    [("dqn", False), ("dqn", True), ("r2d2", False), ("r2d2", True), ("ppo_offpolicy", False), ("impala", False)],
)
def test_blocks_of_a_collector_have_exactly_the_announced_columns(name: str, random: bool) -> None:
    policy, blocks = {"type": name}, []  # type: dict[str, Any], list[Any]

    def send(metadata: Any) -> dict[str, Any]:
        return {"accepted": True, "close": len(blocks) > 0, "policy": {}, "collect_setting": {}, "random": random}

    cfg = {"type": "zergling", "policy": policy, "n_sample": 4, "env": {"env_id": "CartPole-v1"}}
    collector = create_parallel_collector(
        cfg, get_policy_update_info=weights(policy), send_stepdata=blocks.append, send_metadata=send
    )
    collector.start()
    announced = read_columns(columns_of(policy, VECTOR, spaces.Discrete(2)))
    checked = announced.check(blocks[0])
    before = {name: (leaf.dtype, leaf.shape) for name, leaf in nested.flatten(blocks[0]).items()}
    assert {name: (leaf.dtype, leaf.shape) for name, leaf in nested.flatten(checked).items()} == before


def weights(policy: dict[str, Any]) -> Any:
    from lightning_ding.policy import create_policy

    made = create_policy(policy, enable_field=["collect"])
    made.build(VECTOR, spaces.Discrete(2))
    return lambda path, serial: {**made.collect_mode.state_dict(), "iter": 0, "serial": 1}


def test_learner_announces_its_columns_before_its_first_weights(tmp_path: Path) -> None:
    coordinator = LearningCoordinator(tmp_path, rounds=1, learner={"validate": False})
    assert Learner(channel=coordinator.channel).start() == 0
    names = [name for name, _ in coordinator.messages if name.startswith("learner_send")]
    assert names[:2] == ["learner_send_columns", "learner_send_policy"]
    (said,) = coordinator.said("learner_send_columns")
    assert said["is_whole"]
    assert said["columns"]["obs"] == {"type": "float32", "shape": [4], "least": [], "largest": []}
    assert said["columns"]["action"] == {"type": "int64", "shape": [], "least": [0], "largest": [1]}
