"""The serial entries with a policy class in DI-engine's form."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from lightning_ding.config import deep_merge
from lightning_ding.di_engine.serial import eval as evaluate, serial_pipeline, serial_pipeline_onpolicy
from lightning_ding.entry.cli import main
from lightning_ding.registry import POLICY_REGISTRY
from tests.di_engine.test_convert import run_script
from tests.toys.reference_policies import PlainDQN, PlainDQNCommand, PlainPG
from tests.toys.wrapped_policies import WrappedDQN, WrappedSAC

FILE = """
from lightning_ding.registry import POLICY_REGISTRY
from tests.toys.reference_policies import {base}

@POLICY_REGISTRY.register("of_a_file")
class OfAFile({base}):
    pass

main_config = dict(
    exp_name="run",
    env=dict(collector_env_num=2, evaluator_env_num=2, n_evaluator_episode=2),
    policy=dict(cuda=False, learn=dict(learning_rat=0.5), eval=dict(evaluator=dict(eval_freq=4))),
)
create_config = dict(env=dict(type="cartpole"), env_manager=dict(type="base"), policy=dict(type="of_a_file"))
"""


@pytest.fixture(autouse=True)
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run in a folder, with the classes registered."""
    monkeypatch.chdir(tmp_path)
    before = {name: POLICY_REGISTRY.get(name) for name in POLICY_REGISTRY}
    POLICY_REGISTRY.register("plain_dqn")(PlainDQN)
    POLICY_REGISTRY.register("plain_dqn_command")(PlainDQNCommand)
    POLICY_REGISTRY.register("plain_pg")(PlainPG)
    yield
    cast(Any, POLICY_REGISTRY)._entries = before


def pair(policy: dict[str, Any] | None = None, kind: str = "plain_dqn", exp_name: str = "run", **env: Any) -> Any:
    envs = {"collector_env_num": 2, "evaluator_env_num": 2, "n_evaluator_episode": 2, **env}
    small = {"eval": {"evaluator": {"eval_freq": 4}}}
    parts = {"env": {"type": "cartpole"}, "env_manager": {"type": "base"}, "policy": {"type": kind}}
    return {"exp_name": exp_name, "env": envs, "policy": deep_merge(small, policy or {})}, parts


def config_file(base: str = "PlainDQN") -> str:
    Path("own_config.py").write_text(FILE.format(base=base))
    return "own_config.py"


def result_of(folder: str = "run") -> dict[str, Any]:
    result: dict[str, Any] = json.loads((Path(folder) / "result.json").read_text())
    return result


def test_replay_class_is_trained_by_a_pair_up_to_a_limit() -> None:
    policy: Any = serial_pipeline(pair({"random_collect_size": 16}), max_env_step=80)
    assert type(policy) is PlainDQNCommand
    assert policy.progress.env_step == 80
    assert policy.progress.train_iter == policy._learn_updates == (80 - 16) // 8 * 2
    assert {one.name for one in Path("run").iterdir()} == {"ckpt", "log", "result.json"}
    assert result_of()["train_iter"] == policy.progress.train_iter


def test_rollout_class_is_trained_by_a_pair_up_to_a_limit() -> None:
    policy: Any = serial_pipeline_onpolicy(pair(kind="plain_pg"), max_train_iter=5)
    assert type(policy) is PlainPG
    assert policy.progress.train_iter == 6  # two updates for each call
    assert sum(policy.seen) == policy.progress.env_step == result_of()["env_step"]


@pytest.mark.parametrize(("base", "train"), [("PlainDQN", serial_pipeline), ("PlainPG", serial_pipeline_onpolicy)])
def test_class_that_a_config_file_defines_is_trained_and_evaluated(base: str, train: Any) -> None:
    policy = train(config_file(base), 3, max_env_step=40)
    assert type(policy).__name__ == "OfAFile"
    score = evaluate("own_config.py", 5, load_path="run/ckpt/best.ckpt")
    best = torch.load("run/ckpt/best.ckpt", weights_only=True)["state_dict"]
    assert score == evaluate("own_config.py", 5, state_dict=best)


def test_entry_of_the_other_kind_is_named() -> None:
    with pytest.raises(ValueError, match=r"\(serial_pipeline_onpolicy trains the others\)"):
        serial_pipeline(pair(kind="plain_pg"))
    with pytest.raises(ValueError, match=r"\(serial_pipeline trains the others\)"):
        serial_pipeline_onpolicy(pair())
    assert list(Path().iterdir()) == []


def test_config_can_make_the_class_learn_from_rollouts() -> None:
    policy = serial_pipeline_onpolicy(pair({"on_policy": True}), max_train_iter=2)
    assert policy.progress.train_iter == 2
    assert policy.progress.env_step == 16


