"""The command ``lightning-ding``: LightningCLI for a policy chosen by name.

    lightning-ding fit --config recipes/configs/dqn_cartpole.yaml
    lightning-ding validate --config recipes/configs/dqn_cartpole.yaml --ckpt_path best.ckpt
    lightning-ding fit --config recipes/configs/dqn_cartpole.yaml --ckpt_path last
    lightning-ding fit --policy dqn --help
    lightning-ding parallel --config recipes/configs/parallel_dqn_cartpole.yaml

``policy`` names the algorithm, ``model.cfg`` is its config, ``data`` the datamodule, ``trainer`` Lightning's Trainer.
``parallel``, ``coordinator``, ``learner``, ``collector`` and ``ask`` are in :mod:`lightning_ding.entry.parallel`.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import inspect
import itertools
import os
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Literal, NoReturn, Optional, cast

import yaml
from jsonargparse import set_parsing_settings
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI

from lightning_ding.callbacks import RunCheckpoint
from lightning_ding.checkpoints.files import UnwritableFolderError
from lightning_ding.config import MARK, moved_to, nearest, require, resolve, to_dict
from lightning_ding.datamodules import OfflineDataModule, ReplayDataModule, RolloutDataModule, RunDataModule
from lightning_ding.envs.process.errors import CHECKS, is_check_error
from lightning_ding.policy import Policy
from lightning_ding.policy.base.attributes import NO_CONFIG_CLASS
from lightning_ding.policy.base.older_configs import renewed
from lightning_ding.policy.base.saved_state import only_imported
from lightning_ding.policy.load import read_checkpoint
from lightning_ding.registry import POLICY_REGISTRY, import_modules

COMMANDS = ("fit", "validate", "test")
DEFAULT_POLICY = "dqn"
DEBUG = "LIGHTNING_DING_DEBUG"
"""Environment variable that makes every error show its traceback."""
SWEEP = "LIGHTNING_DING_SWEEP"
"""Environment variable of the runs of a sweep, which write all their files to ``trainer.default_root_dir``."""
DATAMODULES = (ReplayDataModule, RolloutDataModule, OfflineDataModule)
KINDS = (*CHECKS, MisconfigurationException)
LOOPS = "lightning.pytorch.loops"  # package whose method `run` trains or evaluates
UNKNOWN_OPTION = re.compile(
    r"unrecognized arguments: --([\w.]+)|(?:[Gg]roup '([\w.]+)' )?does not accept option '([\w.]+)'"
)

CHOICES: dict[str, tuple[str, Any]] = {
    "train_on": (
        "What to train on: envs or a dataset; by default what the policy is made for. With envs, a policy for data "
        "sets continues online, and takes its data as --data.demonstrations.",
        Optional[Literal["envs", "dataset"]],  # noqa: UP045 - jsonargparse shows it
    ),
    "from_checkpoint": (
        "Checkpoint of which a new run takes the config, as defaults, and the weights; --ckpt_path continues its run.",
        Optional[str],  # noqa: UP045
    ),
}
"""Options that decide which other options there are and their defaults: help texts and types."""


class DingParser(LightningArgumentParser):
    """A parser without abbreviations that suggests the most similar option for an unknown one."""

    made: ClassVar[list[DingParser]] = []
    """Parsers of all commands, since the parser that finds an error may not have all options."""
    config_class: ClassVar[type | None] = None
    """Config class of the chosen policy."""
    datamodule: ClassVar[type | None] = None
    """Class of the datamodule that trains the chosen policy."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "allow_abbrev": False})
        self.made.append(self)

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Print the message, with a hint for an unknown option, and end with exit code 2.

        Raises:
            ValueError: With the message, if the parser was made with ``exit_on_error=False``.
        """
        unknown = UNKNOWN_OPTION.search(message)
        if unknown is not None:
            name = unknown[1] or ".".join(part for part in (unknown[2], unknown[3]) if part)
            known = [key for parser in self.made for key in vars(parser.get_defaults(skip_validation=True).as_flat())]
            near = nearest(name, known)
            path = name.removeprefix("model.cfg.")
            moved = None if self.config_class is None or path == name else moved_to(self.config_class, path)
            hint = moved or self._of_another_kind(name)
            hint = hint or (near if near.startswith("did") else "see --help")
            message = f"unknown option {name!r}; {hint}"
        message = " ".join(message.split())  # jsonargparse breaks some messages into lines
        if not self.exit_on_error:
            raise ValueError(message)
        print("error:", message, file=sys.stderr)
        raise SystemExit(2)

    def dump(self, *args: Any, **kwargs: Any) -> str:
        """Return a config as text, without jsonargparse's warning that tuples are written as lists.

        A config takes a list wherever it takes a tuple.
        """
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=r"\s*Dump of a value that does not round-trip: a tuple")
            return str(super().dump(*args, **kwargs))

    def _of_another_kind(self, name: str) -> str | None:
        """Return what to say of an option that another kind of datamodule has than the policy's; else None."""
        option, made = name.removeprefix("data."), self.datamodule
        others = [] if made is None or option == name else [one for one in DATAMODULES if one is not made]
        having = [one.__name__ for one in others if option.partition(".")[0] in inspect.signature(one).parameters]
        if not having or made is None:
            return None
        own = nearest(option, inspect.signature(made).parameters)
        hint = f"; {own}" if own.startswith("did") else ""
        return f"it is one of {' and '.join(having)}, and this policy trains with {made.__name__}{hint}"


