"""Every block of the page about DI-engine runs; blocks in DI-engine's form run with the imports of the page's table."""

from __future__ import annotations

import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
import yaml

from lightning_ding import registry
from lightning_ding.di_engine.configs import read_pair
from lightning_ding.di_engine.convert import to_yaml
from lightning_ding.di_engine.translate import translate
from lightning_ding.entry.cli import main
from lightning_ding.envs import make_base_env
from tests.test_docs import ROOT, blocks

PAGE = (ROOT / "docs" / "from_di_engine.md").read_text()
CONFIG = "cartpole_dqn_config.py"
BY_TITLE = {part.partition("\n")[0]: part for part in PAGE.split("\n## ")[1:]}
MODULES = dict(re.findall(r"^\| `(ding\.[\w.]+)` \| `([\w.]+)` \|$", BY_TITLE["Imports"], flags=re.MULTILINE))


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run in a folder with the config of the page, and forget what the blocks register."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / CONFIG).write_text(blocks("python", PAGE)[0])
    tables = [registry.ENV_REGISTRY, registry.POLICY_REGISTRY, registry.LEARNER_HOOK_REGISTRY]
    before = [{name: table.get(name) for name in table} for table in tables]
    yield
    for table, entries in zip(tables, before, strict=True):
        cast(Any, table)._entries = entries


def python_of(title: str) -> list[str]:
    """Return the Python blocks of a section, with the imports that they need here."""
    found = blocks("python", BY_TITLE[title])
    return [re.sub(r"^from (ding[\w.]*) import", _import, block, flags=re.MULTILINE) for block in found]


def _import(found: re.Match[str]) -> str:
    return f"from {MODULES[found[1]]} import"


def run(code: str) -> dict[str, Any]:
    """Run code as a module, so that its classes can be found by their names, and return its names."""
    module = types.ModuleType("block")
    sys.modules["block"] = module
    exec(compile(code, "block", "exec"), vars(module))
    return vars(module)


def test_page_has_as_many_blocks_as_are_run_here() -> None:
    number = {title: len(blocks("python", part)) for title, part in BY_TITLE.items()}
    run_here = {"Running a config": 3, "Imports": 1, "An agent": 1, "A script": 1, "A task": 1, "A policy": 4}
    run_here |= {"An env": 2, "A hook": 2, "A config": 1}
    assert {title: one for title, one in number.items() if one and title != "Checkpoints"} == run_here
    assert [len(blocks(language, PAGE)) for language in ("bash", "yaml")] == [3, 1]
    assert all("\nassert " in BY_TITLE[title] for title in run_here if title != "Imports")


def test_blocks_before_need_only_other_imports() -> None:
    lines = re.findall(r"^from (ding[\w.]*) import", PAGE, flags=re.MULTILINE)
    assert len(lines) == 27
    assert set(lines) <= set(MODULES)
    assert "\nimport ding" not in PAGE


def test_config_runs_from_python() -> None:
    main_config, create_config = read_pair(CONFIG)
    assert (main_config["exp_name"], create_config["policy"]["type"]) == ("cartpole_dqn", "dqn")
    run(python_of("Running a config")[1])
    for name in ("ckpt/best.ckpt", "log/serial", "config.yaml", "result.json"):
        assert (Path("cartpole_dqn") / name).exists()


def test_config_of_a_data_set_is_trained_on_it() -> None:
    run(python_of("Running a config")[2])
    assert (Path("cartpole_cql") / "result.json").is_file()


