"""The console script ``lightning-ding``: prints help and version quickly, and imports other commands when needed."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from lightning_ding import __version__

LIGHTNING, DISTRIBUTED = "lightning_ding.entry.lightning_cli", "lightning_ding.entry.parallel"
SWEEP = "lightning_ding.entry.sweep"
SERIAL = "lightning_ding.di_engine.serial_cli"
COMMANDS = {
    "fit": ("train a policy", LIGHTNING),
    "validate": ("evaluate a checkpoint on the episodes of validation", LIGHTNING),
    "test": ("evaluate a checkpoint on episodes that no validation has", LIGHTNING),
    "sweep": ("train a policy with several seeds, as fit --seeds does", SWEEP),
    "compare": ("compare runs over their seeds, with intervals", "lightning_ding.entry.compare_command"),
    "tune": ("search for the hyper-parameters of a run, with Optuna", "lightning_ding.entry.tune"),
    "collect": ("play episodes with a policy and write them as a data set", "lightning_ding.entry.collect"),
    "enjoy": ("watch a trained policy, or write a video of it", "lightning_ding.entry.enjoy"),
    "zoo": ("trained policies that come with the package", "lightning_ding.entry.zoo"),
    "evaluate": ("the returns of a trained policy, with a confidence interval", "lightning_ding.entry.evaluate"),
    "doctor": ("symptoms of a run that does not learn, with evidence", "lightning_ding.entry.doctor"),
    "export": ("write a trained policy as ONNX, torch.export or safetensors", "lightning_ding.entry.export"),
    "parallel": ("a distributed run on this machine: a coordinator, a learner and collectors", DISTRIBUTED),
    "coordinator": ("the coordinator of a distributed run", DISTRIBUTED),
    "learner": ("a learner of a distributed run", DISTRIBUTED),
    "collector": ("a collector of a distributed run", DISTRIBUTED),
    "serial": ("train or evaluate with a config file of DI-engine", SERIAL),
    "convert": ("write a config file of DI-engine as YAML and as a recipe", SERIAL),
    "from-sb3": ("use a model of Stable-Baselines3, or an entry of its zoo", "lightning_ding.entry.from_sb3"),
    "ask": ("send a message to a coordinator: status, shutdown, or a new number of collectors", DISTRIBUTED),
}
"""Meaning of each command, and the module whose ``main`` gets the whole command line."""


def policy_names() -> list[str]:
    """Return the names of the package's policies, read from its source, because importing them would import torch."""
    files = (Path(__file__).parents[1] / "policy").rglob("*.py")
    found = [re.findall(r'^@POLICY_REGISTRY\.register\("(\w+)"\)', file.read_text(), re.MULTILINE) for file in files]
    return sorted(name for names in found for name in names)


USAGE = """usage: lightning-ding COMMAND [options]

Reinforcement learning as PyTorch Lightning.

commands:
""" + "\n".join(f"  {name:<12} {meaning}" for name, (meaning, _) in COMMANDS.items())
HELP = """{usage}

policies (--policy NAME of fit, validate and test, or the dotted path of a class):
  {policies}

options:
  -h, --help  show this text; lightning-ding COMMAND --help shows the options of a command,
              lightning-ding fit --policy NAME --help the options of a policy
  --version   show the version

examples:
  lightning-ding fit --policy dqn --data.env_id CartPole-v1 --data.max_env_step 50000
  lightning-ding fit --config run.yaml --ckpt_path last
  lightning-ding fit --config run.yaml --seeds 5 --folder runs/new
  lightning-ding compare runs/new runs/old --plot curves.png
  lightning-ding evaluate best.ckpt --episodes 100
  lightning-ding doctor runs/dqn/version_0
  lightning-ding enjoy best.ckpt --video best.mp4
  lightning-ding enjoy zoo:ppo_halfcheetah
  lightning-ding export best.ckpt --format onnx --output policy.onnx
  lightning-ding tune --config run.yaml --trials 20 --space learn.learning_rate=log(1e-5,1e-2)
  lightning-ding collect last.ckpt --out demos.npz --episodes 100
  lightning-ding fit --policy td3_bc --data.dataset demos.npz --data.env_id Pendulum-v1 --data.max_train_iter 10000
  lightning-ding parallel --config run.yaml --set main.seed=1
  lightning-ding serial -c cartpole_dqn_config.py -s 0
  lightning-ding from-sb3 model.zip

LIGHTNING_DING_DEBUG=1 in the environment shows the traceback of an error that is otherwise one line."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line.

    Args:
        arguments: Command-line arguments without the program's name; None means ``sys.argv``.

    Raises:
        SystemExit: With code 2 for an invalid command line, or with the exit code of the command.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    command = given[0] if given else ""
    if command in ("-h", "--help"):
        print(HELP.format(usage=USAGE, policies=", ".join(policy_names())))
    elif command == "--version":
        print(f"lightning-ding {__version__}")
    elif not given:
        print(f"{USAGE}\n\nerror: no command given; see lightning-ding --help", file=sys.stderr)
        raise SystemExit(2)
    elif command not in COMMANDS and not command.startswith("-"):
        from lightning_ding.config import closest  # later, because it imports numpy

        near = closest(command, COMMANDS)
        hint = f"did you mean {near!r}? " if near else ""
        print(f"error: unknown subcommand {command!r}; {hint}Known: {', '.join(COMMANDS)}", file=sys.stderr)
        raise SystemExit(2)
    else:
        sys.path.append(os.getcwd())  # envs and policies of the user
        _, home = COMMANDS.get(command, COMMANDS["fit"])  # Lightning's command line also has options without a command
        if command == "fit" and any(option.partition("=")[0] == "--seeds" for option in given):
            home = SWEEP
        import_module(home).main(given)
