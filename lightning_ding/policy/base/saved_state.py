"""The state that a policy adds to a checkpoint, and that a forked rank returns to the process that started it.

A checkpoint holds the counters of the run, the state of the check for non-finite updates, and the spaces of the env. It
is data: making a policy of its config imports no module that the config names.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from lightning_ding.config import MARK, nearest, require, to_dict
from lightning_ding.policy.base.config import CHANGED_BY, to_save
from lightning_ding.policy.base.older_configs import check_meaning, renewed
from lightning_ding.policy.base.trainer import HANDED_OVER, attached_trainer
from lightning_ding.registry import NotRegisteredError
from lightning_ding.utils.private_api import INSTANTIATOR

SPACES = "env_spaces"
"""Key of the observation and the action space of one env in a checkpoint."""
ARGUMENTS = "datamodule_hyper_parameters"
"""Lightning's key of the datamodule's arguments in a checkpoint."""
RUN_ARGUMENTS = (
    *("env_id", "wrappers", "env_kwargs", "import_names", "eval_env_id", "eval_env_kwargs", "eval_wrappers"),
    *("dataset", "demonstrations", "demonstration_share", "imitation_reward", "mode", "train_wrappers"),
    *("max_env_step", "max_train_iter", "num_envs", "seed", "norm_obs", "norm_reward", "info_keys"),
)
"""Arguments of a datamodule that say how a policy was trained."""
SEED = "seed_everything"
"""Key of the seed of the whole run, the option of ``fit``, in a checkpoint and among the arguments of a run."""

logger = logging.getLogger(__name__)


def check_imported(content: Any, trusted: Collection[str] = ()) -> None:
    """Check that the program has imported every module that ``import_names`` in the content of a file names.

    An import runs code, and a file may come from a stranger. After this check
    :func:`lightning_ding.registry.import_modules` finds every module of the content among the imported ones.

    Args:
        content: Nested mappings and sequences, such as a saved config.
        trusted: Modules that may be imported later, because the config of the user names them, too.

    Raises:
        NotRegisteredError: If another module is not imported; the message names all of them.

    Example:
        >>> check_imported({"reward_model": {"import_names": ["json"]}})
        >>> check_imported({"reward_model": {"import_names": ["own_rewards"]}})  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        lightning_ding.registry.NotRegisteredError: "the file names the module 'own_rewards' (reward_model.import_...
    """
    missing = {module: path for module, path in not_imported(content).items() if module not in trusted}
    if missing:
        raise NotRegisteredError(_ask_for(missing))


def _ask_for(modules: Mapping[str, str]) -> str:
    """Return the end of an error or a warning about modules that a file names, by module with their dotted paths."""
    named = ", ".join(f"{module!r} ({path})" for module, path in modules.items())
    return (
        f"the file names the module {named}, which the program has not imported: loading a file imports nothing; "
        "import the module first if you trust it"
    )


def not_imported(content: Any, path: str = "") -> dict[str, str]:
    """Return the modules in ``import_names`` anywhere in nested data that are not imported, with their dotted paths."""
    found: dict[str, str] = {}
    if isinstance(content, Mapping):
        for key, value in content.items():
            below = f"{path}.{key}" if path else str(key)
            if key == "import_names":
                found |= {name: below for name in map(str, _names(value)) if not _is_imported(name)}
            found |= not_imported(value, below)
    elif isinstance(content, (list, tuple)):
        for number, value in enumerate(content):
            found |= not_imported(value, f"{path}[{number}]")
    return found


def only_imported(content: Any) -> Any:
    """Return nested data without the names in ``import_names`` of modules that are not imported.

    Example:
        >>> only_imported({"reward_model": {"type": "rnd", "import_names": ["own_rewards", "json"]}})
        {'reward_model': {'type': 'rnd', 'import_names': ['json']}}
    """
    if isinstance(content, Mapping):
        return {
            key: [name for name in _names(value) if _is_imported(str(name))]
            if key == "import_names" and not_imported({key: value})
            else only_imported(value)
            for key, value in content.items()
        }
    return type(content)(map(only_imported, content)) if type(content) in (list, tuple) else content


def _names(value: Any) -> list[Any]:
    return [value] if isinstance(value, str) else list(value) if isinstance(value, Iterable) else []


def _is_imported(module: str) -> bool:
    """Return whether importing a module would run no code; modules of the package ``ding`` are never imported."""
    return module in sys.modules or module.partition(".")[0] == "ding"


@contextmanager
def config_of_file(changes: Mapping[str, Any] | None = None, is_data: bool = True) -> Iterator[None]:
    """Treat the configs of policies that are made in this block as the content of a file.

    Args:
        changes: Changes that are merged over the config of the file; None for none.
        is_data: Whether modules that the config names are left out unless the program has imported them.

    Raises:
        NotRegisteredError: Naming the modules that are not imported, if a class that the config names is missing.
    """
    left_out: dict[str, str] = {}

    def changed_by(cfg: Any, policy_class: type) -> Any:
        if is_data:
            left_out.update(not_imported(cfg))
            cfg = only_imported(cfg)
        if changes is None:
            return cfg
        config_class = getattr(policy_class, "config_class", None)
        saved: dict[str, Any] = dict(cfg or {})
        if config_class is not None:  # what an older version saved must be translated before the changes are merged
            saved = {**renewed(config_class, saved), MARK: saved.get(MARK, policy_class.__name__)}
        return _changed(saved, changes)

    token = CHANGED_BY.set(changed_by)
    try:
        yield
    except NotRegisteredError as error:
        raise NotRegisteredError("; ".join([error.args[0], *([_ask_for(left_out)] if left_out else [])])) from error
    finally:
        CHANGED_BY.reset(token)
    if left_out:
        logger.warning("%s (the policy acts without it)", _ask_for(left_out))


def _changed(cfg: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a saved config with changes; a section with a new ``type`` begins from its defaults."""
    merged = dict(cfg)
    for key, value in changes.items():
        was: Any = cfg.get(key)
        is_section = isinstance(value, Mapping) and isinstance(was, Mapping)
        is_other = is_section and "type" in value and value["type"] != was.get("type", value["type"])
        merged[key] = _changed(was, value) if is_section and not is_other else value
    return merged


