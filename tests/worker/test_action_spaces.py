"""Every action that a policy sends is in the action space of its env, for all types and bounds."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector.utils import batch_space
from hypothesis import assume, example, given, settings, strategies as st

from lightning_ding.policy.base.action_bounds import ActionBounds, action_bounds
from lightning_ding.policy.base.predict import from_batch
from lightning_ding.worker.actions import actions_of, random_output
from tests.algorithms.table import ALGORITHMS, CONTINUOUS_ONLY, WITHOUT_COLLECTING, make_policy

FLOATS = (np.float16, np.float32, np.float64)
INTEGERS = (np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64)
LARGEST = float(np.finfo(np.float32).max)
OBS = spaces.Box(-1, 1, (3,), np.float32)
BOXES: dict[str, Any] = {
    "float64": spaces.Box(0.1, 0.3, (2,), np.float64),
    "large float64": spaces.Box(np.array([-1e30, 1e-30]), np.array([7e30, 0.7]), (2,), np.float64),
    "float16": spaces.Box(-0.1, 0.7, (2,), np.float16),
    "largest": spaces.Box(-LARGEST, LARGEST, (2,), np.float32),
    "positive": spaces.Box(0, LARGEST, (2,), np.float32),
    "bytes": spaces.Box(0, 255, (2,), np.uint8),
    "int32": spaces.Box(-(2**31), 2**31 - 1, (2,), np.int32),
    "int64": spaces.Box(-(2**63), 2**63 - 1, (2,), np.int64),
}
CHOICES: dict[str, Any] = {
    "discrete": spaces.Discrete(3, start=2),
    "multi-discrete": spaces.MultiDiscrete([2, 3], dtype=np.uint8, start=[1, 5]),
    "multi-binary": spaces.MultiBinary(2),
}
HYBRID = spaces.Dict(
    {"action_type": spaces.Discrete(2, start=1), "action_args": spaces.Box(0.1, 0.3, (2,), np.float64)}
)


def envs_of(space: spaces.Space[Any], num_envs: int) -> Any:
    """Return what sending an action needs of a vector env."""
    return SimpleNamespace(action_space=batch_space(space, num_envs), single_action_space=space, num_envs=num_envs)


def boxes(dtype: Any) -> st.SearchStrategy[Any]:
    """Return boxes of two dimensions, with or without bounds on each side."""
    if np.dtype(dtype).kind == "f":
        width = np.dtype(dtype).itemsize * 8
        largest = float(np.finfo(dtype).max)
        number: Any = st.floats(-largest, largest, width=width) | st.sampled_from([-np.inf, np.inf])
    else:
        limits = np.iinfo(dtype)
        number = st.integers(max(int(limits.min), -(2**53)), min(int(limits.max), 2**53))
        number = number | st.sampled_from([int(limits.min), int(limits.max)])
    pair = st.tuples(number, number).map(sorted).filter(lambda ends: ends[0] < ends[1])
    pairs = st.tuples(pair, pair).filter(lambda both: all(low < np.inf and high > -np.inf for low, high in both))
    return pairs.map(lambda both: spaces.Box(*np.array(both, dtype).T, dtype=dtype))


def check_sent(space: spaces.Box, drawn: list[float]) -> None:
    """Check the actions of a network in units of half the box, as they are sent to the env and as predict returns."""
    bounds = ActionBounds(2, allow_unbounded=True)
    with np.errstate(over="ignore"):  # a box that single precision takes for a point is refused
        assume(bool((space.low.astype(np.float32) < space.high.astype(np.float32)).all()))
    bounds.set(*action_bounds(space), space.dtype.kind in "iu")
    action = bounds.to_env(torch.tensor(drawn).unsqueeze(1).expand(-1, 2).contiguous())
    env = envs_of(space, len(drawn))
    sent = actions_of({"action": action}, env)
    assert env.action_space.contains(sent), (space, sent)
    predicted = from_batch(action, space, is_single=False)
    assert all(space.contains(one) for one in predicted), (space, predicted)
    assert np.isfinite(sent).all()


DRAWN = st.lists(st.floats(-1, 1, width=32) | st.floats(-100, 100, width=32), min_size=1, max_size=4)


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS])
@settings(max_examples=50, deadline=None)
@given(data=st.data(), drawn=DRAWN)
@example(data=None, drawn=[-1.0, 0.37, 1.0, 7.0])
def test_actions_of_a_network_are_in_the_box_whatever_its_type_and_bounds(
    dtype: Any, data: Any, drawn: list[float]
) -> None:
    for space in [box for box in BOXES.values() if box.dtype == dtype] if data is None else [data.draw(boxes(dtype))]:
        check_sent(space, drawn)


@pytest.mark.parametrize("name", [*ALGORITHMS, *WITHOUT_COLLECTING])
def test_every_policy_sends_actions_of_the_action_space(name: str) -> None:
    given_spaces = dict(BOXES) if name in CONTINUOUS_ONLY else dict(CHOICES)
    if name in ("ppo", "ppg", "trpo", "a2c", "pg", "bc", "impala", "ppo_offpolicy", "ppg_offpolicy", "recurrent_ppo"):
        given_spaces |= {**BOXES, "hybrid": HYBRID}
    obs = torch.cat([torch.randn(3, 3), 1e4 * torch.randn(5, 3)])  # far away, where networks saturate
    for kind, space in given_spaces.items():
        policy = make_policy(name, model={"obs_shape": None, "action_shape": None})
        try:
            policy.build(OBS, space)
        except TypeError:
            continue  # the algorithm has no such actions
        env = envs_of(space, len(obs))
        outputs = [policy.eval_mode.forward(obs)]
        if name not in ("bc", "dt"):
            options = policy.command_mode.get_setting_collect({"envstep": 0, "learner_step": 0})
            outputs.append(policy.collect_mode.forward(obs, **options))
        for output in outputs:
            assert env.action_space.contains(actions_of(output, env)), (name, kind)
        assert space.contains(policy.actor()(np.ones(3, np.float32))), (name, kind)


@pytest.mark.parametrize("kind", [kind for kind in BOXES if kind != "int64"])
def test_random_actions_are_of_the_action_space_and_stored_in_single_precision(kind: str) -> None:
    env = envs_of(BOXES[kind], 3)
    env.action_space.seed(0)
    output = random_output(env, np.zeros((3, 3)))
    assert env.action_space.contains(actions_of(output, env))


def test_box_that_single_precision_takes_for_a_point_is_refused() -> None:
    space = spaces.Box(1e9, 1e9 + 1, (1,), np.float64)
    with pytest.raises(ValueError, match=r"action_low\[0\] must be below action_high \(1000000001.0\) in single prec"):
        ActionBounds(1).set(*action_bounds(space))
    with pytest.raises(
        ValueError, match=r"dimension 0 of the action must have finite bounds, got \[-1e\+300, 1e\+300\]"
    ):
        ActionBounds(1).set([-1e300], [1e300])