class DingCLI(LightningCLI):
    """A LightningCLI that reports an error in one line."""

    command: ClassVar[str | None] = None
    """Chosen command, the only one whose parser is built; None builds the parsers of all."""
    explains: ClassVar[bool] = False
    """Whether help is shown. It names all policies, whose modules are then imported."""

    def init_parser(self, **kwargs: Any) -> LightningArgumentParser:
        """Return the parser of a (sub)command."""
        parser = DingParser(**kwargs)
        parser.add_argument(
            "-c", "--config", action="config", help="Path to a configuration file in json or yaml format."
        )
        return parser

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        """Return the commands to build parsers for; there is none for prediction."""
        commands = LightningCLI.subcommands()
        return {name: commands[name] for name in COMMANDS if DingCLI.command in (None, name)}

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Add the option for the policy, which is read before the other options are known."""
        known = ", ".join(POLICY_REGISTRY if self.explains else ())
        parser.add_argument(
            "--policy", default=DEFAULT_POLICY, help=f"Registered name ({known}) or dotted path of a class."
        )
        for name, (text, kind) in CHOICES.items():
            parser.add_argument(f"--{name}", type=kind, default=None, help=text)
        arguments = inspect.signature(cast(type, self.datamodule_class)).parameters.values()
        empty: dict[str, list[Any]] = {f"data.{one.name}": [] for one in arguments if one.default == ()}
        parser.set_defaults(empty)  # `--data.wrappers+=NAME` can only append to a list

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        """Parse the arguments, config files first; Lightning would warn of arguments in addition to ``sys.argv``."""
        if not isinstance(args, Mapping):
            args = with_files_first(sys.argv[1:] if args is None else args)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="LightningCLI's args parameter")
            super().parse_arguments(parser, args)

    def _parse_ckpt_path(self) -> None:
        """Keep the settings of the command line.

        Lightning 2.6 overrides them with the hyperparameters in a checkpoint and has no public switch for this. Options
        on the command line must take precedence.
        """

    def before_instantiate_classes(self) -> None:
        """Keep the files of a run of a sweep in its own folder."""
        if os.environ.get(SWEEP) and self.subcommand is not None:
            keep_in_own_folder(self.config[self.subcommand].trainer)

    def before_fit(self) -> None:
        """Find the checkpoint for ``--ckpt_path last``; fail if there is none."""
        settings = self.config_init[str(self.subcommand)]
        if settings.ckpt_path != "last":
            return
        savers = [callback for callback in self.trainer.callbacks if isinstance(callback, RunCheckpoint)]  # type: ignore[attr-defined]
        try:
            settings.ckpt_path = str((savers or [RunCheckpoint()])[0].find_last(self.trainer))
        except ValueError as error:
            self.parser.error(str(error))

    before_validate = before_test = before_fit


def keep_in_own_folder(trainer: Any) -> None:
    """Let the loggers in the settings of a Trainer write to its ``default_root_dir``.

    Raises:
        ValueError: If a callback writes to another folder, which all runs of a sweep would share.
    """
    loggers = trainer.logger if isinstance(trainer.logger, list) else [trainer.logger]
    for arguments in (getattr(one, "init_args", {}) for one in loggers):
        if "save_dir" in arguments:
            arguments["save_dir"] = trainer.default_root_dir
    callbacks = trainer.callbacks if isinstance(trainer.callbacks, list) else [trainer.callbacks]
    for arguments in (getattr(one, "init_args", {}) for one in callbacks):
        folder = arguments.get("dirpath")
        allowed = "callbacks without dirpath in a sweep, each run of which has a folder of its own"
        require(folder is None, "trainer.callbacks", allowed, folder)


def policy_class(name: str) -> type[Policy[Any]]:
    """Return the class of a policy by its registered name or dotted path.

    Raises:
        KeyError: If the name is not registered.
        TypeError: If the dotted path does not lead to a policy.
    """
    module, _, attribute = name.rpartition(".")
    found = getattr(import_module(module), attribute, None) if module else POLICY_REGISTRY.get(name)
    if not (isinstance(found, type) and issubclass(found, Policy)):
        raise TypeError(f"policy must name a Policy, got {name!r}, which is {found!r}")
    if found.has_dict_config:
        raise TypeError(f"policy must name a class with a config_class, got {name!r}: {NO_CONFIG_CLASS}")
    return found


def policy_maker(made: type[Policy[Any]], checkpoint: str | None = None) -> Callable[..., Policy[Any]]:
    """Return a function that makes a policy from its config, typed so that the CLI lists every field.

    With a checkpoint, its config has the defaults, and the policy its weights and counters.
    """
    number = 0 if checkpoint is None else next(_NUMBERS)
    return cast("Callable[..., Policy[Any]]", cast(Any, _policy_maker)(made, checkpoint, number))


_NUMBERS = itertools.count(1)  # of functions that read a checkpoint, whose content may change


@functools.cache  # Lightning makes a class from the function and stores it by the function's name
def _policy_maker(made: type[Policy[Any]], checkpoint: str | None, number: int) -> Callable[..., Policy[Any]]:
    default = with_every_key(made.config_class() if checkpoint is None else config_of_checkpoint(made, checkpoint))

    def make(cfg: Any = default) -> Policy[Any]:
        if checkpoint is None:
            return made(to_dict(cfg))
        return made.load_from_checkpoint(checkpoint, map_location="cpu", cfg=to_dict(cfg))

    make.__annotations__ = {"cfg": type(default), "return": made}
    make.__qualname__ = ".".join(["make", made.__module__, made.__qualname__, *([str(number)] if number else [])])
    make.__doc__ = f"Make a {made.__name__}.\n\nArgs:\n    cfg: Config of the policy.\n"
    return make


def config_of_checkpoint(made: type[Policy[Any]], checkpoint: str) -> Any:
    """Return the config of a checkpoint, without modules that the program has not imported.

    Raises:
        ValueError: If it is not a checkpoint, or one of another policy.
    """
    require(Path(checkpoint).is_file(), "from_checkpoint", "the path of a checkpoint", checkpoint)
    cfg = read_checkpoint(checkpoint)["hyper_parameters"].get("cfg", {})
    mark = str(cfg.get(MARK, "")).removesuffix("Dict")
    require(mark in ("", made.__name__), "policy", f"that of the checkpoint, which is {mark}", made.__name__)
    return resolve(made.config_class, renewed(made.config_class, only_imported(cfg)))


def with_every_key(config: Any) -> Any:
    """Return a config whose sections have the keys of all their variants, such as those of every replay buffer.

    Its class and those of its sections are subclasses of the given ones, so that the CLI lists the keys.
    """
    values = {one.name: getattr(config, one.name) for one in dataclasses.fields(config)}
    sections = {name: with_every_key(value) for name, value in values.items() if dataclasses.is_dataclass(value)}
    changed = {name: value for name, value in sections.items() if value is not values[name]}
    variants = config.variants() if hasattr(config, "variants") else {type(config)}
    bases = [kind for kind in variants if not any(issubclass(other, kind) for other in variants - {kind})]
    if not changed and bases == [type(config)]:
        return config
    bases.sort(key=lambda kind: kind.__name__)  # a set has no order, but --help has
    added = [(name, type(value), dataclasses.field(default=value)) for name, value in changed.items()]
    made = dataclasses.make_dataclass(type(config).__name__, added, bases=tuple(bases), frozen=True)
    return made(**{**values, **changed})


def chosen_policy(arguments: Sequence[str]) -> str:
    """Return the policy in the command line, or in the last config file that contains one."""
    return str(chosen("policy", arguments) or DEFAULT_POLICY)


def chosen(option: str, settings: Mapping[str, Any] | Sequence[str]) -> Any:
    """Return the value of an option in a command line, or in its last config file that has one; None without.

    Args:
        option: Name, with dots for nested sections.
        settings: The content of a config file of ``fit``, or the options of ``fit``.
    """
    found: Any = None
    if isinstance(settings, Mapping):
        found = settings
        for key in option.split("."):
            found = found.get(key) if isinstance(found, Mapping) else None
        return found
    pairs = [argument.partition("=") for argument in settings]
    for number, (name, equals, value) in enumerate(pairs):
        text = value if equals else (settings[number + 1] if number + 1 < len(settings) else "")
        if name == f"--{option}":
            return text
        if name in ("-c", "--config"):
            content = _content(text)
            own = chosen(option, content) if isinstance(content, Mapping) else None
            found = found if own is None else own
    return found


def with_files_first(arguments: Sequence[str]) -> list[str]:
    """Return options with the config files before the others, so that an option takes precedence wherever it stands.

    Example:
        >>> with_files_first(["fit", "--data.seed", "1", "--config", "run.yaml"])
        ['fit', '--config', 'run.yaml', '--data.seed', '1']
    """
    has_command = bool(arguments) and arguments[0] in COMMANDS
    files, others = list(arguments[:has_command]), []
    rest = iter(arguments[has_command:])
    for argument in rest:
        name, equals, _ = argument.partition("=")
        if name == "--config" or (name.startswith("-c") and not name.startswith("--")):
            has_value = bool(equals) or (len(name) > len("-c") and name != "--config")
            files += [argument] if has_value else [argument, *itertools.islice(rest, 1)]
        else:
            others.append(argument)
    return files + others


def _content(config: str) -> Any:
    """Return the content of a config file, or of the text of one, which has several lines."""
    try:
        return yaml.safe_load(config if "\n" in config else Path(config).read_text())
    except (yaml.YAMLError, UnicodeDecodeError, OSError):
        return None  # the parser reports the error


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line with these arguments, without the program's name; None means ``sys.argv``."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        made = policy_class(chosen_policy(given))
        if chosen("from_checkpoint", given) is not None:  # whose network may be of a class that a module registers
            import_modules(_list_of(chosen("data.import_names", given)))
    except (KeyError, TypeError, ImportError) as error:
        print(f"error: {error.args[0]}", file=sys.stderr)
        raise SystemExit(2) from error
    _prepare_parsers(made, given)
    in_one_line(lambda: _run(made, given))


def _list_of(names: Any) -> list[str]:
    """Return names, which may be one name or the text of a list of them."""
    found = yaml.safe_load(names) if isinstance(names, str) else names
    return [found] if isinstance(found, str) else list(found or ())


def _run(made: type[Policy[Any]], given: list[str]) -> None:
    DingCLI(
        cast(Any, policy_maker)(made, chosen("from_checkpoint", given)),
        datamodule_class(made, chosen("train_on", given)),
        args=given,
        parser_kwargs={"prog": "lightning-ding"},  # also under python -m
        auto_configure_optimizers=False,
        save_config_kwargs={"overwrite": True},  # a resumed run writes into its folder again
    )


def make_run(settings: Mapping[str, Any] | Sequence[str]) -> DingCLI:
    """Return the ``model``, ``datamodule`` and ``trainer`` of a run as attributes of an object, without running it.

    Args:
        settings: The content of a config file of ``fit``, or the options of ``fit``.

    Raises:
        KeyError: If the policy is not registered.
        TypeError: If the dotted path of the policy does not lead to one.
        ImportError: If a module cannot be imported.
        ValueError: If an option is unknown or its value is not allowed.
    """
    made = policy_class(str(chosen("policy", settings) or DEFAULT_POLICY))
    _prepare_parsers(made, [])
    return DingCLI(
        cast(Any, policy_maker)(made, chosen("from_checkpoint", settings)),
        datamodule_class(made, chosen("train_on", settings)),
        args=dict(settings) if isinstance(settings, Mapping) else list(settings),
        parser_kwargs={"prog": "lightning-ding", "exit_on_error": False},
        auto_configure_optimizers=False,
        save_config_callback=None,
        run=False,
    )


def given_settings(run: DingCLI) -> dict[str, Any]:
    """Return the settings of a run that differ from the defaults, as the content of a config file of ``fit``."""
    text = run.parser.dump(run.config, skip_default=True, skip_validation=True)
    settings: dict[str, Any] = yaml.safe_load(text) or {}
    settings.pop("config", None)
    seed = run.config["seed_everything"]
    seeded = {} if seed is True else {"seed_everything": seed}  # 1 equals the default True, which chooses a seed
    return {"policy": str(run.config["policy"]), **seeded, **settings}


def _prepare_parsers(made: type[Policy[Any]], given: Sequence[str]) -> None:
    """Set up the parsers for a policy and the arguments; what the arguments do not need is not built."""
    DingParser.made.clear()
    DingParser.config_class, DingParser.datamodule = made.config_class, datamodule_class(made)
    DingCLI.command = given[0] if given and given[0] in COMMANDS else None
    DingCLI.explains = any(argument.startswith(("-h", "--help", "--print_config")) for argument in given)
    set_parsing_settings(docstring_parse_attribute_docstrings=DingCLI.explains)
    os.environ.setdefault("JSONARGPARSE_DEPRECATION_WARNINGS", "off")  # the warnings concern calls by Lightning


def datamodule_class(made: type[Policy[Any]], train_on: str | None = None) -> type[RunDataModule]:
    """Return the datamodule that trains a policy on ``"envs"`` or a ``"dataset"``; None means what it is made for.

    Raises:
        ValueError: If ``train_on`` is something else.
    """
    require(train_on in (None, "envs", "dataset"), "train_on", "'envs' or 'dataset'", train_on)
    if (train_on or made.trains_on) == "dataset":
        return OfflineDataModule
    return RolloutDataModule if made.on_policy else ReplayDataModule


class CommandParser(argparse.ArgumentParser):
    """A parser without abbreviations whose errors are one line, and whose description is shown as it is written."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, **kwargs)

    def error(self, message: str) -> NoReturn:
        """Print the message and end with exit code 2."""
        print("error:", " ".join(message.split()), file=sys.stderr)
        raise SystemExit(2)


def is_refusal(error: BaseException) -> bool:
    """Return whether a check of the settings or the disk raised an error: not in the user's code, and before the run.

    With ``LIGHTNING_DING_DEBUG`` in the environment this is always false.
    """
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    runs = any(
        frame.f_code.co_name == "run" and frame.f_globals.get("__name__", "").startswith(LOOPS) for frame in frames
    )
    is_check = isinstance(error, UnwritableFolderError) or (is_check_error(error, KINDS) and not runs)
    return is_check and not os.environ.get(DEBUG)


def line_of(error: BaseException) -> str:
    """Return the message of an error in one line."""
    text = str(error.args[0] if isinstance(error, KeyError) and error.args else error)
    return " ".join((text or type(error).__name__).split())


def in_one_line(run: Callable[[], Any], also: tuple[type[Exception], ...] = ()) -> Any:
    """Return the result of a command; errors of settings, and those in ``also``, end it with one line and code 2."""
    try:
        return run()
    except Exception as error:
        if not is_refusal(error) and not isinstance(error, also):
            raise
        print("error:", line_of(error), file=sys.stderr)
        raise SystemExit(2) from error
