"""The commands ``serial`` and ``convert``, for configs of DI-engine.

    lightning-ding serial -c cartpole_dqn_config.py -s 0
    lightning-ding serial -c cartpole_ppo_config.py -s 0 -s 1 -m serial_onpolicy --env-step 100000
    lightning-ding serial -c cartpole_dqn_config.py -m eval --load-path cartpole_dqn_seed0/ckpt/best.ckpt
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
from lightning_ding.di_engine.configs import read_pair
from lightning_ding.di_engine.convert import to_recipe, to_yaml
from lightning_ding.di_engine.run import UNLIMITED, Run
from lightning_ding.di_engine.serial import eval as evaluate, train
from lightning_ding.di_engine.translate import translate
from lightning_ding.entry.lightning_cli import CommandParser, in_one_line
from lightning_ding.utils.protocols import return_text

MODES = ("serial", "serial_onpolicy", "serial_offline", "eval")


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
        parser.add_argument("-c", "--config", required=True, help="config file of DI-engine")
        parser.add_argument("-m", "--mode", choices=MODES, help="the entry; by default the one that the policy needs")
        parser.add_argument("--load-path", help="checkpoint that eval loads")
        parser.add_argument("--replay-path", help="folder for the videos of eval")
    parser.add_argument("-s", "--seed", type=int, action="append", help="seed; several seeds give several runs")
    parser.add_argument("--exp-name", help="folder of the run")
    parser.add_argument("--train-iter", type=int, default=UNLIMITED, help="updates after which the run ends")
    parser.add_argument("--env-step", type=int, default=UNLIMITED, help="env steps after which the run ends")
    return parser


def _serial(options: argparse.Namespace) -> None:
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
    for number, seed in enumerate(seeds):
        run = _run(pair, options, seed)
        is_offline = run.policy_class.trains_on == "dataset"
        modes = ("serial_onpolicy",) if run.on_policy else ("serial_offline", "serial") if is_offline else ("serial",)
        require(options.mode in (None, *modes), "--mode", f"{modes[0]!r} for {run.policy}", options.mode)
        if len(seeds) > 1:
            run = dataclasses.replace(run, exp_name=f"{run.exp_name}_seed{seed}")
        if number == 0:
            show(run)
        train(dataclasses.replace(run, warnings=()))


def _run(source: Any, options: argparse.Namespace, seed: int) -> Run:
    run = translate(source, seed, None, options.train_iter, options.env_step)
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
    run = _run(options.file, options, seeds[0])
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
