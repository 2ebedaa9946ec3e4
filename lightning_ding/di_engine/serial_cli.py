"""The commands ``serial`` and ``convert``, for configs of DI-engine.

    lightning-ding serial -c cartpole_dqn_config.py -s 0
    lightning-ding serial -c cartpole_ppo_config.py -s 0 -s 1 -m serial_onpolicy --env-step 100000
    lightning-ding serial -c cartpole_dqn_config.py -m eval --load-path cartpole_dqn_seed0/ckpt/best.ckpt
    lightning-ding serial -c cartpole_sqil_config.py -m sqil --expert-config cartpole_dqn_config.py
    lightning-ding serial --check dizoo/classic_control
    lightning-ding convert cartpole_dqn_config.py --out converted

A config file is run as Python code, so only pass files that you trust.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lightning_ding.config import require
from lightning_ding.di_engine.check import check, config_files, table
from lightning_ding.di_engine.configs import entry_of, read_pair
from lightning_ding.di_engine.convert import to_recipe, to_yaml
from lightning_ding.di_engine.imitation import dqfd_run, gail_run, r2d3_run, sqil_run, with_data, with_reward_model
from lightning_ding.di_engine.run import UNLIMITED, Run
from lightning_ding.di_engine.serial import eval as evaluate, train
from lightning_ding.di_engine.translate import REWARDS_OF_ENTRIES, translate
from lightning_ding.entry.lightning_cli import CommandParser, in_one_line
from lightning_ding.utils.protocols import return_text

RANKED = tuple(name for name, kind in REWARDS_OF_ENTRIES.items() if kind == "trex")
"""Entries that learn from ranked trajectories."""
SHORT_MODES = (
    *(
        "onpolicy",
        "onpolicy_ppg",
        "offline",
        "bc",
        "sqil",
        "dqfd",
        "r2d3",
        "ngu",
        "reward_model_ngu",
        "gail",
        "guided_cost",
    ),
    *("reward_model_onpolicy", "reward_model_offpolicy", *RANKED),
)
MODES = ("serial", *SHORT_MODES, *(f"serial_{name}" for name in SHORT_MODES), "serial_reward_model", "eval")
"""The entries of DI-engine, with and without ``serial_``; ``serial_reward_model`` is that of learning from replay."""


def main(arguments: Sequence[str]) -> None:
    """Run ``serial`` or ``convert``; raise SystemExit with code 2 for an invalid command line or config."""
    command, *given = arguments
    options = _parser(command).parse_args(given)
    in_one_line(lambda: {"serial": _serial, "convert": _convert}[command](options))


def _parser(command: str) -> CommandParser:
    parser = CommandParser(prog=f"lightning-ding {command}", description=__doc__)
    if command == "convert":
        parser.add_argument("file", help="config file of DI-engine")
        parser.add_argument("-o", "--out", default=".", help="folder for NAME.yaml and NAME_recipe.py")
        parser.add_argument("--force", action="store_true", help="overwrite the files if they exist")
    else:
        parser.add_argument("-c", "--config", help="config file of DI-engine")
        parser.add_argument("--check", nargs="+", metavar="PATH", help="translate files and folders; train nothing")
        parser.add_argument("-m", "--mode", choices=MODES, help="the entry; by default the one of the file or policy")
        parser.add_argument("--expert-config", help="config file of the expert of sqil, dqfd, r2d3 and gail")
        parser.add_argument("--data-path", help="data set of offline and of the modes with an expert")
        parser.add_argument("--load-path", help="checkpoint that eval loads")
        parser.add_argument("--replay-path", help="folder for the videos of eval")
    parser.add_argument("-s", "--seed", type=int, action="append", help="seed; several seeds give several runs")
    parser.add_argument("--exp-name", help="folder of the run")
    parser.add_argument("--train-iter", type=int, default=UNLIMITED, help="updates after which the run ends")
    parser.add_argument("--env-step", type=int, default=UNLIMITED, help="env steps after which the run ends")
    return parser


def _serial(options: argparse.Namespace) -> None:
    require((options.config is None) != (options.check is None), "--config", "given, or --check", options.config)
    if options.check is not None:
        print(table([check(file) for file in config_files(options.check)]))
        return
    seeds = options.seed or [0]
    pair = read_pair(options.config)  # the file is run once
    if options.mode == "eval":
        for seed in seeds:
            paths = {"load_path": options.load_path, "replay_path": options.replay_path}
            print(f"mean return: {return_text(evaluate(pair, seed, **paths))}")
        return
    unused = "None: it belongs to -m eval"
    require(options.load_path is None, "--load-path", unused, options.load_path)
    require(options.replay_path is None, "--replay-path", unused, options.replay_path)
    entry = _entry(options.mode) or entry_of(options.config)
    for number, seed in enumerate(seeds):
        run = _run(pair, options, seed, entry)
        _check_mode(run, options.mode)
        if len(seeds) > 1:
            run = dataclasses.replace(run, exp_name=f"{run.exp_name}_seed{seed}")
        if number == 0:
            show(run)
        train(dataclasses.replace(run, warnings=()))


def _entry(mode: str | None) -> str | None:
    """Return the entry of a mode without ``serial_``; None if the policy decides."""
    name = None if mode is None else mode.removeprefix("serial_")
    return "reward_model_offpolicy" if name == "reward_model" else name


def _check_mode(run: Run, mode: str | None) -> None:
    """Check that the policy of a run is one that the mode trains."""
    is_offline = run.policy_class.trains_on == "dataset"
    own = ("onpolicy",) if run.on_policy else ("offline", "serial") if is_offline else ("serial",)
    of_policy = {"bc": "bc", "ppg": "onpolicy_ppg", "ngu": "ngu"}.get(run.family)
    known = (*own, of_policy, *EXPERTS, *(["reward_model_ngu"] if run.family == "ngu" else []))
    if _entry(mode) in ("reward_model_onpolicy", "reward_model_offpolicy", "guided_cost", *RANKED):
        with_reward_model(run, str(mode).endswith(("_onpolicy", "guided_cost")))
        return
    name = own[0] if own[0] == "serial" else f"serial_{own[0]}"
    require(_entry(mode) in (None, *known), "--mode", f"{name!r} for {run.policy}", mode)


EXPERTS = ("sqil", "dqfd", "r2d3", "gail")
"""Entries that learn from an expert."""


def _run(source: Any, options: argparse.Namespace, seed: int, entry: str | None) -> Run:
    """Return the run of a pair, after the expert has played if there is one."""
    limits = (options.train_iter, options.env_step)
    expert, path = getattr(options, "expert_config", None), getattr(options, "data_path", None)
    allowed = f"left out with the mode {entry}, which has no expert"
    require(expert is None or entry in EXPERTS, "--expert-config", allowed, expert)
    if path is not None and entry in ("gail", "guided_cost", *RANKED):
        main, create = source
        source = {**main, "reward_model": {**main.get("reward_model", {}), "data_path": path}}, create
    elif path is not None:
        source = with_data(source, path)
    if entry in ("guided_cost", *RANKED):
        from lightning_ding.di_engine.inverse_rl import guided_cost_run, preference_run

        run = (guided_cost_run if entry == "guided_cost" else preference_run)(source, seed, None, *limits)
    elif expert is None:
        run = translate(source, seed, None, *limits, entry=entry)
    elif entry == "gail":
        run = gail_run(source, expert, seed, *limits)
    else:
        play = {"sqil": sqil_run, "dqfd": dqfd_run, "r2d3": r2d3_run}[str(entry)]
        run = play(source, expert, seed, None, None, *limits)
    return run if options.exp_name is None else dataclasses.replace(run, exp_name=options.exp_name)


def show(run: Run) -> None:
    """Print what became of each key of a config, and the warnings."""
    for line in run.translated:
        print(line)
    for line in run.warnings:
        print(f"warning: {line}")


def _convert(options: argparse.Namespace) -> None:
    seeds = options.seed or [0]
    require(len(seeds) == 1, "--seed", "given once for convert", seeds)
    run = _run(options.file, options, seeds[0], entry_of(options.file))
    if not run.family:  # in DI-engine's form, whose keys the command `fit` does not know
        note = f"there is no YAML file, because {run.policy} is in DI-engine's form; the recipe trains it"
        run = dataclasses.replace(run, warnings=(*run.warnings, note))
    name = Path(options.file).stem
    yaml_file, recipe = Path(options.out) / f"{name}.yaml", Path(options.out) / f"{name}_recipe.py"
    texts = {recipe: to_recipe(run, recipe.stem)}
    if run.family:
        texts = {yaml_file: to_yaml(run, f"lightning-ding fit --config {yaml_file.name}"), **texts}
    for file in texts:
        require(options.force or not file.exists(), "--out", f"a folder without {file.name}, or --force", options.out)
    recipe.parent.mkdir(parents=True, exist_ok=True)
    for file, text in texts.items():
        file.write_text(text)
    show(run)
    print("written:", " and ".join(map(str, texts)))
