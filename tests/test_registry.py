"""Registries: names for classes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lightning_ding.registry
from lightning_ding.registry import POLICY_REGISTRY, Registry, import_modules
from tests.processes import run


class Circle:
    """A thing to build."""

    def __init__(self, radius: int = 1, *, colour: str = "red") -> None:
        self.radius = radius
        self.colour = colour


class Square:
    """Another thing."""


@pytest.fixture
def shapes() -> Registry[Any]:
    registry: Registry[Any] = Registry("shape")
    registry.register("round")(Circle)
    return registry


@pytest.fixture
def module_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder to import modules from, which are forgotten afterwards."""
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]


def test_register_returns_the_decorated_object(shapes: Registry[Any]) -> None:
    assert shapes.register("angular")(Square) is Square


def test_register_without_a_name_takes_the_name_of_the_class(shapes: Registry[Any]) -> None:
    shapes.register()(Square)
    assert shapes.get("Square") is Square


def test_a_refused_registration_leaves_the_entry(shapes: Registry[Any]) -> None:
    with pytest.raises(ValueError, match="taken"):
        shapes.register("round")(Square)
    assert shapes.get("round") is Circle


def test_register_takes_the_same_class_twice(shapes: Registry[Any]) -> None:
    assert shapes.register("round")(Circle) is Circle


def test_definition_that_is_executed_again_replaces_its_entry(shapes: Registry[Any]) -> None:
    def execute() -> type:
        class Star:
            """A thing."""

        found: type = shapes.register("star")(Star)
        return found

    first, second = execute(), execute()
    assert first is not second
    assert shapes.get("star") is second
    shapes.register("by value")(lambda: 1)
    with pytest.raises(ValueError, match="taken"):
        shapes.register("by value")(lambda: 2)


def test_register_with_force_overwrite_replaces_the_entry(shapes: Registry[Any]) -> None:
    shapes.register("round", force_overwrite=True)(Square)
    assert shapes.get("round") is Square


def test_build_hands_over_all_arguments(shapes: Registry[Any]) -> None:
    circle = shapes.build("round", 5, colour="blue")
    assert (circle.radius, circle.colour) == (5, "blue")


def test_build_lets_a_key_error_of_the_constructor_out_as_it_is(shapes: Registry[Any]) -> None:
    problem = KeyError("no such colour")

    def broken() -> None:
        raise problem

    shapes.register("broken")(broken)
    with pytest.raises(KeyError) as error:
        shapes.build("broken")
    assert error.value is problem


def test_mistakes_are_named(shapes: Registry[Any]) -> None:
    with pytest.raises(ValueError, match=r"the shape name 'round' is taken by .*Circle"):
        shapes.register("round")(Square)
    shapes.register("angular")(Square)
    with pytest.raises(KeyError, match=r"no shape is registered as 'qqq'; Registered: angular, round"):
        shapes.get("qqq")
    with pytest.raises(KeyError, match=r"did you mean 'round'\?"):
        shapes.get("roun")


def test_a_registry_knows_its_names_and_only_those(shapes: Registry[Any]) -> None:
    shapes.register("angular")(Square)
    assert (list(shapes), "round" in shapes, "flat" in shapes) == (["angular", "round"], True, False)


def test_name_of_finds_the_name_of_an_entry_and_none_for_a_stranger(shapes: Registry[Any]) -> None:
    assert (shapes.name_of(Circle), shapes.name_of(Square)) == ("round", None)


def test_the_home_of_a_registry_is_imported_at_the_first_look_up(module_folder: Path) -> None:
    (module_folder / "shape_home.py").write_text("imported = True")
    registry: Registry[Any] = Registry("shape", home="shape_home")
    before = "shape_home" in sys.modules
    looked_up = "round" in registry
    assert (before, looked_up, "shape_home" in sys.modules) == (False, False, True)


def test_a_home_that_cannot_be_imported_says_so_at_every_look_up() -> None:
    registry: Registry[Any] = Registry("shape", home="no_such_home")
    with pytest.raises(ModuleNotFoundError, match="no_such_home"):
        registry.get("round")
    with pytest.raises(ModuleNotFoundError, match="no_such_home"):
        registry.get("round")


def test_the_policy_registry_brings_its_built_in_entries() -> None:
    assert POLICY_REGISTRY.get("dqn").__name__ == "DQNPolicy"


def test_import_modules_runs_each_module(module_folder: Path) -> None:
    (module_folder / "plugin_one.py").write_text("value = 1")
    (module_folder / "plugin_two.py").write_text("value = 2")
    import_modules(["plugin_one", "plugin_two"])
    assert [sys.modules[name].value for name in ("plugin_one", "plugin_two")] == [1, 2]


def test_import_modules_names_the_missing_module() -> None:
    with pytest.raises(ImportError, match="import_names: cannot import 'no_such_plugin'"):
        import_modules(["no_such_plugin"])


def test_import_modules_keeps_the_cause(module_folder: Path) -> None:
    (module_folder / "plugin_broken.py").write_text("import no_such_dependency")
    with pytest.raises(ImportError, match="'plugin_broken'") as error:
        import_modules(["plugin_broken"])
    assert isinstance(error.value.__cause__, ModuleNotFoundError)
    assert error.value.__cause__.name == "no_such_dependency"


def test_import_modules_lets_other_errors_out_as_they_are(module_folder: Path) -> None:
    (module_folder / "plugin_wrong.py").write_text("raise ZeroDivisionError('mine')")
    with pytest.raises(ZeroDivisionError, match="mine"):
        import_modules(["plugin_wrong"])


NAMES_OF_OTHER_MODULES = [
    ("MODEL_REGISTRY", "continuous_qac"),
    ("SERIAL_EVALUATOR_REGISTRY", "battle_interaction"),
    ("SERIAL_COLLECTOR_REGISTRY", "sample_1v1"),
    ("LEARNER_HOOK_REGISTRY", "log_show"),
]


@pytest.mark.parametrize(("registry", "name"), NAMES_OF_OTHER_MODULES)
def test_a_built_in_entry_is_known_before_its_module_is_loaded(registry: str, name: str, tmp_path: Path) -> None:
    script = tmp_path / "own.py"
    script.write_text(f"""
from lightning_ding.registry import {registry} as registry
class Own: pass
try:
    registry.register({name!r})(Own)
    raise SystemExit("a taken name was accepted")
except ValueError:
    registry.register({name!r}, force_overwrite=True)(Own)
assert registry.get({name!r}) is Own and list(registry)
""")
    run(script)


def test_every_built_in_entry_is_found_in_one_module() -> None:
    for one in [one for one in vars(lightning_ding.registry).values() if isinstance(one, Registry)]:
        for name in [*one]:
            module = one.get(name).__module__
            is_lazy = one._home not in (None, "lightning_ding.distributed")  # which imports all of its parts
            if is_lazy and module.startswith(f"{one._home}."):
                found = f"{one._home}.{one._modules.get(name, name)}"
                assert module == found or module.startswith(f"{found}."), (one.kind, name)
