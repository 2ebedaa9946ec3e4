"""Write ``ding_defaults.json``: the defaults of DI-engine's policies and networks, read from its source.

pip install --no-deps --target FOLDER DI-engine==0.5.3
python tests/di_engine/make_ding_defaults.py FOLDER

IQL is in DI-engine's repository only (commit d0b21d0): call it again with the folder of a clone and ``iql``.
"""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path
from typing import Any

CHAINS = {
    "dqn": ("dqn:DQNPolicy",),
    "c51": ("dqn:DQNPolicy", "c51:C51Policy"),
    "qrdqn": ("dqn:DQNPolicy", "qrdqn:QRDQNPolicy"),
    "rainbow": ("dqn:DQNPolicy", "rainbow:RainbowDQNPolicy"),
    "mdqn": ("dqn:DQNPolicy", "mdqn:MDQNPolicy"),
    "sql": ("sql:SQLPolicy",),
    "bdq": ("bdq:BDQPolicy",),
    "sqn": ("sqn:SQNPolicy",),
    "iqn": ("dqn:DQNPolicy", "iqn:IQNPolicy"),
    "fqf": ("dqn:DQNPolicy", "fqf:FQFPolicy"),
    "r2d2": ("r2d2:R2D2Policy",),
    "r2d2_gtrxl": ("r2d2_gtrxl:R2D2GTrXLPolicy",),
    "r2d3": ("r2d3:R2D3Policy",),
    "ngu": ("ngu:NGUPolicy",),
    "dqfd": ("dqn:DQNPolicy", "dqfd:DQFDPolicy"),
    "ddpg": ("ddpg:DDPGPolicy",),
    "d4pg": ("ddpg:DDPGPolicy", "d4pg:D4PGPolicy"),
    "td3": ("ddpg:DDPGPolicy", "td3:TD3Policy"),
    "pdqn": ("pdqn:PDQNPolicy",),
    "sac": ("sac:SACPolicy",),
    "discrete_sac": ("sac:DiscreteSACPolicy",),
    "a2c": ("a2c:A2CPolicy",),
    "ppo": ("ppo:PPOPolicy",),
    "ppg": ("ppg:PPGPolicy",),
    "ppo_offpolicy": ("ppo:PPOOffPolicy",),
    "ppg_offpolicy": ("ppg:PPGOffPolicy",),
    "impala": ("impala:IMPALAPolicy",),
    "acer": ("acer:ACERPolicy",),
    "pg": ("pg:PGPolicy",),
    "cql": ("sac:SACPolicy", "cql:CQLPolicy"),
    "edac": ("sac:SACPolicy", "edac:EDACPolicy"),
    "bcq": ("bcq:BCQPolicy",),
    "discrete_cql": ("dqn:DQNPolicy", "qrdqn:QRDQNPolicy", "cql:DiscreteCQLPolicy"),
    "td3_bc": ("ddpg:DDPGPolicy", "td3_bc:TD3BCPolicy"),
    "iql": ("iql:IQLPolicy",),
    "bc": ("bc:BehaviourCloningPolicy",),
}
"""File and class of each policy, after those of its bases."""
NETWORKS = {
    "dqn": "q_learning:DQN",
    "c51": "q_learning:C51DQN",
    "qrdqn": "q_learning:QRDQN",
    "rainbow": "q_learning:RainbowDQN",
    "mdqn": "q_learning:DQN",
    "sql": "q_learning:DQN",
    "bdq": "q_learning:BDQ",
    "sqn": "q_learning:DQN",
    "iqn": "q_learning:IQN",
    "fqf": "q_learning:FQF",
    "r2d2": "q_learning:DRQN",
    "r2d2_gtrxl": "q_learning:GTrXLDQN",
    "r2d3": "q_learning:DRQN",
    "ngu": "ngu:NGU",
    "dqfd": "q_learning:DQN",
    "ddpg": "qac:ContinuousQAC",
    "d4pg": "qac_dist:QACDIST",
    "td3": "qac:ContinuousQAC",
    "pdqn": "pdqn:PDQN",
    "sac": "qac:ContinuousQAC",
    "discrete_sac": "qac:DiscreteQAC",
    "a2c": "vac:VAC",
    "ppo": "vac:VAC",
    "ppg": "ppg:PPG",
    "ppo_offpolicy": "vac:VAC",
    "ppg_offpolicy": "ppg:PPG",
    "impala": "vac:VAC",
    "acer": "acer:ACER",
    "pg": "pg:PG",
    "cql": "qac:ContinuousQAC",
    "edac": "edac:EDAC",
    "bcq": "bcq:BCQ",
    "discrete_cql": "q_learning:QRDQN",
    "td3_bc": "qac:ContinuousQAC",
    "iql": "qvac:ContinuousQVAC",
    "bc": "bc:DiscreteBC",
}
WORKERS = {
    "buffer": "worker/replay_buffer/advanced_buffer.py:AdvancedReplayBuffer",
    "evaluator": "worker/collector/interaction_serial_evaluator.py:InteractionSerialEvaluator",
    "learner": "worker/learner/base_learner.py:BaseLearner",
    "collector": "worker/collector/sample_serial_collector.py:SampleSerialCollector",
}


def class_in(file: Path, name: str) -> ast.ClassDef:
    """Return the class of a file."""
    return next(one for one in ast.parse(file.read_text()).body if isinstance(one, ast.ClassDef) and one.name == name)


def config_of(file: Path, name: str) -> dict[str, Any]:
    """Return the class attribute ``config``."""
    for one in class_in(file, name).body:
        if isinstance(one, ast.Assign) and ast.unparse(one.targets[0]) == "config":
            names = {"dict": dict, "float": float, "int": int, "unroll_len": 32}
            return dict(eval(ast.unparse(one.value), {"__builtins__": {}}, names))
    return {}


def arguments_of(file: Path, name: str) -> dict[str, Any]:
    """Return the constructor's arguments whose default is a literal; the activation is nn.ReLU everywhere."""
    (init,) = (one for one in class_in(file, name).body if isinstance(one, ast.FunctionDef) and one.name == "__init__")
    names, defaults = [one.arg for one in init.args.args], init.args.defaults
    pairs = zip(names[-len(defaults) :], defaults, strict=True)
    return {key: "ReLU" if key == "activation" else ast.literal_eval(value) for key, value in pairs}


def flat(config: dict[str, Any], path: str = "") -> dict[str, Any]:
    """Return the values by dotted keys."""
    found: dict[str, Any] = {}
    for key, value in config.items():
        found |= flat(value, f"{path}{key}.") if isinstance(value, dict) else {f"{path}{key}": value}
    return found


def main() -> None:
    """Read the folder of the command line."""
    root = Path(sys.argv[1]) / "ding"
    target = Path(__file__).with_name("ding_defaults.json")
    earlier = json.loads(target.read_text())
    kinds = sys.argv[2:] or [kind for kind in CHAINS if kind != "iql"]
    policies = earlier["policies"]
    for kind, chain in CHAINS.items():
        if kind not in kinds:
            continue
        values = flat(config_of(root / "policy/base_policy.py", "Policy"))
        for one in chain:
            file, name = one.split(":")
            values |= flat(config_of(root / f"policy/{file}.py", name))
        file, name = NETWORKS[kind].split(":")
        network = arguments_of(root / f"model/template/{file}.py", name)
        policies[kind] = {f"model.{key}": value for key, value in network.items()} | values
    workers = {kind: flat(config_of(root / one.split(":")[0], one.split(":")[1])) for kind, one in WORKERS.items()}
    found = {**earlier, "policies": policies, **({} if sys.argv[2:] else workers)}
    target.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
