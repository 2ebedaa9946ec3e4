"""Exported graphs and files act as ``predict`` does, for every algorithm."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector.utils import batch_space

from lightning_ding import nested
from lightning_ding.config import to_dict
from lightning_ding.envs.teams.games import TwoStepGame
from lightning_ding.policy import DQNPolicy, DTPolicy, Policy, create_policy, load_policy
from tests.algorithms.table import ALGORITHMS, LAYERS, TEAMS, VARIANTS, make_policy
from tests.algorithms.test_spaces import DISCRETE, HYBRID, INTEGERS, OBSERVATIONS
from tests.toys.reference_policies import PlainDQN

onnxruntime = pytest.importorskip("onnxruntime")
VECTOR = spaces.Box(-1, 1, (3,), np.float32)


def built(name: str, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> Policy[Any]:
    """Return a policy whose normaliser has seen observations of another scale, where there are floats."""
    torch.manual_seed(0)
    is_image = isinstance(observation_space, spaces.Box) and len(observation_space.shape) >= 3
    changes: dict[str, Any] = {"model": {"encoder_hidden_size_list": [4, 4, 4, 8]}} if is_image else {}
    if name == "tdmpc2":  # a graph is its policy prior
        changes = {"eval": {"planning": False}}
    policy = make_policy(name, **changes).build(observation_space, action_space)
    if isinstance(observation_space, spaces.Box) and observation_space.dtype == np.float32:
        policy.normaliser.begin(observation_space, norm_obs=True)
        policy.normaliser.update({"obs": 1 + 2 * torch.randn(50, *observation_space.shape)})
    return policy


def run(file: Path, inputs: dict[str, Any]) -> dict[str, Any]:
    """Return the outputs of an ONNX file; it has no inputs that actions do not need, as a team's global state."""
    session = onnxruntime.InferenceSession(str(file))
    needed = {one.name: inputs[one.name] for one in session.get_inputs()}
    return dict(zip([one.name for one in session.get_outputs()], session.run(None, needed), strict=True))


def check(policy: Policy[Any], file: Path, size: int) -> None:
    """Compare an ONNX file with the policy on batches of ``size``, over three steps."""
    space, action_space = policy.env_spaces or (None, None)
    batches: Any = batch_space(space, size)  # type: ignore[arg-type]
    batches.seed(size)
    actor, state = policy.actor(), {}
    if actor.has_memory:
        state = {"state": np.zeros((size, policy.model.first_state(1).shape[1]), np.float32)}  # type: ignore[operator]
    for _ in range(3):
        obs = nested.as_dicts(batches.sample())
        inputs = {
            name: value.astype("f4") if value.dtype == "f8" else value for name, value in flat("obs", obs).items()
        }
        found = run(file, inputs | state)
        if state:
            state = {"state": found.pop("next_state")}
        for name, expected in flat("action", actor(obs)).items():
            assert found[name].dtype == expected.dtype
            np.testing.assert_allclose(found[name], expected, rtol=1e-4, atol=1e-5)
    assert action_space is not None


def as_float32(value: Any) -> Any:
    return value.astype(np.float32) if value.dtype == np.float64 else value


def flat(name: str, data: Any) -> dict[str, Any]:
    return nested.flatten({name: data})


@pytest.mark.parametrize("name", [*ALGORITHMS, *TEAMS])
def test_onnx_runtime_acts_as_the_policy(name: str, tmp_path: Path) -> None:
    env: Any = TwoStepGame() if name in TEAMS else gym.make(ALGORITHMS[name].env_id)
    policy = built(name, env.observation_space, env.action_space)
    file = policy.export(tmp_path / "new" / "policy.onnx")
    for size in (1, 5):
        check(policy, file, size)


@pytest.mark.parametrize("space", OBSERVATIONS.values(), ids=list(OBSERVATIONS))
def test_observations_of_any_space_are_inputs(space: spaces.Space[Any], tmp_path: Path) -> None:
    policy = built("ppo", space, spaces.Discrete(3))
    check(policy, policy.export(tmp_path / "policy.onnx"), 4)


