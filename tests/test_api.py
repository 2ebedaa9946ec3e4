"""The public API: code that was written for the snapshot still finds its names and parameters."""

from __future__ import annotations

import lightning_ding
import lightning_ding.policy
from lightning_ding import __version__
from tests.api_snapshot import FILE, UPDATE, broken, public_api, read, version, write


def test_no_public_name_or_parameter_vanished() -> None:
    problems = broken(read(FILE.read_text()), public_api())
    meant = f"; if this is meant, run `{UPDATE}` and name the change in CHANGELOG.md"
    assert not problems, "\n".join(problems) + meant


def test_snapshot_covers_the_package() -> None:
    known = read(FILE.read_text())
    assert len(known) > 300
    assert "num_envs=" in known["lightning_ding.envs.make_vector_env"]
    assert "action" in known["lightning_ding.envs.EnvStepper.step"]
    for name in ("hub.push_to_hub", "entry.evaluate.evaluate", "entry.collect.collect", "entry.enjoy.enjoy"):
        assert len(known[f"lightning_ding.{name}"]) > 3
    others = ("search_spaces.LogUniform", "checkpoints.verify", "registry.POLICY_REGISTRY", "config.require")
    assert {f"lightning_ding.{name}" for name in (*others, "nested.flatten")} <= known.keys()


def test_snapshot_is_of_this_version() -> None:
    assert version(FILE.read_text()) == __version__, f"run `{UPDATE}`"


def test_text_of_a_snapshot_is_read_as_it_was_written() -> None:
    api: dict[str, tuple[str, ...]] = {"a.f": ("x", "y=", "**kwargs"), "a.g": ()}
    assert read(write(api)) == api


def test_removed_names_and_parameters_and_new_required_ones_break() -> None:
    old: dict[str, tuple[str, ...]] = {"f": ("x", "y="), "g": (), "h": ("x",), "k": ("x=",)}
    new: dict[str, tuple[str, ...]] = {"f": ("x", "z"), "h": ("x=", "more="), "k": ("x",), "new": ("a",)}
    assert broken(old, new) == [
        "f: parameter 'y' was removed",
        "f: parameter 'z' is required now",
        "g vanished",
        "k: parameter 'x' is required now",
    ]


def test_load_policy_is_at_the_top_of_the_package() -> None:
    assert lightning_ding.load_policy is lightning_ding.policy.load_policy
    assert not hasattr(lightning_ding, "load_policies")
