"""Files from strangers that try to run code; each test is a row of the table in SECURITY.md."""

from __future__ import annotations

import base64
import json
import pickle
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
import torch
from gymnasium import spaces
from lightning import Trainer
from safetensors import safe_open
from safetensors.torch import save_file

from lightning_ding.config import deep_merge
from lightning_ding.datamodules import ReplayDataModule
from lightning_ding.datamodules.dataset_files import load_dataset
from lightning_ding.entry.cli import main
from lightning_ding.envs import NotPlainError
from lightning_ding.envs.state.codec import from_plain
from lightning_ding.envs.state.simulators import load_simulator, read_simulator
from lightning_ding.hub import from_hub
from lightning_ding.policy import DQNPolicy, NonFiniteError, load_dump, load_policy, load_sb3_policy
from lightning_ding.policy.base.attribute_codec import EXISTING
from lightning_ding.policy.base.weights_file import KEY
from lightning_ding.registry import NotRegisteredError
from lightning_ding.tune import Study
from lightning_ding.worker import create_buffer
from lightning_ding.worker.learner.engine import read_checkpoint
from tests.distributed.coordinator.coordinating import Run, config
from tests.docs.pages import as_before
from tests.policy.saved import write_checkpoint
from tests.sb3.make_models import write_zip
from tests.sb3.stored import inputs, make_zip, models, weights_of
from tests.sb3.test_load import STATISTICS
from tests.test_hub import Hub, hub  # noqa: F401 - a fixture
from tests.tune.test_study import RUN, SEARCH

PAGE = (Path(__file__).parents[1] / "SECURITY.md").read_text()
HOSTILE = """
from pathlib import Path

Path("ran").touch()


def make(**kwargs):
    Path("ran").touch()


class Stolen:
    '''A class of a module that the program has not imported.'''
"""
SPACES = (spaces.Box(-1, 1, (3,), np.float32), spaces.Discrete(2))
NEEDED: dict[str, dict[str, Any]] = {
    "reward_model": {"reward_model": {"type": "own", "import_names": ["hostile"]}},
    "replay_buffer": {"other": {"replay_buffer": {"type": "own", "import_names": ["hostile"], "alpha": 0.5}}},
}
"""Changes of a config that name a module, which registers a class without which no policy can be made."""
LEFT_OUT: dict[str, dict[str, Any]] = {
    "buffer": {"other": {"replay_buffer": {"type": "own", "import_names": ["hostile"]}}},
    "collector": {"collect": {"collector": {"import_names": ["json", "hostile"]}}},
    "text": {"eval": {"evaluator": {"import_names": "hostile"}}},
}
"""Changes of a config that name a module, without which the policy acts."""
REFUSED = r"the file names the module 'hostile' \([\w.\[\]]+import_names\), which the program has not imported: "


class Runs:
    """An object whose pickle calls a function."""

    def __reduce__(self) -> Any:
        return Path.touch, (Path("ran"),)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Work in a folder with a hostile module, which Python can find, and check that it did not run."""
    (tmp_path / "hostile.py").write_text(HOSTILE)
    with as_before(tmp_path, monkeypatch):
        yield tmp_path
        assert "hostile" not in sys.modules
        assert not Path("ran").exists()


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the content of an honest checkpoint."""
    policy = DQNPolicy({"model": {"encoder_hidden_size_list": [4]}}).build(*SPACES)
    file = write_checkpoint(policy, tmp_path_factory.mktemp("honest") / "policy.ckpt")
    saved: dict[str, Any] = torch.load(file, weights_only=True)
    return saved


def forged(content: dict[str, Any], changes: dict[str, Any]) -> Path:
    torch.save(deep_merge(content, changes), "forged.ckpt")
    return Path("forged.ckpt")


def with_config(content: dict[str, Any], changes: dict[str, Any]) -> Path:
    return forged(content, {"hyper_parameters": {"cfg": changes}})