def test_run_ends_at_the_stop_value() -> None:
    serial_pipeline(pair(stop_value=5), max_env_step=10_000)
    assert result_of()["stop"] is True
    assert result_of()["env_step"] < 1000


def test_own_network_is_trained() -> None:
    network = torch.nn.Linear(4, 2)
    before = network.weight.detach().clone()
    policy = serial_pipeline_onpolicy(pair(kind="plain_pg"), 0, None, network, 2)
    assert policy.model is network
    assert not torch.equal(network.weight, before)


@pytest.mark.parametrize(("kind", "train"), [("plain_dqn", serial_pipeline), ("plain_pg", serial_pipeline_onpolicy)])
def test_training_continues_exactly_where_it_stopped(kind: str, train: Any) -> None:
    whole = train(pair(kind=kind), 5, max_train_iter=12)
    cut = pair({"learn": {"resume_training": True}}, kind, "cut")
    train(cut, 5, max_train_iter=6)
    continued = train(cut, 5, max_train_iter=12)
    assert continued.progress.train_iter == whole.progress.train_iter == 12
    states = continued.state_dict(), whole.state_dict()
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[1])


def test_command_trains_evaluates_and_prints_each_key_once(capsys: pytest.CaptureFixture[str]) -> None:
    main(["serial", "-c", config_file(), "-s", "3", "-s", "4", "--train-iter", "4"])
    lines = capsys.readouterr().out.splitlines()
    assert lines.count("policy.eval.evaluator.eval_freq -> self._cfg.eval.evaluator.eval_freq") == 1
    (warning,) = (line for line in lines if line.startswith("warning"))
    assert warning.startswith("warning: policy.learn.learning_rat = 0.5 is not in OfAFile.config; did you mean 'policy")
    assert sorted(one.name for one in Path().glob("run*")) == ["run_seed3", "run_seed4"]
    main(["serial", "-c", "own_config.py", "-m", "eval", "--load-path", "run_seed3/ckpt/best.ckpt"])
    assert capsys.readouterr().out.splitlines()[-1].startswith("mean return: ")
    main(["serial", "-c", config_file("PlainPG"), "--env-step", "20", "--exp-name", "mine"])
    assert result_of("mine")["env_step"] >= 20
    with pytest.raises(SystemExit):
        main(["serial", "-c", "own_config.py", "-m", "serial"])
    assert "error: --mode must be 'serial_onpolicy' for" in capsys.readouterr().err


def test_command_converts_to_a_recipe_that_trains_the_same_weights(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = FILE.partition("main_config")[2].replace("of_a_file", "plain_dqn").replace('"run"', '"by_recipe"')
    Path("own_config.py").write_text(f"main_config{text}")
    main(["convert", "own_config.py", "-s", "5", "--train-iter", "6"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "written: own_config_recipe.py"
    assert any(line.startswith("warning: there is no YAML file, because tests.toys.") for line in lines)
    run_script(Path("own_config_recipe.py"), monkeypatch)
    policy = serial_pipeline(pair({"learn": {"learning_rat": 0.5}}), 5, max_train_iter=6)
    (file,) = Path("by_recipe").rglob("last.ckpt")
    weights = torch.load(file, weights_only=True)["state_dict"]
    assert all(torch.equal(weights[name], value) for name, value in policy.state_dict().items())


def test_class_of_a_file_cannot_be_converted(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["convert", config_file()])
    assert end.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert "must be a class or function of a module that can be imported" in line


@pytest.mark.parametrize(
    ("policy_class", "env", "env_step"), [(WrappedDQN, "cartpole", 64), (WrappedSAC, "pendulum", 64)]
)
def test_class_with_dings_wrappers_and_functions_is_trained_and_continued(
    policy_class: Any, env: str, env_step: int
) -> None:
    POLICY_REGISTRY.register("wrapped")(policy_class)
    main_config, create_config = pair({"learn": {"resume_training": True}}, "wrapped")
    create_config["env"]["type"] = env
    policy: Any = serial_pipeline((main_config, create_config), max_env_step=env_step)
    start, before = policy_class()._model.state_dict(), policy.model.state_dict()
    assert policy.progress.env_step == env_step
    assert any(not torch.equal(start[name], before[name]) for name in before)
    assert any(name.startswith("_target_model_wrapped.") for name in policy.state_dict())
    continued = serial_pipeline((main_config, create_config), max_env_step=2 * env_step)
    assert continued.progress.env_step == 2 * env_step
    assert evaluate((main_config, create_config), load_path="run/ckpt/best.ckpt") == pytest.approx(
        evaluate((main_config, create_config), load_path="run/ckpt/best.ckpt")
    )