def test_commands_run_in_their_order(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [line for block in blocks("bash", PAGE) for line in block.splitlines()]
    assert len(lines) == 6
    for line in lines:
        program, *options = line.split()
        if program == "python":
            code = Path(options[0]).read_text()
            monkeypatch.setattr(sys, "argv", options)
            exec(compile(code, options[0], "exec"), {"__name__": "__main__"})
            continue
        is_short = "eval" not in options and options[0] in ("serial", "convert")
        main([*options, *(["--env-step", "300"] if is_short else [])])
    printed = capsys.readouterr().out
    assert "policy.learn.batch_size -> model.cfg.learn.batch_size" in printed
    assert "mean return: " in printed
    assert "1 configs: 1 runs" in printed


def test_agent_runs() -> None:
    run(python_of("An agent")[0])
    assert Path("cartpole-dqn/demo_data.npz").is_file()


def test_script_runs() -> None:
    run(python_of("A script")[0])
    assert Path("script/ckpt/ckpt_best.pth.tar").is_file()
    assert Path("script/total_config.py").is_file()


def test_task_runs_its_middleware() -> None:
    run(python_of("A task")[0])
    assert {"eval.pth.tar", "final.pth.tar"} <= {file.name for file in Path("task/ckpt").iterdir()}
    assert Path("task/result.json").is_file()


def test_line_before_a_script_lets_its_imports_find_this_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    run(python_of("Imports")[0])
    as_ding: Any = sys.modules["lightning_ding.di_engine.as_ding"]
    as_ding.install()  # it was imported before, perhaps with another list of finders
    below = {"ding.utils.data", "ding.framework.context", "ding.framework.middleware"}
    assert {"ding." + name for name in as_ding.PACKAGES} | below == MODULES.keys()
    assert all(as_ding.home_of(name).__name__ == home for name, home in MODULES.items())


def test_policies_before_and_after_have_the_same_loss_and_gradients() -> None:
    before, use, after, _ = python_of("A policy")
    names = run(before)
    trained = run(use)["policy"]
    assert type(trained) is names["HuberQ"]
    theirs, ours = names["HuberQ"](), run(after)["policy"]
    ours.model.load_state_dict(theirs.model.state_dict())
    ours.target_model.load_state_dict(theirs.model.state_dict())
    rows = [
        {"obs": torch.randn(4), "next_obs": torch.randn(4), "action": torch.tensor([row % 2])}
        | {"reward": torch.tensor([float(row)]), "done": row == 3}
        for row in range(8)
    ]
    columns = {name: torch.stack([torch.as_tensor(row[name]) for row in rows]) for name in rows[0]}
    for name in ("action", "reward"):
        columns[name] = columns[name].squeeze(1)
    loss, _ = ours.loss(ours.prepare({**columns, "terminated": columns["done"]}))
    report = theirs.learn_mode.forward(rows)
    assert report["total_loss"] == pytest.approx(loss.item(), rel=1e-6)
    loss.backward()
    for one, other in zip(ours.model.parameters(), theirs.model.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)


def test_subclass_of_a_policy_is_trained_by_its_name() -> None:
    run(python_of("A policy")[3])
    assert Path("clipped/result.json").is_file()


def test_envs_before_and_after_give_the_same_steps() -> None:
    before, after = (run(block) for block in python_of("An env"))
    theirs, ours = make_base_env(before["Corridor"], {"length": 3}), after["CorridorHere"](3)
    ends = []
    for actions in ([0, 1, 1, 0, 1, 1], [0] * 20):
        np.testing.assert_array_equal(theirs.reset(seed=0)[0], ours.reset(seed=0)[0])
        for action in actions:
            first, second = theirs.step(np.int64(action)), ours.step(action)
            np.testing.assert_array_equal(first[0], second[0])
            assert first[1:4] == second[1:4]
        ends.append(second[2:4])
    assert ends == [(True, False), (False, True)]


@pytest.mark.parametrize("number", range(2))
def test_hook_runs_at_the_same_updates(number: int) -> None:
    assert run(python_of("A hook")[number])["seen"][:2] == [10, 20]


def test_configs_after_are_the_translated_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    translated = translate(CONFIG)
    (text,) = blocks("yaml", PAGE)
    converted = yaml.safe_load(to_yaml(translated))
    assert yaml.safe_load(text) == {name: converted[name] for name in ("policy", "model", "data")}
    names = run(python_of("A config")[0])
    assert names["policy"].config == type(names["policy"])(translated.policy_config).config
    expected = translated.datamodule_class(**translated.data)
    assert names["data"].env_kwargs == expected.env_kwargs
    assert (names["data"].num_envs, names["data"].stop_value) == (expected.num_envs, expected.stop_value)
