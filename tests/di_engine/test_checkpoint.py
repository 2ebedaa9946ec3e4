"""Checkpoints in DI-engine's layout load into the networks here, and give the outputs that DI-engine computed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lightning_ding.di_engine.checkpoint import fitting
from lightning_ding.policy import DDPGPolicy, DQNPolicy, create_policy
from tests.di_engine.values import MODELS, checkpoint, make_policy, part, save

WITH_TARGET = ("dqn", "c51", "qrdqn", "rainbow", "ddpg", "td3", "sac")


class Unsafe:
    """An object whose unpickling creates a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def flat(output: Any, prefix: str = "") -> dict[str, Tensor]:
    if isinstance(output, Tensor):
        return {prefix: output}
    items = output.items() if isinstance(output, Mapping) else enumerate(output)
    return {k: v for key, value in items for k, v in flat(value, f"{prefix}.{key}".lstrip(".")).items()}


def outputs(model: Any, stored: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return our network's output for the stored observations, under the names of DI-engine."""
    obs = stored["obs"]
    if not hasattr(model, "compute_critic"):
        return flat(model(obs))
    if hasattr(model, "compute_actor_critic"):
        return flat(model.compute_actor_critic(obs))
    actor, q = model.compute_actor(obs), model.compute_critic(obs, stored["action_in"])["q_value"]
    found = {"q_value": q[0]} if len(q) == 1 else {f"q_value.{number}": one for number, one in enumerate(q)}
    if "mu" in actor:
        return found | {"logit.0": actor["mu"], "logit.1": actor["log_sigma"].exp()}
    return found | {"action": actor["action"]}


@pytest.mark.parametrize("case", MODELS)
def test_outputs_are_those_of_di_engine(case: str, tmp_path: Path) -> None:
    policy, stored = make_policy(case), part(case, "output")
    policy.load_ding_checkpoint(save(checkpoint(case), tmp_path))
    with torch.no_grad():
        ours = outputs(policy.model, stored)
    theirs = {name: value for name, value in stored.items() if name not in ("obs", "action_in")}
    assert theirs
    if "distribution" in theirs:  # DI-engine adds 1e-6 to each probability
        theirs["distribution"] = theirs["distribution"] - 1e-6
    if "tau" in theirs:
        theirs["tau"] = theirs["tau"][0, :, 0]
    for name, value in theirs.items():
        torch.testing.assert_close(ours[name], value, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("case", WITH_TARGET)
def test_target_network_gets_its_weights(case: str, tmp_path: Path) -> None:
    policy: Any = make_policy(case)
    policy.load_ding_checkpoint(save(checkpoint(case), tmp_path))
    expected = fitting(policy.target_model, part(case, "target"), "file")
    for name, parameter in policy.target_model.named_parameters():
        assert torch.equal(parameter, expected[name])
        assert not torch.equal(parameter, policy.model.get_parameter(name))


def test_target_network_becomes_a_copy_if_the_file_has_none(tmp_path: Path) -> None:
    policy: Any = make_policy("dqn")
    policy.load_ding_checkpoint(save({"model": part("dqn", "model")}, tmp_path))
    expected = fitting(policy.model, part("dqn", "model"), "file")
    for network in (policy.model, policy.target_model):
        assert all(torch.equal(value, expected[name]) for name, value in network.named_parameters())


def test_policy_that_only_acts_loads_the_network(tmp_path: Path) -> None:
    policy = create_policy({"type": "dqn", "model": MODELS["dqn"]}, enable_field=["eval"])
    policy.load_ding_checkpoint(save(checkpoint("dqn"), tmp_path))
    stored = part("dqn", "output")
    action = policy.eval_mode.forward(stored["obs"].float())["action"]
    assert action.tolist() == stored["logit"].argmax(1).tolist()


def test_network_of_a_discrete_observation_is_that_of_its_one_hot_vector(tmp_path: Path) -> None:
    vector, discrete = make_policy("dqn"), make_policy("dqn", obs_shape={"kind": "one_hot", "sizes": [4]})
    for policy in (vector, discrete):
        policy.load_ding_checkpoint(save(checkpoint("dqn"), tmp_path))
    expected = vector.model(torch.eye(4, dtype=torch.float64))["logit"]
    discrete.float()
    torch.testing.assert_close(discrete.model(torch.arange(4)[:, None])["logit"], expected.float())


def test_single_precision_network_keeps_its_precision(tmp_path: Path) -> None:
    policy = create_policy({"type": "dqn", "model": MODELS["dqn"]})
    policy.load_ding_checkpoint(save(checkpoint("dqn"), tmp_path))
    assert {parameter.dtype for parameter in policy.parameters()} == {torch.float32}


def test_example_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[2] / "docs" / "from_di_engine.md").read_text().partition("## Checkpoints")[2]
    save(checkpoint("dqn"), tmp_path)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)[0], names)
    stored = part("dqn", "output")
    assert names["policy"](stored["obs"].float()).tolist() == stored["logit"].argmax(1).tolist()


