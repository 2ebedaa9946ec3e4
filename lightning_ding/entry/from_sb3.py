"""The command ``from-sb3``: a model of Stable-Baselines3, or an entry of its zoo, for use here.

    lightning-ding from-sb3 model.zip
    lightning-ding from-sb3 model.zip vecnormalize.pkl --output policy.ckpt --run run.yaml --env_id HalfCheetah-v5
    lightning-ding from-sb3 --zoo ppo.yml HalfCheetah-v4 > run.yaml

The first writes a checkpoint for ``evaluate``, ``enjoy``, ``export`` and ``load_policy``. With ``--run`` it also writes
a run file for ``lightning-ding fit``, which trains the policy further. The last prints a run file that trains a new
policy with the hyper-parameters of rl-baselines3-zoo; its first lines name what has no equivalent. No code of the files
is run.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from lightning import Trainer

from lightning_ding.config import require, resolve, to_dict
from lightning_ding.entry.lightning_cli import CommandParser, in_one_line
from lightning_ding.envs import make_vector_env
from lightning_ding.policy import Policy, load_sb3_policy
from lightning_ding.policy.base.spaces import obs_shape
from lightning_ding.registry import POLICY_REGISTRY, import_modules
from lightning_ding.sb3.archive import read_archive
from lightning_ding.sb3.model import Spaces, translate_model
from lightning_ding.sb3.zoo import ZooRun, find_entry, read_zoo, translate_entry

WIDTH = 110  # characters of a line of a run file


def main(arguments: Sequence[str]) -> None:
    """Run the command; raise SystemExit with code 2 for an invalid command line or file."""
    parser = CommandParser(prog="lightning-ding from-sb3", description=__doc__)
    parser.add_argument("model", help="model.zip; with --zoo the id of an env")
    parser.add_argument("vecnormalize", nargs="?", help="file of VecNormalize.save, for a model trained with it")
    parser.add_argument("--zoo", metavar="FILE", help="file of rl-baselines3-zoo, such as hyperparams/ppo.yml")
    parser.add_argument("--output", help="file to write: a checkpoint, or NAME.safetensors (default: policy.ckpt)")
    parser.add_argument("--run", metavar="FILE", help="run file to write, which trains the policy further")
    parser.add_argument("--env_id", help="env of the model, whose spaces are used in place of those in the file")
    parser.add_argument("--algorithm", help="algorithm of the model, such as TD3, if its file does not tell it")
    parser.add_argument("--import_names", action="append", default=[], metavar="MODULE", help="module to import first")
    options = parser.parse_args(list(arguments)[1:])
    print(in_one_line(lambda: _from_zoo(options) if options.zoo else _from_model(options)))


# ---------------------------------------------------------------------- models


def _from_model(options: argparse.Namespace) -> str:
    require(Path(options.model).is_file(), "model", "the path of a model.zip", options.model)
    import_modules(options.import_names)
    output = Path(options.output or "policy.ckpt")
    spaces = None if options.env_id is None else _spaces_of(options.env_id)
    policy = load_sb3_policy(options.model, options.vecnormalize, spaces=spaces, algorithm=options.algorithm)
    policy.trained_in = {"env_id": options.env_id} if options.env_id else {}
    output.parent.mkdir(parents=True, exist_ok=True)
    if output.suffix == ".safetensors":
        policy.export(output, "safetensors")
    else:
        _write_checkpoint(policy, output)
    written = [f"written: {output}"]
    if options.run is not None:
        require(output.suffix == ".ckpt", "output", "NAME.ckpt with --run, which loads it", str(output))
        Path(options.run).write_text(_run_of_model(options, policy, output, spaces))
        written.append(f"written: {options.run}")
    return "\n".join(written)


def _spaces_of(env_id: str) -> Spaces:
    envs = make_vector_env(env_id, 1)
    try:
        return envs.single_observation_space, envs.single_action_space
    finally:
        envs.close()


def _write_checkpoint(policy: Policy[Any], file: Path) -> None:
    trainer = Trainer(accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False)
    trainer.strategy.connect(policy)
    trainer.save_checkpoint(file)


def _run_of_model(options: argparse.Namespace, policy: Policy[Any], output: Path, spaces: Spaces | None) -> str:
    """Return the run file that trains a policy further."""
    model = translate_model(read_archive(options.model), obs_shape, options.algorithm, spaces)
    data: dict[str, Any] = {"env_id": options.env_id or "NAME", "num_envs": model.num_envs, "max_env_step": 100_000}
    data |= {"wrappers": ["action_mask"]} if model.is_masked else {}
    for name, statistics in (("norm_obs", "obs"), ("norm_reward", "reward")):
        data |= {name: True} if any(part.startswith(statistics) for part in policy.normaliser.state_dict()) else {}
    weights = {"class_path": "lightning_ding.callbacks.InitialWeights", "init_args": {"path": str(output)}}
    content = {"policy": model.policy, "trainer": {"callbacks": [weights]}}
    content |= {"model": {"cfg": _own(model.policy, model.cfg)}, "data": data}
    lines = [f"lightning-ding fit --config {options.run}", "", f"Trains the policy of {options.model} further."]
    return _page([*lines, *(f"Not translated: {note}" for note in model.notes)], content)


# ---------------------------------------------------------------------- the zoo


def _from_zoo(options: argparse.Namespace) -> str:
    unused = [name for name in ("vecnormalize", "output", "run", "env_id", "algorithm") if getattr(options, name)]
    require(not unused, ", ".join(unused), "left out with --zoo, which prints a run file", unused)
    name = Path(options.zoo).stem
    run = translate_entry(name, options.model, find_entry(read_zoo(options.zoo), options.model))
    return zoo_page(run, f"the entry of rl-baselines3-zoo for {name} on {options.model}").rstrip("\n")


def zoo_page(run: ZooRun, source: str) -> str:
    """Return the run file of an entry of the zoo.

    Args:
        run: The translated entry.
        source: Where it is from, for the first lines.

    Raises:
        ValueError: If a setting is out of its range here.
        TypeError: If a setting has the wrong type.
    """
    content: dict[str, Any] = {"policy": run.policy, "model": {"cfg": _own(run.policy, run.cfg)}, "data": run.data}
    lines = ["lightning-ding fit --config run.yaml", "", f"The settings are {source}."]
    lines += [f"Without equivalent: {key}: {reason}" for key, reason in run.without.items()]
    return _page([*lines, *(f"Note: {note}" for note in run.notes)], content)


def _own(policy: str, cfg: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of a config that are not the defaults, after a check of all of them."""
    config_class = POLICY_REGISTRY.get(policy).config_class
    resolve(config_class, cfg)
    found: dict[str, Any] = _without_defaults(cfg, to_dict(config_class()))
    return found


def _without_defaults(given: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in given.items():
        default = defaults.get(key)
        if isinstance(value, Mapping) and isinstance(default, Mapping) and default:
            below = _without_defaults(value, default)
            found |= {key: below} if below else {}
        elif key not in defaults or _plain(value) != _plain(default):
            found[key] = _plain(value)
    return found


def _plain(value: Any) -> Any:
    """Return nested values with lists in place of tuples."""
    if isinstance(value, Mapping):
        return {key: _plain(below) for key, below in value.items()}
    return [_plain(one) for one in value] if isinstance(value, (list, tuple)) else value


def _page(lines: Sequence[str], content: Mapping[str, Any]) -> str:
    comments = "".join(f"# {line}".rstrip() + "\n" for line in lines)
    return comments + yaml.safe_dump(dict(content), sort_keys=False, width=WIDTH)
