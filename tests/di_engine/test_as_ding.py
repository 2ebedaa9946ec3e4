"""``import ding...`` gives the names of this package, and a name that it lacks is one clear error."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from lightning_ding.di_engine.configs import read_file


@pytest.fixture(autouse=True)
def hook() -> Iterator[None]:
    """Install the hook, and remove it with the modules of ``ding``."""
    finders = list(sys.meta_path)
    importlib.import_module("lightning_ding.di_engine.as_ding").install()
    yield
    sys.meta_path[:] = finders
    for name in [one for one in sys.modules if one == "ding" or one.startswith("ding.")]:
        del sys.modules[name]


def test_names_are_those_of_this_package() -> None:
    from lightning_ding.di_engine import torch_utils

    assert importlib.import_module("ding.torch_utils").to_ndarray is torch_utils.to_ndarray
    assert importlib.import_module("ding.torch_utils.data_helper").to_ndarray is torch_utils.to_ndarray
    assert importlib.import_module("ding.policy.dqn").DQNPolicy is importlib.import_module("ding.policy").DQNPolicy
    assert importlib.import_module("ding").__version__ == "0.5.3"


def test_every_name_that_a_module_offers_exists() -> None:
    as_ding = importlib.import_module("lightning_ding.di_engine.as_ding")
    for package in as_ding.PACKAGES:
        names = importlib.import_module(f"ding.{package}").__all__
        assert len(names) == len(set(names))
        for name in names:
            assert as_ding.find(f"ding.{package}", name) is not None


def test_unknown_name_is_one_error() -> None:
    with pytest.raises(ImportError, match=r"^IBCPolicy of ding.policy.ibc is not available in lightning_ding"):
        exec("from ding.policy.ibc import IBCPolicy")
    with pytest.raises(ImportError, match=r"^np of ding.policy is not available"):
        exec("from ding.policy import np")
    with pytest.raises(ImportError, match=r"^ding.league is not available in lightning_ding, which has ding.bonus, "):
        importlib.import_module("ding.league")
    assert not hasattr(importlib.import_module("ding.policy"), "__wrapped__")


def test_star_gives_all_names() -> None:
    found: dict[str, object] = {}
    exec("from ding.torch_utils import *", found)
    assert {"to_list", "Adam"} <= found.keys()


def test_ding_itself_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    as_ding = importlib.import_module("lightning_ding.di_engine.as_ding")
    real = ModuleType("ding")
    real.__file__ = "site/ding/__init__.py"
    monkeypatch.setitem(sys.modules, "ding", real)
    with pytest.raises(ImportError, match=r"DI-engine is imported already, from site/ding/__init__.py: import"):
        as_ding.install()


def test_second_call_has_no_effect() -> None:
    finders = list(sys.meta_path)
    importlib.import_module("lightning_ding.di_engine.as_ding").install()
    assert sys.meta_path == finders


TEXT = """
from ding.utils import set_pkg_seed
from ding.policy.{module} import {name}
main_config, create_config = {{}}, {{"found": {name}.__module__}}
"""


@pytest.fixture
def without() -> None:
    """Remove the hook for a test."""
    found = [one for one in sys.meta_path if "ding_finder" in type(one).__module__]
    sys.meta_path[:] = [one for one in sys.meta_path if one not in found]


@pytest.mark.usefixtures("without")
@pytest.mark.parametrize("name", ["DQNPolicy", "IBCPolicy"])
def test_config_file_finds_the_names_and_nothing_is_left_behind(name: str, tmp_path: Path) -> None:
    (tmp_path / "config.py").write_text(TEXT.format(module="x", name=name))
    before = list(sys.meta_path)
    if name == "DQNPolicy":
        _, create = read_file(tmp_path / "config.py", ("main_config", "create_config"))
        assert create["found"] == "lightning_ding.di_engine.policy"
    else:
        with pytest.raises(ImportError, match=r"^IBCPolicy of ding\.policy\.x is not available in lightning_ding"):
            read_file(tmp_path / "config.py", ("main_config", "create_config"))
    assert sys.meta_path == before
    assert not [one for one in sys.modules if one.partition(".")[0] == "ding"]


@pytest.mark.usefixtures("without")
def test_config_file_that_installs_the_names_keeps_them(tmp_path: Path) -> None:
    line = "from lightning_ding.di_engine import as_ding; as_ding.install()"
    (tmp_path / "config.py").write_text(line + TEXT.format(module="x", name="DQNPolicy"))
    read_file(tmp_path / "config.py", ("main_config", "create_config"))
    assert importlib.import_module("ding.policy").DQNPolicy.__module__ == "lightning_ding.di_engine.policy"


@pytest.mark.usefixtures("without")
def test_config_file_sees_ding_itself_if_it_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = ModuleType("ding")
    real.policy = ModuleType("ding.policy")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ding", real)
    (tmp_path / "config.py").write_text("import ding\nmain_config, create_config = {}, {'found': ding.policy}")
    _, create = read_file(tmp_path / "config.py", ("main_config", "create_config"))
    assert create["found"] is real.policy