MISFITS: dict[str, tuple[str, dict[str, Any], str]] = {
    "shape": (
        "dqn",
        {"encoder_hidden_size_list": [8, 7]},
        r"encoder\.main\.0\.weight must have the shape \(7, 8\) of encoder\.layers\.1\.weight, got \(6, 8\); "
        r".*model\.encoder_hidden_size_list",
    ),
    "missing stream": (
        "dqn_plain",
        {"dueling": True},
        r"head\.advantage\.layers\.0\.weight is missing.*model\.dueling",
    ),
    "missing layer": ("dqn", {"head_layer_num": 2}, r"head\.advantage\.layers\.2\.weight is missing.*head_layer_num"),
    "left over": ("dqn", {"head_layer_num": 0}, r"head\.A\.1\.0\.weight is left over.*model\.head_layer_num"),
    "atoms": ("c51", {"n_atom": 12}, r"head\.Q\.1\.0\.weight must have the shape \(36, 6\).*model\.n_atom"),
    "quantiles": ("qrdqn", {"num_quantiles": 6}, r"must have the shape \(18, 6\).*model\.num_quantiles"),
    "own encoders": (
        "a2c",
        {"share_encoder": False},
        r"critic_encoder\.layers\.0\.weight is missing.*model\.share_encoder",
    ),
    "one encoder": (
        "a2c_continuous",
        {"share_encoder": True},
        r"critic_encoder\.init\.weight is left over.*model\.share_encoder",
    ),
    "other deviation": (
        "ppo_continuous",
        {"sigma_type": "conditioned"},
        r"actor\.sigma_layer\.weight is missing.*actor_head\.log_sigma_param is left over.*model\.sigma_type",
    ),
    "one critic": (
        "td3",
        {"twin_critic": False},
        r"critic_head\.0\.0\.weight and critic_head\.1\.0\.weight must have the shape \(1, 6, 6\).*model\.twin_critic",
    ),
    "two critics": ("ddpg", {"twin_critic": True}, r"critic_head\.0\.weight must .*model\.twin_critic"),
    "vector and image": (
        "dqn_image",
        {"obs_shape": 4, "encoder_kwargs": {}},
        r"encoder\.layers\.0\.weight is missing.*model\.obs",
    ),
    "normalised": ("dqn_norm", {"layer_norm": False}, r"head\.A\.0\.1\.weight is left over.*model\.layer_norm"),
}


@pytest.mark.parametrize("name", MISFITS)
def test_weights_that_do_not_fit_are_named_with_the_option_to_set(name: str, tmp_path: Path) -> None:
    case, change, message = MISFITS[name]
    policy = create_policy({"type": case.partition("_")[0], "model": MODELS[case] | change})
    before = {key: value.clone() for key, value in policy.state_dict().items()}
    with pytest.raises(ValueError, match=message) as error:
        policy.load_ding_checkpoint(save(checkpoint(case), tmp_path))
    assert "\n" not in str(error.value)
    assert all(torch.equal(value, before[key]) for key, value in policy.state_dict().items())


