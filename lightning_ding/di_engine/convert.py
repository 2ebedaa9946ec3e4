"""Writing a translated run as YAML for ``lightning-ding fit``, and as a recipe."""

from __future__ import annotations

import functools
import pprint
from collections.abc import Iterable, Mapping
from typing import Any

import yaml

from lightning_ding.di_engine.run import Run


class Unnamed(ValueError):  # noqa: N818 - it is not raised to users of the run itself
    """A part of a run has no name, so that a file cannot contain it."""


def to_yaml(run: Run, command: str = "lightning-ding fit --config FILE") -> str:
    """Return the run as a config of LightningCLI.

    Args:
        run: The run.
        command: The command in the first line of the file.

    Raises:
        Unnamed: If an env, a network or the policy cannot be named, or the policy is in DI-engine's form.
    """
    _check(run)
    if not run.family:
        raise Unnamed(f"{run.policy} is in DI-engine's form: `lightning-ding fit` has no list of its keys")
    trainer = {**run.trainer, "logger": run.logger, "callbacks": as_names(run.callbacks)}
    content = {
        "policy": run.policy,
        "seed_everything": run.seed,
        "trainer": trainer,
        "model": {"cfg": as_names(run.policy_config)},
        "data": as_names(run.data),
    }
    if run.resumes and run.checkpoint:
        content["ckpt_path"] = run.checkpoint
    text = yaml.safe_dump(content, sort_keys=False, width=110)
    return f"# {command}\n{text}"


def to_recipe(run: Run, name: str) -> str:
    """Return the run as a Python script.

    Args:
        run: The run.
        name: File name of the script, without ``.py``.

    Raises:
        Unnamed: If an env, a network or the policy cannot be named.
    """
    _check(run)
    data = {key: value for key, value in as_names(run.data).items() if key != "seed"}
    module, _, policy = f"{run.policy_class.__module__}.{run.policy_class.__qualname__}".rpartition(".")
    home = "lightning_ding.policy" if module.startswith("lightning_ding.policy.") else module
    callbacks = [(one["class_path"].rpartition(".")[2], one["init_args"]) for one in as_names(run.callbacks)]
    own = "".join(f"from {home} import {kind}\n" for home, _, kind in sorted(_paths(run.hooks)))
    lines = [f"        {kind}({_arguments(options)})," for kind, options in callbacks]
    resume = f", ckpt_path={run.checkpoint!r}" if run.resumes and run.checkpoint else ""
    return RECIPE.format(
        name=name,
        env=data["env_id"] if isinstance(data["env_id"], str) else "an env",
        imports=", ".join(sorted(kind for kind, _ in callbacks[: len(callbacks) - len(run.hooks)])),
        own=own,
        datamodule=run.datamodule_class.__name__,
        home=home,
        policy=policy,
        data=_literal(data),
        config=_literal(as_names(run.policy_config)),
        seed=run.seed,
        callbacks="\n".join(lines),
        logger=_arguments(run.logger["init_args"]),
        trainer=_arguments(run.trainer),
        resume=resume,
    )


RECIPE = '''"""{policy} on {env}, converted from a config of DI-engine.

    python {name}.py
    python {name}.py --seed 1
"""

from __future__ import annotations

import argparse

from lightning import Trainer, seed_everything
from lightning.pytorch.loggers import TensorBoardLogger

from lightning_ding.callbacks import {imports}
from lightning_ding.datamodules import {datamodule}
from {home} import {policy}
{own}
DATA = {data}
CONFIG = {config}


def main() -> None:
    """Train until the stop value or a limit is reached."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default={seed}, help="seed of the network, the envs and the data")
    options = parser.parse_args()

    seed_everything(options.seed)
    datamodule = {datamodule}(**DATA, seed=options.seed)
    policy = {policy}(CONFIG)
    callbacks = [
{callbacks}
    ]
    logger = TensorBoardLogger({logger})
    trainer = Trainer({trainer}, logger=logger, callbacks=callbacks)
    trainer.fit(policy, datamodule{resume})


if __name__ == "__main__":
    main()
'''


def as_names(value: Any) -> Any:
    """Return nested values with names in place of callables: a dotted path, or ``class_path`` and ``init_args``.

    Raises:
        Unnamed: If a callable cannot be imported by its name.

    Example:
        >>> as_names({"env_id": functools.partial(dict, size=5)})
        {'env_id': {'class_path': 'builtins.dict', 'init_args': {'size': 5}}}
    """
    if isinstance(value, Mapping):
        return {str(key): as_names(below) for key, below in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_names(below) for below in value]
    if isinstance(value, functools.partial):
        if value.args:
            raise Unnamed(f"{value!r} has arguments without a name")
        return {"class_path": as_names(value.func), "init_args": as_names(value.keywords)}
    if callable(value):
        return _path(value)
    return value


def _path(value: Any) -> str:
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", "")
    if not module or not name or not name.isidentifier() or module.startswith(("__main__", "_config_")):
        raise Unnamed(f"{value!r} must be a class or function of a module that can be imported")
    return f"{module}.{name}"


def _paths(named: Iterable[Mapping[str, Any]]) -> set[tuple[str, str, str]]:
    """Return module, dot and name of each class."""
    return {as_names(one["class_path"]).rpartition(".") for one in named}


def _check(run: Run) -> None:
    if run.network is not None:
        raise Unnamed(f"a network of your own, {run.network['type']!r}, is passed to the policy in Python")
    _path(run.policy_class)


def _arguments(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={value!r}" for key, value in values.items())


def _literal(value: Any) -> str:
    return pprint.pformat(value, width=110, sort_dicts=False)