IMAGE = spaces.Box(0, 255, (4, 36, 36), np.uint8)
CHANNELS_LAST = spaces.Box(0, 255, (36, 37, 3), np.uint8)
STACK = spaces.Box(0, 255, (2, 36, 37, 3), np.uint8)
DOUBLE = spaces.Box(-1, 1, (3,), np.float64)
MASKED = spaces.Dict({"action_mask": spaces.MultiBinary(3), "x": VECTOR})


@pytest.mark.parametrize(
    ("name", "space", "action_space"),
    [
        ("dqn", IMAGE, spaces.Discrete(3)),
        ("dqn", CHANNELS_LAST, spaces.Discrete(3)),
        ("ppo", STACK, spaces.Discrete(3)),
        ("sac", DOUBLE, spaces.Box(-0.1, 0.1, (2,), np.float64)),
        ("ppo", VECTOR, HYBRID),
        ("ppo", VECTOR, INTEGERS),
        ("ppo", VECTOR, DISCRETE["multi-discrete from -1, 5"]),
        ("dqn", VECTOR, DISCRETE["discrete from 2"]),
        ("dqn", MASKED, spaces.Discrete(3)),
        ("ppo", MASKED, spaces.Discrete(3)),
        ("recurrent_ppo", VECTOR, spaces.Box(-2, 2, (2,))),
        ("recurrent_ppo-gtrxl", VECTOR, spaces.Box(-2, 2, (2,))),
        ("r2d2-gtrxl", VECTOR, spaces.Discrete(3)),
    ],
)
def test_actions_and_observations_of_other_spaces_are_exported(
    name: str, space: spaces.Space[Any], action_space: spaces.Space[Any], tmp_path: Path
) -> None:
    policy = built(name, space, action_space)
    check(policy, policy.export(tmp_path / "policy.onnx"), 4)


@pytest.mark.parametrize("name", ["dqn", "sac", "r2d2", "r2d2-gtrxl"])
def test_program_of_torch_export_acts_as_the_policy(name: str, tmp_path: Path) -> None:
    env = gym.make((ALGORITHMS | VARIANTS | LAYERS)[name].env_id)
    policy = built(name, env.observation_space, env.action_space)
    program = torch.export.load(policy.export(tmp_path / "policy.pt2", format="torch_export")).module()
    obs = torch.randn(5, *(env.observation_space.shape or ()))
    actor = policy.actor()
    network: Any = policy.model
    state = [network.first_state(5)] if actor.has_memory else []
    for _ in range(2):
        with torch.no_grad():
            action, *state = program(obs, *state)
        np.testing.assert_allclose(action.numpy(), actor(obs), rtol=1e-4)


def from_elsewhere(x: torch.Tensor) -> torch.Tensor:
    """Return numbers in place of those of a tensor on the device meta, which has none; they depend on its size."""
    return torch.rand(x.shape, generator=torch.Generator().manual_seed(x.numel())).to(x.dtype)


@pytest.mark.parametrize("name", ["dqn", "sac", "recurrent_ppo"])
def test_policy_on_another_device_is_exported_as_from_the_cpu(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    action_space = spaces.Box(-2, 2, (2,)) if name == "sac" else spaces.Discrete(3)
    policy = built(name, VECTOR, action_space)
    policy._apply(from_elsewhere)  # type: ignore[no-untyped-call]
    inputs = policy.export(tmp_path / "cpu.onnx").read_bytes(), policy.export(tmp_path / "cpu.pt2", "torch_export")
    to_cpu = torch.Tensor.cpu
    monkeypatch.setattr(torch.Tensor, "cpu", lambda x: from_elsewhere(x) if x.is_meta else to_cpu(x))
    policy.to("meta")
    assert policy.export(tmp_path / "other.onnx").read_bytes() == inputs[0]
    programs = [torch.export.load(file) for file in (inputs[1], policy.export(tmp_path / "other.pt2", "torch_export"))]
    states = [program.state_dict for program in programs]
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(tensor, states[1][key]) for key, tensor in states[0].items())
    assert {x.device.type for x in policy.state_dict().values()} == {policy.device.type} == {"meta"}