def load_policy(load: Callable[..., Any], *args: Any, cfg: Any = None, **kwargs: Any) -> Any:
    """Return the policy of a checkpoint; see :meth:`Policy.load_from_checkpoint`.

    Args:
        load: Lightning's method of the policy's class.
        args: Its positional arguments.
        cfg: Changes to the config, a mapping or a config dataclass; None for none.
        kwargs: Its other arguments, among them ``hparams_file`` and ``weights_only``.
    """
    changes = cfg if cfg is None or isinstance(cfg, Mapping) else to_dict(cfg)
    options = {**kwargs, "weights_only": kwargs["weights_only"] is not False}
    options[INSTANTIATOR] = None  # otherwise Lightning calls a function that the file names
    with config_of_file(changes, is_data=kwargs["hparams_file"] is None):  # a file of hyper-parameters is the user's
        return load(*args, **options)


def save(policy: Any, checkpoint: dict[str, Any]) -> None:
    """Add the state of a policy to a Lightning checkpoint."""
    checkpoint["progress"] = policy.progress.state_dict()
    checkpoint["non_finite"] = policy.updater.guard.state_dict()
    checkpoint[SPACES] = plain_spaces(policy)
    checkpoint["optimizer_settings"] = policy.updater.settings
    checkpoint["own_state"] = policy.learner.own_state.state()
    checkpoint.update(_global_seed())


def load(policy: Any, checkpoint: Mapping[str, Any]) -> None:
    """Restore what :func:`save` added.

    Raises:
        KeyError: If the checkpoint lacks the counters.
        ValueError: If the config repeats numbers of an older version that have another meaning now, or the weights
            have an entry that only a forked rank hands over.
    """
    if "progress" not in checkpoint:
        raise KeyError(f"the checkpoint contains no 'progress'; {nearest('progress', checkpoint)}")
    has_config = HANDED_OVER in checkpoint.get("state_dict", {})  # a config, which take_over would read
    require(not has_config, "state_dict", f"weights, without {HANDED_OVER!r}", sorted(checkpoint.get("state_dict", {})))
    _check_holds_statistics(checkpoint)
    check_meaning(policy.config, checkpoint.get("hyper_parameters", {}).get("cfg", {}))
    policy.progress.load_state_dict(checkpoint["progress"])
    if "dataset" in checkpoint.get(ARGUMENTS, {}):  # of an OfflineDataModule, which older versions did not count
        policy.progress.data_iter = policy.progress.data_iter or policy.progress.train_iter
    if "non_finite" in checkpoint:  # checkpoints of older versions lack it
        policy.updater.guard.load_state_dict(checkpoint["non_finite"])
    set_spaces(policy, checkpoint.get(SPACES))  # so do they
    policy.updater.loaded_settings = checkpoint.get("optimizer_settings")
    policy.learner.own_state.saved_config = checkpoint.get("hyper_parameters", {}).get("cfg", {})
    policy.learner.own_state.load(checkpoint.get("own_state"))
    policy.trained_in = _of_run({**checkpoint.get(ARGUMENTS, {}), SEED: checkpoint.get(SEED)})


