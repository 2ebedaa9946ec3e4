"""A converted run: YAML for ``lightning-ding fit`` and a recipe, which train the same weights as the entry itself."""

from __future__ import annotations

import functools
import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from lightning_ding.config import resolve
from lightning_ding.di_engine.convert import Unnamed, as_names, to_recipe, to_yaml
from lightning_ding.di_engine.serial import train
from lightning_ding.di_engine.translate import translate
from lightning_ding.entry import lightning_cli
from lightning_ding.registry import LEARNER_HOOK_REGISTRY
from lightning_ding.worker import LearnerHook
from tests.di_engine.pairs import OFFLINE, TYPES, env_of, small_pair
from tests.reward_model.cases import write_expert

Weights = dict[str, torch.Tensor]


def weights_in(folder: Path) -> Weights:
    """Return the weights of the last checkpoint of a run."""
    (file,) = folder.rglob("last.ckpt")
    weights: Weights = torch.load(file, weights_only=True)["state_dict"]
    return weights


def assert_equal(one: Weights, other: Weights) -> None:
    assert one.keys() == other.keys()
    assert [name for name in one if not torch.equal(one[name], other[name])] == []


def run_script(file: Path, monkeypatch: pytest.MonkeyPatch, *options: str) -> None:
    monkeypatch.setattr(sys, "argv", [file.name, *options])
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.main()


FAST = ("dqn", "sac", "pg")
EVERY = [pytest.param(kind, marks=() if kind in FAST else pytest.mark.slow) for kind in TYPES]


@pytest.mark.parametrize("kind", EVERY)
def test_yaml_and_recipe_train_the_same_weights(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    env: dict[str, Any] = (
        {"act_scale": True} if kind in OFFLINE and env_of(kind) == "pendulum" else {}
    )  # the data are in [-2, 2]
    run = translate(small_pair(kind, **env), seed=3, max_train_iter=3)
    folders = {name: tmp_path / name for name in ("entry", "yaml", "recipe")}
    for folder in folders.values():
        folder.mkdir()
        if kind in ("dqfd", "r2d3") or kind in OFFLINE:
            Path(write_expert(folder, env_of(kind) == "pendulum")).rename(folder / "demonstrations.npz")
    monkeypatch.chdir(folders["entry"])
    trained = train(run).state_dict()
    monkeypatch.chdir(folders["yaml"])
    Path("run.yaml").write_text(to_yaml(run))
    lightning_cli.main(["fit", "--config", "run.yaml", "--trainer.enable_progress_bar", "false"])
    monkeypatch.chdir(folders["recipe"])
    Path("recipe.py").write_text(to_recipe(run, "recipe"))
    run_script(Path("recipe.py"), monkeypatch)
    for folder in folders.values():
        assert_equal(weights_in(folder / "run" / "ckpt"), trained)


def test_seed_of_a_recipe_is_an_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = {}
    for seed in (3, 4):
        folder = tmp_path / str(seed)
        folder.mkdir()
        monkeypatch.chdir(folder)
        Path("recipe.py").write_text(to_recipe(translate(small_pair("dqn"), seed=3, max_train_iter=3), "recipe"))
        run_script(Path("recipe.py"), monkeypatch, "--seed", str(seed))
        weights[seed] = weights_in(folder)
    assert any(not torch.equal(weights[3][name], weights[4][name]) for name in weights[3])


@pytest.mark.parametrize("kind", TYPES)
def test_recipe_is_as_short_as_those_of_the_package(kind: str) -> None:
    limit: dict[str, Any] = {"max_train_iter" if kind in OFFLINE else "max_env_step": 1000}
    run = translate(small_pair(kind, stop_value=195), **limit)
    assert len(to_recipe(run, "recipe").splitlines()) <= 70


def test_yaml_holds_what_differs_from_the_defaults() -> None:
    run = translate(small_pair("ddpg"), seed=2)
    text = to_yaml(run, "lightning-ding fit --config here.yaml")
    content = yaml.safe_load(text)
    assert text.startswith("# lightning-ding fit --config here.yaml\n")
    assert list(content) == ["policy", "seed_everything", "trainer", "model", "data"]
    assert (content["policy"], content["seed_everything"], content["data"]["seed"]) == ("ddpg", 2, 2)
    config_class = run.policy_class.config_class
    assert resolve(config_class, content["model"]["cfg"]) == resolve(config_class, run.policy_config)
    assert content["model"]["cfg"]["random_collect_size"] == 16
    assert "noise" not in content["model"]["cfg"].get("learn", {})


def test_resumed_run_names_its_checkpoint() -> None:
    learn = {"resume_training": True, "learner": {"hook": {"load_ckpt_before_run": "a.ckpt"}}}
    run = translate(small_pair("dqn", {"learn": learn}))
    assert yaml.safe_load(to_yaml(run))["ckpt_path"] == "a.ckpt"
    assert "trainer.fit(policy, datamodule, ckpt_path='a.ckpt')" in to_recipe(run, "recipe")


class Record(LearnerHook):
    """A hook of a user, which writes the number of updates to a file."""

    def __call__(self, engine: Any) -> None:
        with Path("seen.txt").open("a") as file:
            file.write(f"{engine.last_iter.val} ")


def test_hook_is_called_by_the_yaml_and_the_recipe_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LEARNER_HOOK_REGISTRY, "_entries", {"record": Record})
    hook = {"record": {"type": "record", "position": "after_iter"}}
    run = translate(small_pair("dqn", {"learn": {"learner": {"hook": hook}, "update_per_collect": 2}}), 3, None, 4)
    monkeypatch.chdir(tmp_path)
    train(run)
    assert Path("seen.txt").read_text() == "2 4 "
    Path("run.yaml").write_text(to_yaml(run))
    lightning_cli.main(["fit", "--config", "run.yaml", "--trainer.enable_progress_bar", "false"])
    Path("recipe.py").write_text(to_recipe(run, "recipe"))
    run_script(Path("recipe.py"), monkeypatch)
    assert Path("seen.txt").read_text() == 3 * "2 4 "


def own_env(size: int = 3) -> None:
    """Stand for the function of a user."""


def test_callables_are_written_by_their_names() -> None:
    path = f"{__name__}.own_env"
    assert as_names({"a": [own_env, 1]}) == {"a": [path, 1]}
    assert as_names(functools.partial(own_env, size=5)) == {"class_path": path, "init_args": {"size": 5}}


@pytest.mark.parametrize("value", [lambda: None, functools.partial(own_env, 5), [].append])
def test_what_has_no_name_cannot_be_written(value: Any) -> None:
    with pytest.raises(Unnamed):
        as_names({"a": value})


def test_own_network_cannot_be_written() -> None:
    run = translate(small_pair("dqn", {"model": {"type": "mine", "obs_shape": 4, "action_shape": 2}}))
    for write in (to_yaml, functools.partial(to_recipe, name="recipe")):
        with pytest.raises(Unnamed, match="a network of your own, 'mine'"):
            write(run)
