"""Reading configs: merging, strict keys and types, and the way to EasyDict and back."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import json
import operator
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
import pytest
from easydict import EasyDict

from lightning_ding.config import (
    OTHER_NAMES,
    _paths,
    deep_merge,
    moved,
    nearest,
    read_only,
    require,
    resolve,
    to_dict,
    to_easydict,
)
from lightning_ding.datamodules import ReplayDataModule
from lightning_ding.policy import DQNConfig
from lightning_ding.registry import POLICY_REGISTRY


@dataclass(frozen=True)
class InnerConfig:
    """A section."""

    batch_size: int = 64
    learning_rate: float = 0.5

    def __post_init__(self) -> None:
        """Check the ranges."""
        require(self.batch_size >= 1, "inner.batch_size", ">= 1", self.batch_size)


@dataclass(frozen=True)
class MiddleConfig:
    """A section that holds a section."""

    inner: InnerConfig = field(default_factory=InnerConfig)


@dataclass(frozen=True)
class OuterConfig:
    """A config with a field of every kind."""

    MOVED: ClassVar[dict[str, str]] = moved(cuda="choose the device on the Trainer")

    count: int = 1
    ratio: float = 0.25
    flag: bool = False
    name: str | None = None
    loss: Literal["huber", "mse"] = "huber"
    widths: tuple[int, ...] = (3, 4)
    shape: int | Sequence[int] | None = None
    weights: Mapping[str, float] = field(default_factory=dict)
    anything: Any = None
    inner: InnerConfig = field(default_factory=InnerConfig)
    middle: MiddleConfig = field(default_factory=MiddleConfig)


def test_deep_merge_keeps_keys_that_the_update_does_not_name() -> None:
    merged = deep_merge({"learn": {"lr": 0.1, "size": 64}, "n": 1}, {"learn": {"lr": 0.2}, "m": 2})
    assert merged == {"learn": {"lr": 0.2, "size": 64}, "n": 1, "m": 2}


@pytest.mark.parametrize(
    ("base", "update", "merged"),
    [
        ({"a": {"b": 1}}, {"a": 5}, {"a": 5}),
        ({"a": 5}, {"a": {"b": 1}}, {"a": {"b": 1}}),
        ({"a": [1, 2]}, {"a": [3]}, {"a": [3]}),
        ({"a": 1}, {"a": None}, {"a": None}),
        ({"a": {"b": {"c": 1, "d": 2}}}, {"a": {"b": {"c": 3}}}, {"a": {"b": {"c": 3, "d": 2}}}),
    ],
)
def test_deep_merge_replaces_all_but_mappings(
    base: dict[str, Any], update: dict[str, Any], merged: dict[str, Any]
) -> None:
    assert deep_merge(base, update) == merged


def test_deep_merge_changes_neither_argument() -> None:
    base, update = {"a": {"b": 1}}, {"a": {"c": 2}}
    deep_merge(base, update)
    assert (base, update) == ({"a": {"b": 1}}, {"a": {"c": 2}})


def test_deep_merge_result_shares_no_mapping_with_its_arguments() -> None:
    base, update = {"left": {"b": 1}}, {"right": {"c": 2}}
    merged = deep_merge(base, update)
    merged["left"]["b"] = merged["right"]["c"] = 99
    assert (base, update) == ({"left": {"b": 1}}, {"right": {"c": 2}})


def test_resolve_of_nothing_gives_the_defaults() -> None:
    assert resolve(OuterConfig, None) == OuterConfig()


def test_resolve_returns_a_dataclass_as_it_is() -> None:
    config = OuterConfig(count=7)
    assert resolve(OuterConfig, config) is config


def test_resolve_merges_a_mapping_over_the_defaults_at_every_depth() -> None:
    config = resolve(OuterConfig, {"count": 2, "middle": {"inner": {"batch_size": 8}}})
    assert config == OuterConfig(count=2, middle=MiddleConfig(InnerConfig(batch_size=8, learning_rate=0.5)))


def test_resolve_takes_a_section_as_a_dataclass() -> None:
    assert resolve(OuterConfig, {"inner": InnerConfig(batch_size=3)}).inner.batch_size == 3


@pytest.mark.parametrize("cfg", [3, "count", [("count", 1)], InnerConfig(), OuterConfig])
def test_resolve_refuses_other_types(cfg: Any) -> None:
    with pytest.raises(TypeError, match="cfg must be a OuterConfig, a mapping or None"):
        resolve(OuterConfig, cfg)


@pytest.mark.parametrize(
    ("cfg", "key", "hint"),
    [
        ({"cuont": 1}, "cuont", "did you mean 'count'?"),
        ({"inner": {"batchsize": 1}}, "inner.batchsize", "did you mean 'inner.batch_size'?"),
        (
            {"middle": {"inner": {"learning_rat": 1.0}}},
            "middle.inner.learning_rat",
            "did you mean 'middle.inner.learning_rate'?",
        ),
        ({"inner": {"zzz": 1}}, "inner.zzz", "known: batch_size, learning_rate"),
        ({0: 1}, "0", "known: anything, count"),
    ],
)
def test_resolve_names_an_unknown_key_and_the_nearest_known_one(cfg: Any, key: str, hint: str) -> None:
    with pytest.raises(ValueError, match="unknown config key") as error:
        resolve(OuterConfig, cfg)
    assert f"'{key}'; {hint}" in str(error.value)


@pytest.mark.parametrize(
    ("cfg", "message"),
    [
        ({"count": 1.5}, "'count' must be int, got float: 1.5"),
        ({"count": True}, "'count' must be int, got bool: True"),
        ({"ratio": "0.5"}, "'ratio' must be float, got str: '0.5'"),
        ({"ratio": True}, "'ratio' must be float, got bool: True"),
        ({"flag": 1}, "'flag' must be bool, got int: 1"),
        ({"name": 3}, "'name' must be str or NoneType, got int: 3"),
        ({"loss": "mae"}, "'loss' must be one of 'huber', 'mse', got str: 'mae'"),
        ({"widths": [1, "2"]}, "'widths' must be"),
        ({"widths": "12"}, "'widths' must be"),
        ({"weights": {"a": "heavy"}}, "'weights' must be"),
        ({"shape": {"a": 1}}, "'shape' must be int or"),
        ({"count": None}, "'count' must be int, got NoneType: None"),
        ({"inner": 3}, "'inner' must be InnerConfig, got int: 3"),
        ({"inner": None}, "'inner' must be InnerConfig, got NoneType: None"),
        ({"middle": {"inner": {"batch_size": "8"}}}, "'middle.inner.batch_size' must be int, got str: '8'"),
    ],
)
def test_resolve_refuses_a_wrong_type_and_names_the_key(cfg: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError) as error:
        resolve(OuterConfig, cfg)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("cfg", "name", "value"),
    [
        ({"ratio": 1}, "ratio", 1),
        ({"name": "x"}, "name", "x"),
        ({"loss": "mse"}, "loss", "mse"),
        ({"widths": [5, 6, 7]}, "widths", (5, 6, 7)),
        ({"shape": 4}, "shape", 4),
        ({"shape": [4, 5]}, "shape", (4, 5)),
        ({"weights": {"a": 1}}, "weights", {"a": 1}),
        ({"anything": object}, "anything", object),
    ],
)
def test_resolve_accepts_a_value_of_the_right_type(cfg: dict[str, Any], name: str, value: object) -> None:
    assert getattr(resolve(OuterConfig, cfg), name) == value


def test_resolve_keeps_no_reference_to_the_mapping() -> None:
    cfg: dict[str, Any] = {"inner": {"batch_size": 8}, "widths": [1, 2], "weights": {"a": 1.0}}
    config = resolve(OuterConfig, cfg)
    cfg["inner"]["batch_size"] = 9
    cfg["widths"].append(3)
    cfg["weights"]["a"] = 2.0
    assert (config.inner.batch_size, config.widths, config.weights) == (8, (1, 2), {"a": 1.0})


def test_easydict_of_a_config_resolves_to_an_equal_config() -> None:
    config = OuterConfig(
        count=3, name="x", widths=(9,), shape=(2, 3), weights={"a": 0.5}, inner=InnerConfig(batch_size=2)
    )
    assert resolve(OuterConfig, to_easydict(config)) == config


def test_easydict_of_a_config_reads_by_attribute_at_every_depth() -> None:
    assert to_easydict(OuterConfig()).middle.inner.batch_size == 64


def test_changing_the_easydict_leaves_the_config_and_other_easydicts_alone() -> None:
    config = OuterConfig(weights={"a": 0.5}, anything={"b": [1]})
    first, second = to_easydict(config), to_easydict(config)
    first.inner.batch_size = 1
    first.widths.append(5)
    first.weights.a = 9.0
    first.anything.b.append(2)
    assert (second, config) == (to_easydict(config), OuterConfig(weights={"a": 0.5}, anything={"b": [1]}))


def test_to_dict_holds_builtins_only() -> None:
    config = OuterConfig(shape=(2, 3), anything={"pair": (1, InnerConfig())})
    assert to_dict(config) == {
        "count": 1,
        "ratio": 0.25,
        "flag": False,
        "name": None,
        "loss": "huber",
        "widths": [3, 4],
        "shape": [2, 3],
        "weights": {},
        "anything": {"pair": [1, {"batch_size": 64, "learning_rate": 0.5}]},
        "inner": {"batch_size": 64, "learning_rate": 0.5},
        "middle": {"inner": {"batch_size": 64, "learning_rate": 0.5}},
    }


@pytest.mark.parametrize("config", [OuterConfig, {"count": 1}, None])
def test_to_dict_refuses_other_types(config: Any) -> None:
    with pytest.raises(TypeError, match="config must be a dataclass instance"):
        to_dict(config)


def test_a_config_cannot_be_changed() -> None:
    config: Any = resolve(OuterConfig, EasyDict(count=2))
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.count = 3


def test_nearest_names_the_most_alike_of_several() -> None:
    assert nearest("n_stp", ["n_step", "n_sample", "eps"]) == "did you mean 'n_step'?"


NUMPY: dict[str, Any] = {
    "count": np.int64(3),
    "ratio": np.float64(0.5),
    "flag": np.bool_(True),
    "loss": np.str_("mse"),
    "widths": np.array([1, 2]),
    "shape": (np.int32(4), np.int64(5)),
    "weights": {"a": np.float32(0.5)},
    "anything": {"deep": [np.float64(1.5)]},
    "inner": {"batch_size": np.int64(8), "learning_rate": np.float32(0.25)},
}


@pytest.mark.parametrize("given", ["mapping", "dataclass"])
def test_numbers_of_numpy_are_read_as_those_of_python(given: str) -> None:
    made = OuterConfig(**{**NUMPY, "inner": InnerConfig(**NUMPY["inner"])})
    config = resolve(OuterConfig, NUMPY if given == "mapping" else made)

    assert (config.count, config.ratio, config.flag, config.loss) == (3, 0.5, True, "mse")
    assert [type(value) for value in (config.count, config.ratio, config.flag, config.loss)] == [int, float, bool, str]
    assert (config.widths, config.shape, config.weights) == ((1, 2), (4, 5), {"a": 0.5})
    assert (config.anything, config.inner) == ({"deep": (1.5,)}, InnerConfig(8, 0.25))
    assert type(config.inner.learning_rate) is float
    assert {type(number) for number in (*config.widths, *config.shape)} == {int}  # type: ignore[misc]


@pytest.mark.parametrize("wrong", [{"count": np.float64(0.5)}, {"count": np.bool_(True)}, {"flag": np.int64(1)}])
def test_numbers_of_numpy_of_another_type_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=r"must be (int|bool), got"):
        resolve(OuterConfig, wrong)


def test_a_config_made_of_numbers_of_numpy_is_written_as_builtins() -> None:
    written = to_dict(OuterConfig(count=np.int64(3), shape=np.array([4, 5])))  # type: ignore[arg-type]
    assert (type(written["count"]), written["shape"]) == (int, [4, 5])


@dataclass(frozen=True)
class MarkedConfig(OuterConfig):
    """A whole config, whose dict says of which class it is."""

    IS_MARKED: ClassVar[bool] = True


def test_numbers_of_numpy_are_read_in_a_config_whose_dict_is_marked() -> None:
    assert "cfg_type" in to_dict(MarkedConfig())
    assert resolve(MarkedConfig, MarkedConfig(count=np.int64(3))) == MarkedConfig(count=3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("learning_rate", "learn.learning_rate"),
        ("lr", "learn.learning_rate"),
        ("learn.lr", "learn.learning_rate"),
        ("learn.gamma", "discount_factor"),
        ("tau", "learn.target_theta"),
        ("buffer_size", "other.replay_buffer.replay_buffer_size"),
        ("collect.batch_size", "learn.batch_size"),
        ("lern", "learn"),
        ("learn.bacth_size", "learn.batch_size"),
    ],
)
def test_an_unknown_key_of_a_policy_names_the_whole_path_of_the_one_that_is_meant(name: str, meant: str) -> None:
    *sections, key = name.split(".")
    cfg: dict[str, Any] = {key: 1}
    for section in reversed(sections):
        cfg = {section: cfg}
    with pytest.raises(ValueError, match=f"^unknown config key '{name}'; did you mean '{meant}'\\?$"):
        resolve(DQNConfig, cfg)


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match="'cuda' does not exist here: choose the device on the Trainer"):
        resolve(OuterConfig, {"cuda": True})
    with pytest.raises(ValueError, match=r"unknown config key 'inner\.cuda'"):
        resolve(OuterConfig, {"inner": {"cuda": True}})
    with pytest.raises(ValueError, match=r"inner\.batch_size must be >= 1, got 0"):
        resolve(OuterConfig, {"inner": {"batch_size": 0}})
    require(True, "gamma", "in [0, 1]", 0.5)
    with pytest.raises(ValueError, match=r"^gamma must be in \[0, 1\], got 1\.5$"):
        require(False, "gamma", "in [0, 1]", 1.5)
    with pytest.raises(ValueError, match=r"unknown config key 'learn\.zzz'; known: batch_size, .*update_per_collect"):
        resolve(DQNConfig, {"learn": {"zzz": 1}})


@pytest.mark.parametrize(
    "change",
    [
        lambda cfg: cfg.setdefault("new", 1),
        lambda cfg: cfg.pop("a"),
        lambda cfg: cfg.update(a=2),
        lambda cfg: cfg.b[0].update(c=2),
        lambda cfg: cfg.b[0].__setattr__("c", 2),
    ],
)
def test_a_config_that_is_read_only_cannot_be_changed_by_any_method(change: Any) -> None:
    cfg = read_only({"a": 1, "b": [{"c": 1}]}, "policy.cfg")
    with pytest.raises(TypeError, match=r"policy\.cfg.* cannot be set"):
        change(cfg)
    assert (cfg, cfg.b[0].c) == ({"a": 1, "b": [{"c": 1}]}, 1)
    copied = copy.deepcopy(cfg)
    copied.b[0].c = 2
    assert (copied.b[0].c, cfg.b[0].c) == (2, 1)


@pytest.mark.parametrize(
    "change",
    [
        lambda sizes: sizes.append(64),
        lambda sizes: sizes.extend([64]),
        lambda sizes: sizes.insert(0, 64),
        lambda sizes: sizes.remove(2),
        lambda sizes: sizes.pop(),
        lambda sizes: sizes.clear(),
        lambda sizes: sizes.sort(),
        lambda sizes: sizes.reverse(),
        lambda sizes: operator.setitem(sizes, 0, 64),
        lambda sizes: operator.setitem(sizes, slice(None), []),
        lambda sizes: operator.delitem(sizes, 0),
        lambda sizes: sizes.__iadd__([64]),
        lambda sizes: sizes.__imul__(2),
        lambda sizes: sizes[2].append(64),
    ],
)
def test_a_list_in_a_config_that_is_read_only_cannot_be_changed_by_any_method(change: Any) -> None:
    cfg = read_only({"model": {"sizes": [3, 2, [1]]}}, "policy.cfg")
    with pytest.raises(TypeError, match=r"policy\.cfg\.model\.sizes cannot be changed: pass it to the constructor"):
        change(cfg.model.sizes)
    assert cfg.model.sizes == [3, 2, [1]]
    for copied in (copy.deepcopy(cfg), pickle.loads(pickle.dumps(cfg))):
        copied.model.sizes[2].append(64)
        assert copied.model.sizes == [3, 2, [1, 64]]
        assert (type(copied.model.sizes), type(copied.model.sizes[2])) == (list, list)
    assert EasyDict(cfg.model) == {"sizes": [3, 2, [1]]}
    assert json.dumps(cfg) == '{"model": {"sizes": [3, 2, [1]]}}'


def test_other_names_lead_to_options_that_exist() -> None:
    names = {
        path.rpartition(".")[2] for name in POLICY_REGISTRY for path in _paths(POLICY_REGISTRY.get(name).config_class)
    }
    names |= set(inspect.signature(ReplayDataModule).parameters)
    assert {meant for meanings in OTHER_NAMES.values() for meant in meanings} - names == set()
