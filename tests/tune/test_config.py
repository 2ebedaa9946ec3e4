from __future__ import annotations

from pathlib import Path

import pytest

from lightning_ding.config import resolve
from lightning_ding.policy.dqn import DQNConfig
from lightning_ding.search_spaces import LogUniform, Uniform, declared_spaces
from lightning_ding.tune.config import TuneConfig, derived_seed, find_spaces, read_files, values_of

DQN = DQNConfig()


def test_all_declared_spaces_are_searched_if_none_is_chosen() -> None:
    assert find_spaces(DQN, {}) == declared_spaces(DQN)


def test_chosen_fields_alone_are_searched_in_their_declared_or_another_space() -> None:
    chosen = {"learn.learning_rate": "declared", "other.eps.end": "uniform(0.01,0.2)"}
    assert find_spaces(DQN, chosen) == {
        "learn.learning_rate": LogUniform(1e-5, 1e-2),
        "other.eps.end": Uniform(0.01, 0.2),
    }


@pytest.mark.parametrize(
    ("chosen", "error", "message"),
    [
        (
            {"learn.lr": "log(1e-5,1e-2)"},
            ValueError,
            "unknown config key 'learn.lr'; did you mean 'learn.learning_rate'",
        ),
        (
            {"learn.lr": "declared"},
            ValueError,
            "'learn.lr' declares no search space; did you mean 'learn.learning_rate'",
        ),
        ({"learn.loss": "declared"}, ValueError, "'learn.loss' declares no search space; .*declared: learn.batch_size"),
        ({"nstep": "int(1;5)"}, ValueError, "tune.spaces.nstep: .*two numbers"),
        ({"nstep": "int(0,5)"}, ValueError, r"tune.spaces.nstep: int\(0, 5\) holds 0, but nstep must be >= 1"),
        ({"nstep": "uniform(1,5)"}, TypeError, "tune.spaces.nstep: .* holds 1.0, but config key 'nstep' must be int"),
    ],
)
def test_field_or_space_that_is_wrong_is_one_error(
    chosen: dict[str, str], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        find_spaces(DQN, chosen)


@pytest.mark.parametrize(
    ("key", "value"), [("trials", 0), ("reports", 0), ("candidate_seeds", 0), ("seed", -1), ("candidates", -1)]
)
def test_setting_out_of_its_range_is_refused(key: str, value: int) -> None:
    with pytest.raises(ValueError, match=rf"tune.{key} must be >= \d, got {value}"):
        resolve(TuneConfig, {key: value}, "tune.")


def test_section_tune_is_taken_out_of_a_file(tmp_path: Path) -> None:
    with_section, plain = tmp_path / "a.yaml", tmp_path / "b.yaml"
    with_section.write_text("policy: dqn\ntune:\n  trials: 3\n  spaces:\n    nstep: declared\n")
    plain.write_text("policy: dqn\n")
    options, section = read_files([with_section, plain])
    assert options == ["--config", "policy: dqn\n", "--config", str(plain)]
    assert section == {"trials": 3, "spaces": {"nstep": "declared"}}


def test_mistakes_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"unknown config key 'tune.trails'; did you mean 'tune.trials'"):
        resolve(TuneConfig, {"trails": 5}, "tune.")
    with pytest.raises(ValueError, match=r"cannot read the config file '.*none.yaml'"):
        read_files([tmp_path / "none.yaml"])


def test_values_are_found_by_their_dotted_names() -> None:
    assert values_of(DQN, ["learn.learning_rate", "nstep"]) == {"learn.learning_rate": 5e-4, "nstep": None}


def test_seeds_of_trials_differ_and_are_the_same_each_time() -> None:
    seeds = [derived_seed(seed, kind, slot) for seed in range(3) for kind in range(2) for slot in range(20)]
    assert len(set(seeds)) == 120
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert derived_seed(1, 0, 2) == derived_seed(1, 0, 2)