def safetensors_with(changes: dict[str, Any]) -> Path:
    """Return a safetensors file of a policy with another description."""
    DQNPolicy({"model": {"encoder_hidden_size_list": [4]}}).build(*SPACES).export("honest.safetensors", "safetensors")
    with safe_open("honest.safetensors", framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no dict
        described = json.loads(file.metadata()[KEY])
    save_file(tensors, "forged.safetensors", metadata={KEY: json.dumps(deep_merge(described, changes))})
    return Path("forged.safetensors")


def error_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Return the line with which a command ends."""
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


# ---------------------------------------------------------------------- checkpoints


@pytest.mark.parametrize("section", NEEDED)
@pytest.mark.parametrize("load", [load_policy, DQNPolicy.load_from_checkpoint])
def test_checkpoint_whose_config_needs_a_module(
    load: Callable[..., Any], section: str, content: dict[str, Any]
) -> None:
    with pytest.raises(NotRegisteredError, match=f"no .* is registered as 'own'; .*; {REFUSED}"):
        load(with_config(content, NEEDED[section]))


@pytest.mark.parametrize("section", LEFT_OUT)
@pytest.mark.parametrize("load", [load_policy, DQNPolicy.load_from_checkpoint])
def test_checkpoint_whose_config_names_a_module(
    load: Callable[..., Any], section: str, content: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    policy = load(with_config(content, LEFT_OUT[section]))
    assert re.search(REFUSED, caplog.text)
    assert "hostile" not in str(policy.cfg)  # no worker that is made later imports it
    if section == "collector":
        assert policy.config.collect.collector.import_names == ("json",)
    if section == "buffer":
        with pytest.raises(NotRegisteredError, match="no buffer is registered as 'own'"):
            create_buffer(policy.config.other.replay_buffer)


@pytest.mark.parametrize(
    "command", ["export", "evaluate --env_id CartPole-v1", "enjoy --env_id CartPole-v1", "collect --out x.npz"]
)
def test_command_for_a_checkpoint_whose_config_needs_a_module(
    command: str, content: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    line = error_line([*command.split(), str(with_config(content, NEEDED["reward_model"]))], capsys)
    assert re.search(f"^error: no reward model is registered as 'own'; .*; {REFUSED}", line)
    assert line.endswith("import_names (--import_names MODULE) imports a module of yours that registers it")


def test_checkpoint_whose_policy_is_a_dotted_path(content: dict[str, Any]) -> None:
    with pytest.raises(NotRegisteredError, match=r"policy class 'hostile.Stolen', which is not registered"):
        load_policy(with_config(content, {"cfg_type": "hostile.StolenDict"}))


@pytest.mark.parametrize("name", ["lightning.pytorch.cli.instantiate_module", "hostile.make"])
@pytest.mark.parametrize("load", [load_policy, DQNPolicy.load_from_checkpoint])
def test_checkpoint_with_the_instantiator_of_lightning(
    load: Callable[..., Any], name: str, content: dict[str, Any]
) -> None:
    for parts in ({}, {"_class_path": "hostile.Stolen"}):
        assert type(load(forged(content, {"hyper_parameters": {"_instantiator": name, **parts}}))) is DQNPolicy
    model = {"class_path": "hostile.make", "init_args": {}}  # the constructor gets it as it is
    with pytest.raises(TypeError, match=r"model must be an nn\.Module or None, got dict"):
        load(forged(content, {"hyper_parameters": {"_instantiator": name, "model": model}}))


@pytest.mark.parametrize("key", ["hparams", "module_arguments"])
def test_checkpoint_with_a_config_under_an_older_key_of_lightning(key: str, content: dict[str, Any]) -> None:
    torch.save({**content, key: {"cfg": NEEDED["reward_model"]}, "hyper_parameters": {}}, "forged.ckpt")
    with pytest.raises(NotRegisteredError, match=REFUSED):
        DQNPolicy.load_from_checkpoint("forged.ckpt")


def test_checkpoint_with_the_config_of_a_forked_rank_among_its_weights(content: dict[str, Any]) -> None:
    file = forged(content, {"state_dict": {"handed_over": {**content, "cfg": NEEDED["reward_model"]}}})
    resume = DQNPolicy().on_load_checkpoint  # which a Trainer calls before it loads the weights
    for load in (load_policy, DQNPolicy.load_from_checkpoint, lambda path: resume(torch.load(path, weights_only=True))):
        with pytest.raises(ValueError, match="state_dict must be weights, without 'handed_over'"):
            load(file)


class Helper:
    """An object that a policy of a user keeps, and that knows the policy."""

    def __init__(self, policy: Any) -> None:
        self.policy = policy
        self.config = policy.config.other
        self.note = "made"


class WithHelper(DQNPolicy):
    """A policy of a user with attributes of its own."""

    def __init__(self, cfg: Any = None, **kwargs: Any) -> None:
        super().__init__(cfg, **kwargs)
        self.helper, self.count = Helper(self), 0


def coded(value: Any, names: list[str]) -> dict[str, Any]:
    """Return an object as a checkpoint encodes it, with the hostile module in one of its nested attributes."""
    name, *rest = names
    hostile = coded(getattr(value, name), rest) if rest else {"kind": "tuple", "class": "tuple", "items": ["hostile"]}
    kept = {
        key: one if one is None or isinstance(one, (int, float, str)) else EXISTING for key, one in vars(value).items()
    }
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    return {"kind": "object", "class": kind, "pairs": [list(pair) for pair in {**kept, name: hostile}.items()]}


def test_checkpoint_with_attributes_of_the_classes_of_this_package() -> None:
    honest = WithHelper({"model": {"encoder_hidden_size_list": [4]}}).build(*SPACES)
    saved = torch.load(write_checkpoint(honest, Path("honest.ckpt")), weights_only=True)
    to_buffer = ["replay_buffer", "import_names"]
    attributes = {
        ":config": coded(honest.config, ["other", *to_buffer]),
        ":rng": "hostile",
        ":forward": "hostile",
        "model:_modules": "hostile",
        "absent:x": "hostile",
        ":count": 3,
    }
    for way in (["policy", "config", "other", *to_buffer], ["config", *to_buffer]):
        own = {"attributes": {**attributes, ":helper": coded(honest.helper, way)}, "deleted": [":rng"], "missing": []}
        torch.save({**saved, "own_state": own}, "forged.ckpt")
        policy = WithHelper.load_from_checkpoint("forged.ckpt")
        assert policy.count == 3
        assert policy.config == honest.config
        assert policy.helper.config == honest.config.other
        assert policy.helper.policy is policy
        assert isinstance(policy.rng, np.random.Generator)
        lost = policy.learner.own_state.restore()
        assert "WithHelper.config is no attribute that a checkpoint may set" in lost
        assert len(lost) == 6


@pytest.mark.parametrize("load", [load_policy, DQNPolicy.load_from_checkpoint, read_checkpoint])
def test_checkpoint_with_a_pickle_that_calls_a_function(load: Callable[..., Any], content: dict[str, Any]) -> None:
    torch.save({**content, "callbacks": Runs()}, "forged.ckpt")
    with pytest.raises(Exception, match=r"which cannot be read|Weights only load failed"):
        load("forged.ckpt")


def test_checkpoint_of_a_datamodule(content: dict[str, Any]) -> None:
    arguments = {"env_id": "hostile.make", "import_names": ["hostile"], "_instantiator": "hostile.make"}
    with pytest.raises(TypeError, match="ReplayDataModule must be made by its constructor, got the checkpoint"):
        ReplayDataModule.load_from_checkpoint(forged(content, {"datamodule_hyper_parameters": arguments}))


def test_run_that_is_resumed_from_the_checkpoint_of_somebody_else() -> None:
    network = {"encoder_hidden_size_list": [4]}
    cfg = {"learn": {"batch_size": 4}, "collect": {"n_sample": 4}, "random_collect_size": 4, "model": network}
    quiet: dict[str, Any] = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}

    def fit(steps: int, file: Path | None) -> int:
        policy = DQNPolicy(cfg)
        data = ReplayDataModule("CartPole-v1", num_envs=1, max_env_step=steps)
        Trainer(accelerator="cpu", default_root_dir=".", **quiet).fit(policy, data, ckpt_path=file, weights_only=True)
        return policy.progress.env_step

    fit(8, None)
    honest = next(Path().rglob("last.ckpt"))
    forgery = honest.with_name("forged.ckpt")
    named = {"cfg": deep_merge(NEEDED["reward_model"], NEEDED["replay_buffer"]), "_instantiator": "hostile.make"}
    arguments = {"env_id": "hostile.make", "wrappers": ["hostile.make"], "import_names": ["hostile"]}
    changes = {"hyper_parameters": named, "datamodule_hyper_parameters": arguments}
    torch.save(deep_merge(torch.load(honest, weights_only=True), changes), forgery)
    assert fit(16, forgery) == 16  # with the config and the env of the program


CODE = {
    "module of an id": {"env_id": "hostile:Hostile-v0"},
    "function": {"env_id": "hostile.make"},
    "function of Python": {"env_id": {"class_path": "os.system", "init_args": {"command": "touch ran"}}},
    "function with arguments": {"env_id": "os.system", "env_kwargs": {"command": "touch ran"}},
    "evaluation": {"env_id": "CartPole-v1", "eval_env_id": "hostile.make"},
    "game": {"env_id": "pettingzoo:hostile.make"},
    "game of Atari": {"env_id": "lightning_ding.envs.make_atari", "env_kwargs": {"game": "hostile:Hostile/X-v0"}},
    "function of the package": {"env_id": "lightning_ding.envs.make_vector_env"},
    "class of games": {"env_id": "lightning_ding.envs.GameEnv", "env_kwargs": {"game": "hostile.make"}},
    "parallel game": {"env_id": "pettingzoo:hostile.game_v0"},
    "game of a team": {"env_id": "lightning_ding.envs.teams.ParallelTeam", "env_kwargs": {"game": "hostile.make"}},
    "env of a team": {"env_id": "lightning_ding.envs.teams.TupleTeam", "env_kwargs": {"env": "hostile:Hostile-v0"}},
    "opponent": {"env_id": "pettingzoo:tictactoe_v3", "env_kwargs": {"opponent": "hostile.make"}},
    "wrapper": {"env_id": "CartPole-v1", "wrappers": ["hostile.make"]},
    "wrapper of Python": {"env_id": "CartPole-v1", "wrappers": ["functools.partial"]},
    "wrapper of evaluations": {"env_id": "CartPole-v1", "eval_wrappers": [{"class_path": "hostile.make"}]},
}
"""Arguments of a datamodule that name code."""


@pytest.mark.parametrize("kind", CODE)
def test_env_of_a_checkpoint_that_is_code(
    kind: str, content: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(forged(content, {"datamodule_hyper_parameters": CODE[kind]}))
    own_env = ["--env_id", "CartPole-v1"] if "wrapper" in kind else []
    for command in (["evaluate", file, *own_env], ["enjoy", file, *own_env]):
        line = error_line(command, capsys)
        assert re.match(r"error: the file makes its env with '.*', which is no registered env", line)
        assert re.search(r"--import_names \w+(\.\w+)? allows what is in that module, if you trust it$", line)


def test_modules_of_the_env_of_a_checkpoint(content: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    arguments = {"env_id": "CartPole-v1", "import_names": ["hostile"]}
    file = str(forged(content, {"datamodule_hyper_parameters": arguments}))
    for command in ("evaluate", "enjoy --video x.gif", "collect --out x.npz", "evaluate --env_id CartPole-v1"):
        assert re.match(f"error: {REFUSED}", error_line([*command.split(), file], capsys))


@pytest.mark.parametrize("name", [["hostile", "Stolen"], ["subprocess", "Popen"]])
def test_saved_state_of_an_env_that_names_a_class(name: list[str]) -> None:
    with pytest.raises(NotPlainError, match="which is not imported"):
        from_plain({"kind": "object", "class": name, "parts": {}})


def test_saved_state_of_a_simulator_with_addresses_in_its_memory() -> None:
    mujoco = pytest.importorskip("mujoco")
    body = '<body><freejoint/><geom size="0.1"/></body>'
    data = mujoco.MjData(mujoco.MjModel.from_xml_string(f"<mujoco><worldbody>{body}</worldbody></mujoco>"))
    state = read_simulator(data, "data")
    state["derived"]["tree_island"] = np.full(data.tree_island.shape, 7**9, np.int32)
    with pytest.raises(NotPlainError, match="data was a simulation of another model"):
        load_simulator(data, "MjData", state, "data")
    assert data.tree_island.max() < 7**9


# ---------------------------------------------------------------------- other files of a policy


@pytest.mark.parametrize("section", NEEDED)
def test_safetensors_file_whose_config_needs_a_module(section: str) -> None:
    with pytest.raises(NotRegisteredError, match=REFUSED):
        load_policy(safetensors_with({"cfg": NEEDED[section]}))


@pytest.mark.parametrize("section", LEFT_OUT)
def test_safetensors_file_whose_config_names_a_module(section: str) -> None:
    assert "hostile" not in str(load_policy(safetensors_with({"cfg": LEFT_OUT[section]})).cfg)


def test_safetensors_file_whose_policy_is_a_dotted_path() -> None:
    with pytest.raises(NotRegisteredError, match=r"no policy is registered as 'hostile\.Stolen'"):
        load_policy(safetensors_with({"policy": "hostile.Stolen"}))


@pytest.mark.parametrize("text", ["[]", "{", '{"format": 1}', "[" * 100_000])
def test_safetensors_file_with_another_description(text: str) -> None:
    save_file({"model/x": torch.zeros(1)}, "forged.safetensors", metadata={KEY: text})
    with pytest.raises(ValueError, match=r"path must be a safetensors file of a policy|the description of the policy"):
        load_policy("forged.safetensors")


def test_repository_of_the_hub_whose_config_needs_a_module(hub: type[Hub]) -> None:  # noqa: F811
    file = safetensors_with({"cfg": NEEDED["reward_model"]})
    more = {"run.yaml": b"data: {import_names: [hostile]}", "hostile.py": HOSTILE.encode()}
    hub.repos["me/forged"] = {"policy.safetensors": file.read_bytes(), **more}
    with pytest.raises(NotRegisteredError, match=REFUSED):
        from_hub("me/forged")


def test_dump_of_an_update_whose_config_needs_a_module() -> None:
    policy = DQNPolicy({"model": {"obs_shape": 4, "action_shape": 2}})
    policy.updater.guard.folder = Path("dump")
    batch: dict[str, Any] = {"obs": torch.zeros(1, 4), "next_obs": torch.zeros(1, 4), "action": torch.tensor([0])}
    with pytest.raises(NonFiniteError) as caught:
        policy.learn_mode.forward(batch | {"reward": torch.tensor([torch.nan]), "terminated": torch.tensor([False])})
    file = Path(str(caught.value.folder)) / "state.pt"
    torch.save(deep_merge(torch.load(file, weights_only=True), {"config": NEEDED["reward_model"]}), file)
    with pytest.raises(NotRegisteredError, match=REFUSED):
        load_dump(file.parent)


def test_checkpoint_of_di_engine_with_a_pickle_that_calls_a_function() -> None:
    policy = DQNPolicy({"model": {"obs_shape": 4, "action_shape": 2}})
    torch.save({"model": policy.model.state_dict(), "learn": Runs()}, "ckpt_best.pth.tar")
    with pytest.raises(ValueError, match=r"it contains .*, and only tensors are read"):
        policy.load_ding_checkpoint("ckpt_best.pth.tar")


# ---------------------------------------------------------------------- Stable-Baselines3


def test_model_of_stable_baselines3_with_pickles_in_its_json(tmp_path: Path) -> None:
    hostile = {":serialized:": base64.b64encode(pickle.dumps(Runs())).decode()}
    stored = models()["ppo_box"]["data"]
    changes = {key: {**value, **hostile} for key, value in stored.items() if isinstance(value, dict)}
    policy = load_policy(make_zip("ppo_box", tmp_path, **changes, learning_rate=hostile, more=hostile))
    assert policy.predict(inputs("ppo_box")).shape == (1000, 2)


@pytest.mark.parametrize("name", ["policy.pth", "pytorch_variables.pth"])
def test_model_of_stable_baselines3_with_a_pickle_among_its_weights(name: str, tmp_path: Path) -> None:
    weights: dict[str, Any] = weights_of("ppo_box")
    parts = [weights | {"more": Runs()}, {}] if name == "policy.pth" else [weights, {"more": Runs()}]
    file = write_zip(tmp_path / "forged.zip", models()["ppo_box"]["data"], *parts)
    with pytest.raises(ValueError, match=r"path must be a model\.zip of Stable-Baselines3, .*Weights only load failed"):
        load_policy(file)


def test_statistics_of_vecnormalize_that_call_a_function(tmp_path: Path) -> None:
    model = make_zip("ppo_box", tmp_path)
    Path("forged.pkl").write_bytes(pickle.dumps(Runs()))
    with pytest.raises(
        ValueError, match=r"of VecNormalize\.save, got 'forged\.pkl', which holds a pathlib\.Path\.touch"
    ):
        load_sb3_policy(model, "forged.pkl")
    call = b"cpathlib\nPath.touch\n(cpathlib\nPath\n(X\x03\x00\x00\x00rantRtR0"  # and drop what it returns
    honest = STATISTICS.read_bytes()
    Path("forged.pkl").write_bytes(honest[:2] + call + honest[2:])
    with pytest.raises(ValueError, match="the opcode POP is in no pickle of numbers"):
        load_sb3_policy(model, "forged.pkl")
    Path("forged.pkl").write_bytes(honest[:2] + call[:-1] + honest[2:])  # and leave it on the stack
    load_sb3_policy(model, "forged.pkl")


@pytest.mark.parametrize(
    "value", ["__import__('hostile').make()", "dict(net_arch=hostile.make())", "!!python/name:hostile.make ''"]
)
def test_file_of_the_zoo_with_code(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = value if value.startswith("!!") else json.dumps(value)
    Path("ppo.yml").write_text(f"CartPole-v1:\n  policy_kwargs: {text}\n")
    line = error_line(["from-sb3", "--zoo", "ppo.yml", "CartPole-v1"], capsys)
    assert "is no literal of Python" in line or "could not determine a constructor for the tag" in line


# ---------------------------------------------------------------------- data sets


def test_npz_file_with_an_object() -> None:
    np.savez("forged.npz", obs=np.array([Runs()], dtype=object))
    with pytest.raises(ValueError, match=r"dataset must be an \.npz file, got forged\.npz: Object arrays"):
        load_dataset("forged.npz")


@pytest.mark.parametrize("name", ["hostile.Stolen", "hostile"])
def test_file_of_a_buffer_that_names_a_class(name: str) -> None:
    save_file({"obs": torch.zeros(1)}, "forged.safetensors", metadata={"counters": json.dumps({"buffer": name})})
    with pytest.raises(ValueError, match="dataset must be a file of a buffer of transitions"):
        load_dataset("forged.safetensors")


@pytest.mark.parametrize("suffix", [".hdf5", ".h5", ".pkl"])
def test_file_in_hdf5_or_pickled(suffix: str) -> None:
    Path(f"forged{suffix}").write_bytes(b"cbuiltins\neval\n")
    allowed = r"the path of an \.npz or \.hdf5 file or of a replay buffer" if suffix == ".pkl" else "an HDF5 file"
    with pytest.raises(ValueError, match=f"dataset must be {allowed}"):
        load_dataset(f"forged{suffix}")


@pytest.mark.parametrize("left_out", ["observation_space", "action_space"])
def test_minari_data_set_whose_env_is_code(left_out: str, monkeypatch: pytest.MonkeyPatch) -> None:
    minari = pytest.importorskip("minari")
    from minari.serialization import serialize_space

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(Path("minari").absolute()))
    env = {"id": "Hostile-v0", "entry_point": "hostile:make", "additional_wrappers": []}
    described = {"dataset_id": "toy/forged-v0", "minari_version": minari.__version__, "data_format": "hdf5"}
    both = {"observation_space": serialize_space(SPACES[0]), "action_space": serialize_space(SPACES[1])}
    del both[left_out]
    place = Path("minari/toy/forged-v0/data")
    place.mkdir(parents=True)
    (place / "metadata.json").write_text(json.dumps({**described, **both, "env_spec": json.dumps(env)}))
    with pytest.raises(ValueError, match="dataset must be a Minari data set that holds its spaces"):
        load_dataset("toy/forged-v0")


# ---------------------------------------------------------------------- configs and folders


@pytest.mark.parametrize("command", ["fit", "parallel", "tune"])
def test_yaml_file_with_a_tag_of_python(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("forged.yaml").write_text("main: !!python/object/apply:hostile.make []\ntune: !!python/name:hostile.make ''\n")
    assert "could not determine a constructor for the tag" in error_line([command, "--config", "forged.yaml"], capsys)


@pytest.mark.parametrize("part", ["buffers", "fixed", "tasks"])
def test_folder_of_a_coordinator_whose_state_names_a_module(part: str) -> None:
    run = Run(config(Path("run")))
    database, named = run.coordinator.run.database, {"type": "own", "import_names": ["hostile"]}
    state = dict(database.read("state"))
    if part == "buffers":
        buffers = {name: {**known, "cfg": named} for name, known in state["buffers"].items()}
        database.write({("state", "buffers"): buffers})
    elif part == "fixed":
        state["fixed"]["main"]["policy"]["import_names"] = ["hostile"]
        database.write({("state", "fixed"): state["fixed"]})
    else:
        contents = dict(database.read("contents"))
        database.write({("contents", name): {**info, "replay_buffer_cfg": named} for name, info in contents.items()})
    with pytest.raises(NotRegisteredError, match=REFUSED):
        run.restart()


def test_saved_search_with_a_field_that_is_not_searched() -> None:
    given = {**SEARCH, "spaces": {"nstep": "choice(1, 2)"}}
    name, choices = "reward_model.import_names", optuna.distributions.CategoricalDistribution(["hostile"])
    study = Study(RUN, "study", given).study
    study.add_trial(optuna.create_trial(params={name: "hostile"}, distributions={name: choices}, value=1e9))
    with pytest.raises(ValueError, match=r"the fields of trial \d+ in 'study' must be among those that are searched"):
        Study(RUN, "study", given)


# ---------------------------------------------------------------------- the table


def test_table_has_a_row_for_each_test() -> None:
    section = PAGE.partition("## Attacks")[2].partition("\n## ")[0]
    rows = re.findall(r"\| `(test_\w+)` \|$", section, flags=re.MULTILINE)
    tests = {name for name in globals() if name.startswith("test_")} - {"test_table_has_a_row_for_each_test"}
    assert sorted(rows) == sorted(tests)