@pytest.mark.parametrize("name", [*ALGORITHMS, *VARIANTS, *LAYERS, "dt"])
def test_policy_is_read_from_safetensors(name: str, tmp_path: Path) -> None:
    env = gym.make("CartPole-v1" if name == "dt" else (ALGORITHMS | VARIANTS | LAYERS)[name].env_id)
    if name == "dt":
        policy: Policy[Any] = DTPolicy({"context_len": 3}).build(env.observation_space, env.action_space)
    else:
        policy = built(name, env.observation_space, env.action_space)
    policy.progress.env_step = 7
    read = load_policy(policy.export(tmp_path / "policy.safetensors", "safetensors"))
    assert type(read) is type(policy)
    assert json.dumps(to_dict(read.config)) == json.dumps(to_dict(policy.config))
    assert (read.progress.env_step, read.training, read.env_spaces) == (7, False, policy.env_spaces)
    obs = np.random.default_rng(0).normal(size=(6, *(env.observation_space.shape or ()))).astype(np.float32)
    np.testing.assert_array_equal(read.actor()(obs), policy.actor()(obs))


def test_safetensors_file_of_any_name_is_read(tmp_path: Path) -> None:
    policy = built("dqn", VECTOR, spaces.Discrete(3))
    read = load_policy(policy.export(tmp_path / "policy.weights", "safetensors"))
    obs = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
    np.testing.assert_array_equal(read.predict(obs), policy.predict(obs))


def test_pg_that_samples_in_evaluations_is_exported_greedily(tmp_path: Path) -> None:
    policy: Any = make_policy("pg", deterministic_eval=False).build(VECTOR, spaces.Discrete(5))
    obs = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    found = run(policy.export(tmp_path / "policy.onnx"), {"obs": obs})["action"]
    greedy = policy._distribution(policy._logit(torch.from_numpy(obs)), obs).mode()
    assert found.tolist() == greedy.tolist()


@pytest.mark.parametrize(
    ("policy_class", "reason"),
    [
        (
            DTPolicy,
            r"; policy\.actor\(\) keeps the last steps that others act on, and format='safetensors' writes them",
        ),
        (PlainDQN, ""),
    ],
)
@pytest.mark.parametrize("format", ["onnx", "torch_export"])
def test_policy_without_a_graph_is_refused_with_the_reason(
    policy_class: Any, reason: str, format: Any, tmp_path: Path
) -> None:
    env = gym.make("CartPole-v1")
    policy = policy_class().build(env.observation_space, env.action_space)
    with pytest.raises(ValueError, match=f"to be written as a graph{reason}, got '{policy_class.__name__}'"):
        policy.export(tmp_path / "policy", format)


def test_mistakes_are_one_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = DQNPolicy({"model": {"obs_shape": 3, "action_shape": 2}})
    with pytest.raises(RuntimeError, match="does not know the spaces of its env"):
        policy.export(tmp_path / "policy.onnx")
    policy.build(VECTOR, spaces.Discrete(2))
    with pytest.raises(ValueError, match=r"format must be one of \['onnx', 'torch_export', 'safetensors'\], got 'tf'"):
        policy.export(tmp_path / "policy.tf", format="tf")  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ImportError, match=r"pip install 'lightning_ding\[onnx\]'"):
        policy.export(tmp_path / "policy.onnx")
    (tmp_path / "text.safetensors").write_text("text")
    with pytest.raises(ValueError, match="path must be a safetensors file of a policy, got"):
        load_policy(tmp_path / "text.safetensors")
    with pytest.raises(ValueError, match="path must be the path of a checkpoint or of a safetensors file, or zoo"):
        load_policy(tmp_path / "missing.ckpt")