def test_policy_is_unchanged_if_only_the_target_does_not_fit(tmp_path: Path) -> None:
    policy = create_policy({"type": "dqn", "model": MODELS["dqn"]})
    before = {key: value.clone() for key, value in policy.state_dict().items()}
    content = checkpoint("dqn") | {"target_model": part("dqn_plain", "model")}
    with pytest.raises(ValueError, match="is missing"):
        policy.load_ding_checkpoint(save(content, tmp_path))
    assert all(torch.equal(value, before[key]) for key, value in policy.state_dict().items())


def test_unsafe_pickle_is_refused_in_one_line_and_not_executed(tmp_path: Path) -> None:
    created = tmp_path / "created"
    policy, path = make_policy("dqn"), save(checkpoint("dqn") | {"extra": Unsafe(created)}, tmp_path)
    with pytest.raises(ValueError, match=r"ckpt_best\.pth\.tar is not .*contains \S+, and only tensors") as error:
        policy.load_ding_checkpoint(path)
    assert "\n" not in str(error.value)
    assert not created.exists()


@pytest.mark.parametrize("content", [b"", b"no checkpoint", b"PK\x03\x04 broken"])
def test_other_file_is_refused_in_one_line(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"file is not a checkpoint of weights: torch\.load cannot read it$"):
        make_policy("dqn").load_ding_checkpoint(path)


@pytest.mark.parametrize("content", [[1], {"state_dict": {}}, {"model": 3}, {"model": {"a": 1}}])
def test_file_without_weights_is_refused(content: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no entry 'model' of tensors"):
        make_policy("dqn").load_ding_checkpoint(save(content, tmp_path))


def test_file_that_does_not_exist_raises_its_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        make_policy("dqn").load_ding_checkpoint(tmp_path / "none")


def test_mistakes_are_named(tmp_path: Path) -> None:
    content, policy = checkpoint("sac_image"), make_policy("sac_image")
    content["model"]["actor_encoder.mid.weight"] = content["model"]["actor_encoder.mid.weight"] + 1
    with pytest.raises(ValueError, match=r"actor_encoder\.mid\.weight is left over.*model\.share_encoder"):
        policy.load_ding_checkpoint(save(content, tmp_path))
    content, policy = checkpoint("td3"), make_policy("td3")
    content["model"]["critic_head.1.0.weight"] = torch.zeros(5, 6)
    with pytest.raises(ValueError, match=r"critic_head\.1\.0\.weight is left over"):
        policy.load_ding_checkpoint(save(content, tmp_path))
    policy = create_policy({"type": "dqn", "model": MODELS["dqn"] | {"encoder_hidden_size_list": [5, 5, 5]}})
    with pytest.raises(ValueError, match=r"; and 3 more\. Set "):
        policy.load_ding_checkpoint(save(checkpoint("dqn"), tmp_path))
    policy = DQNPolicy({"model": {"obs_shape": 4, "action_shape": 3}}, model=nn.Linear(4, 3))
    with pytest.raises(TypeError, match=r"load into DQN, C51DQN, .*, got a Linear"):
        policy.load_ding_checkpoint(save(checkpoint("dqn"), tmp_path))
    shape = {"action_type_shape": 2, "action_args_shape": 1}
    policy = DDPGPolicy({"model": {"obs_shape": 4, "action_shape": shape}})
    with pytest.raises(ValueError, match="hybrid actions"):
        policy.load_ding_checkpoint(save(checkpoint("ddpg"), tmp_path))
    with pytest.raises(RuntimeError, match="has no spaces"):
        DQNPolicy().load_ding_checkpoint(save(checkpoint("dqn"), tmp_path))