def _check_holds_statistics(checkpoint: Mapping[str, Any]) -> None:
    """Refuse a checkpoint of an older version, which kept the statistics outside the policy.

    Raises:
        ValueError: If it has.
    """
    for state in checkpoint.values():
        statistics = state.get("normalisers") if isinstance(state, Mapping) else None
        if statistics:
            raise ValueError(
                "the checkpoint must hold the statistics of observations and rewards in the policy, got them in the "
                f"state of its datamodule ({', '.join(statistics)}): it was written by an older version, train again"
            )


def plain_spaces(policy: Any) -> list[dict[str, Any]] | None:
    """Return the observation and the action space of one env as builtins.

    None means that they are not known, or of a type that :mod:`saved_spaces` does not describe. The policy then has to
    be built before it predicts.
    """
    from lightning_ding.policy.base.saved_spaces import to_plain

    try:
        return None if policy.env_spaces is None else [to_plain(space) for space in policy.env_spaces]
    except TypeError:
        return None


def set_spaces(policy: Any, plain: list[dict[str, Any]] | None) -> None:
    """Give a policy the spaces that :func:`plain_spaces` returned, unless it was built for an env."""
    from lightning_ding.policy.base.saved_spaces import from_plain

    if plain is not None and policy.env_spaces is None:
        observation_space, action_space = map(from_plain, plain)
        policy.env_spaces = (observation_space, action_space)


def run_of(policy: Any) -> dict[str, Any]:
    """Return the arguments of the datamodule that a policy was trained with, as builtins; empty if there was none.

    The entry ``seed_everything`` is the seed of the whole run, if there was one.
    """
    trainer = attached_trainer(policy)
    arguments = getattr(trainer.datamodule, "hparams", {}) if trainer is not None else {}  # type: ignore[attr-defined]
    return _of_run({**arguments, **_global_seed()}) if arguments else policy.trained_in


def _global_seed() -> dict[str, int]:
    """Return the seed that Lightning's ``seed_everything`` set in this process, as an entry; empty without."""
    seed = os.environ.get("PL_GLOBAL_SEED", "")
    return {SEED: int(seed)} if seed.isdecimal() else {}


def _of_run(arguments: Mapping[str, Any]) -> dict[str, Any]:
    names = (*RUN_ARGUMENTS, SEED)
    return {name: arguments[name] for name in names if arguments.get(name) not in (None, [], {})}


def hand_over(policy: Any) -> dict[str, Any]:
    """Return what the main process needs of a policy in a forked rank, in addition to parameters and buffers."""
    handed_over = {"cfg": policy.hparams["cfg"]}
    policy.on_save_checkpoint(handed_over)
    return {HANDED_OVER: handed_over}


def load_tensors(
    policy: Any, load_state_dict: Callable[..., Any], state_dict: Mapping[str, Any], **options: Any
) -> Any:
    """Load parameters and buffers; a state that was handed over makes the network if there is none.

    Args:
        policy: The policy.
        load_state_dict: The method of its base class.
        state_dict: The state to load.
        options: Further arguments of the method.

    Raises:
        ValueError: If the checkpoint that was loaded before is of a policy with other settings; the message names them.
        RuntimeError: If the state does not fit the policy, without a checkpoint or with the same settings.
    """
    from lightning_ding.policy.base.changed_settings import name_changes

    given = take_over(policy, state_dict)
    try:
        return load_state_dict(given, **options)
    except RuntimeError as error:
        text = name_changes(policy, given)
        if text is None:
            raise
        raise ValueError(text) from error


def take_over(policy: Any, state_dict: Mapping[str, Any]) -> dict[str, Any]:
    """Make a policy that of a rank, if a rank handed it over, and return its parameters and buffers."""
    if HANDED_OVER in state_dict:
        policy.config = policy._read_config(state_dict[HANDED_OVER]["cfg"])
        policy.hparams["cfg"] = to_save(policy)
        if not policy.is_built:
            policy._initialise(None)
        policy.on_load_checkpoint(state_dict[HANDED_OVER])
    return {name: value for name, value in state_dict.items() if name != HANDED_OVER}