def test_graph_of_a_policy_that_has_seen_time_stamps_takes_double_precision(tmp_path: Path) -> None:
    space = spaces.Box(0, np.inf, (1,), np.float64)
    torch.manual_seed(0)
    policy = make_policy("sac", model={"obs_shape": None, "action_shape": None}).build(space, spaces.Box(-1, 1, (1,)))
    policy.normaliser.begin(space, norm_obs=True)
    times = 1.7e9 + np.arange(20.0)[:, np.newaxis]
    policy.normaliser.update(policy.normaliser.tensors({"obs": times}))
    policy.export(tmp_path / "clock.onnx")

    found = run(tmp_path / "clock.onnx", {"obs": times})["action"]
    np.testing.assert_allclose(found, policy.predict(times), rtol=1e-5, atol=1e-6)
    assert len(np.unique(found)) == 20


@pytest.mark.parametrize(("name", "memory"), [("qmix", {}), ("wqmix", {"type": "gru", "hidden_size": 5})])
def test_graph_of_one_agent_acts_as_it_does_in_its_team(name: str, memory: dict[str, Any], tmp_path: Path) -> None:
    torch.manual_seed(0)
    counts = (3, 2, 4)
    seen: dict[str, Any] = {"agent_state": spaces.Box(-1, 1, (3, 5)), "global_state": spaces.Box(-1, 1, (2,))}
    team = spaces.Dict({**seen, "action_mask": spaces.MultiBinary(9)})
    policy = make_policy(name, model={"core": memory}, nstep=1) if memory else create_policy({"type": name})
    policy.build(team, spaces.MultiDiscrete(list(counts)))
    obs = {"agent_state": torch.randn(6, 3, 5), "global_state": torch.randn(6, 2)}
    mask = torch.rand(2, 6, 9) < 0.6
    mask[..., [0, 3, 5]] = True
    network: Any = policy.model
    state, actor = network.first_state(6), policy.actor()
    for step in range(2):
        expected = actor({**obs, "action_mask": mask[step].to(torch.int8)})
        for agent, legal in enumerate(mask[step].split(list(counts), 1)):
            file = policy.export(tmp_path / f"{agent}.onnx", agent=agent)
            given = {"obs": obs["agent_state"][:, agent].numpy(), "action_mask": legal.to(torch.int8).numpy()}
            np.testing.assert_array_equal(run(file, given | {"state": state.numpy()})["action"], expected[:, agent])
        with torch.no_grad():
            state = network.act(obs, state)["state"]


@pytest.mark.parametrize("name", ["mappo", "vdn"])
def test_graph_of_one_agent_normalises_what_it_sees(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    team = spaces.Dict({"agent_state": spaces.Box(-9, 9, (2, 5)), "alive": spaces.Box(0, 1, (2,))})
    policy = create_policy({"type": name, "model": {"agent_id": False}}).build(team, spaces.MultiDiscrete([6, 6]))
    policy.normaliser.begin(team, norm_obs=True)
    seen = {"agent_state": 3 + torch.randn(64, 2, 5), "alive": torch.ones(64, 2)}
    policy.normaliser.update({"obs": seen})
    expected = policy.eval_mode.forward(seen)["action"]
    assert len(expected[:, 1].unique()) > 1
    file = policy.export(tmp_path / "policy.onnx", agent=1)
    np.testing.assert_array_equal(run(file, {"obs": seen["agent_state"][:, 1].numpy()})["action"], expected[:, 1])


def test_agents_that_a_policy_does_not_have_are_not_exported(tmp_path: Path) -> None:
    policy = make_policy("vdn").build(TwoStepGame().observation_space, TwoStepGame().action_space)
    with pytest.raises(ValueError, match="agent must be in"):
        policy.export(tmp_path / "policy.onnx", agent=2)
    with pytest.raises(ValueError, match="agent must be None with safetensors"):
        policy.export(tmp_path / "policy.safetensors", "safetensors", agent=0)
    with pytest.raises(ValueError, match="agent must be None with a policy that is not of a team"):
        built("dqn", VECTOR, spaces.Discrete(2)).export(tmp_path / "policy.onnx", agent=0)
