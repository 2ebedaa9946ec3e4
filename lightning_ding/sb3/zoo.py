"""Entries of the hyper-parameter files of rl-baselines3-zoo as run files for ``lightning-ding fit``.

The zoo evaluates some values as Python; here they are read as literals by a strict grammar, and nothing is evaluated.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from lightning_ding.config import deep_merge, nearest, require
from lightning_ding.sb3.description import ACTIVATIONS, class_name
from lightning_ding.sb3.settings import WITH_SDE, translate

POLICIES = {
    **{"a2c": "a2c", "crossq": "crossq", "ddpg": "ddpg", "dqn": "dqn", "ppo": "ppo", "ppo_lstm": "recurrent_ppo"},
    **{"qrdqn": "qrdqn", "sac": "sac", "td3": "td3", "tqc": "tqc"},
}
"""Policies here, by the names of the zoo's files."""
WITHOUT_POLICY = {
    "ars": "augmented random search",
    "trpo": "not translated",
    "her": "the file itself says that it is not used",
}
ATARI = "stable_baselines3.common.atari_wrappers.AtariWrapper"
RENAMED = {"gym_minigrid.": "minigrid."}
EVALUATED = ("policy_kwargs", "replay_buffer_kwargs", "normalize", "monitor_kwargs", "env_kwargs")
"""Keys whose text is Python in the zoo."""
NETWORK_KEYS = (
    *("net_arch", "activation_fn", "ortho_init", "log_std_init", "use_expln", "full_std", "n_critics", "n_quantiles"),
    *("lstm_hidden_size", "n_lstm_layers", "enable_critic_lstm", "shared_lstm", "optimizer_class", "optimizer_kwargs"),
    *("share_features_extractor", "clip_mean", "use_sde"),
)
OPTIMIZERS = {"Adam": "adam", "AdamW": "adamw", "RMSprop": "rmsprop", "SGD": "sgd"}


class ZooRun:
    """The translation of an entry.

    Args:
        name: Name of the zoo's file without its ending.
        env_id: The env.
        entry: The hyper-parameters.
    """

    def __init__(self, name: str, env_id: str, entry: Mapping[str, Any]) -> None:
        self.policy = POLICIES[name]
        self.given = {key: literal(value) if key in EVALUATED else value for key, value in entry.items()}
        self.env_id = env_id
        self.data: dict[str, Any] = {"env_id": env_id}
        self.model: dict[str, Any] = {}
        self.learn: dict[str, Any] = {}
        self.without: dict[str, str] = {}
        self.notes: list[str] = []

    def take(self, key: str, default: Any = None) -> Any:
        """Return a hyper-parameter, and treat it as translated."""
        return self.given.pop(key, default)

    @property
    def content(self) -> dict[str, Any]:
        """The content of the run file."""
        return {"policy": self.policy, "model": {"cfg": self.cfg}, "data": self.data}

    cfg: dict[str, Any]


def read_zoo(path: str | Path) -> dict[str, dict[str, Any]]:
    """Return the entries of a file of the zoo, by env.

    Raises:
        ValueError: If it is no YAML file of mappings.
    """
    try:
        content = yaml.safe_load(Path(path).read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ValueError(f"cannot read the zoo's file {str(path)!r}: {' '.join(str(error).split())}") from error
    is_known = isinstance(content, dict) and all(isinstance(entry, dict) for entry in content.values())
    require(is_known, "zoo", "a YAML file with hyper-parameters for each env", str(path))
    return content  # type: ignore[no-any-return]


def find_entry(entries: Mapping[str, dict[str, Any]], env_id: str) -> dict[str, Any]:
    """Return the entry of an env: its own, that of all Atari games, or the default, as the zoo chooses it.

    Raises:
        ValueError: If there is none.
    """
    is_atari = "NoFrameskip" in env_id or env_id.startswith("ALE/")
    for name in (env_id, *(["atari"] if is_atari else []), "default"):
        if name in entries:
            return entries[name]
    raise ValueError(f"the zoo's file has no entry for {env_id!r}; {nearest(env_id, entries)}")


def translate_entry(name: str, env_id: str, entry: Mapping[str, Any]) -> ZooRun:
    """Return the translation of an entry.

    Args:
        name: Name of the zoo's file without its ending, such as ``ppo_lstm``.
        env_id: The env.
        entry: The hyper-parameters.

    Raises:
        ValueError: If there is no such algorithm here, or a value cannot be read.
    """
    reason = f"; {WITHOUT_POLICY[name]}" if name in WITHOUT_POLICY else ""
    require(name in POLICIES, "the name of the zoo's file", f"one of {', '.join(POLICIES)}{reason}", name)
    run = ZooRun(name, env_id, entry)
    run.data["max_env_step"] = int(run.take("n_timesteps", 1_000_000))
    _envs(run)
    _network(run)
    settings = translate(run.policy, run.given)
    run.without |= settings.without
    run.data |= settings.data
    run.cfg = deep_merge(settings.policy, {"model": run.model, "learn": run.learn})
    return run


# ---------------------------------------------------------------------- Python literals


def literal(value: Any) -> Any:
    """Return what a text of Python means that is made of ``dict(...)``, containers, numbers, texts and names.

    Names such as ``nn.ReLU`` become texts; anything but a text is returned as it is.

    Raises:
        ValueError: If it is made of anything else.

    Example:
        >>> literal("dict(net_arch=dict(pi=[64], vf=[64]), log_std_init=-2, activation_fn=nn.ReLU)")
        {'net_arch': {'pi': [64], 'vf': [64]}, 'log_std_init': -2, 'activation_fn': 'nn.ReLU'}
    """
    if not isinstance(value, str):
        return value
    try:
        return _value(ast.parse(value.strip(), mode="eval").body)
    except (SyntaxError, TypeError, RecursionError, MemoryError) as error:
        raise ValueError(f"{value[:60]!r} is no literal of Python: {error}") from error


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, (ast.List, ast.Tuple)):
        return [_value(item) for item in node.elts]
    if isinstance(node, ast.Dict) and all(node.keys):
        return {_value(key): _value(item) for key, item in zip(node.keys, node.values, strict=True) if key}
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand)
    is_dict = isinstance(node, ast.Call) and ast.unparse(node.func) == "dict" and not node.args
    if isinstance(node, ast.Call) and is_dict and all(one.arg for one in node.keywords):
        return {one.arg: _value(one.value) for one in node.keywords}
    if isinstance(node, (ast.Name, ast.Attribute)):
        return ast.unparse(node)
    raise ValueError(f"{ast.unparse(node)[:60]!r} is no literal of Python")


# ---------------------------------------------------------------------- envs


def _envs(run: ZooRun) -> None:
    """Translate what the zoo makes of an env: its arguments, wrappers, stacks of frames and normalisation."""
    arguments = run.take("env_kwargs")
    if arguments:
        run.data["env_kwargs"] = arguments
    wrappers: list[Any] = []
    for path, options in _wrappers(run.take("env_wrapper")):
        wrappers += _wrapper(run, path, options)
    number = run.take("frame_stack")
    if number:
        stack = {"frame_stack": {"stack_size": number, "padding_type": "zero"}}
        is_image = str(run.given.get("policy", "")).startswith("Cnn")
        wrappers += [stack] if is_image else [stack, "flatten"]
    if wrappers:
        run.data["wrappers"] = wrappers
    for key in ("vec_env_wrapper", "callback", "monitor_kwargs"):
        value = run.take(key)
        if value:
            run.without[key] = "it is code of Stable-Baselines3 or of the user"
    _normalisation(run, bool(number))


def _wrappers(value: Any) -> list[tuple[str, dict[str, Any]]]:
    """Return the dotted paths of wrappers and their arguments, of a text, a mapping or a list of these."""
    if value is None:
        return []
    if isinstance(value, str):
        return [(value, {})]
    if isinstance(value, Mapping):
        return [(str(path), dict(options or {})) for path, options in value.items()]
    return [found for one in value for found in _wrappers(one)]


def _wrapper(run: ZooRun, path: str, options: dict[str, Any]) -> list[Any]:
    """Return a wrapper for the datamodule."""
    if path == ATARI:
        run.data["import_names"] = ["ale_py"]
        if run.env_id.startswith("ALE/"):
            run.data.setdefault("env_kwargs", {})["frameskip"] = 1
        return _atari(run, options)
    for old, new in RENAMED.items():
        path = path.replace(old, new) if path.startswith(old) else path
    run.notes.append(f"the wrapper {path} is that of its package, which has to be installed")
    return [{"class_path": path, "init_args": options} if options else path]


def _atari(run: ZooRun, options: dict[str, Any]) -> list[Any]:
    """Return the parts of the zoo's wrapper of Atari games, the innermost first."""
    known = {"noop_max": 30, "frame_skip": 4, "screen_size": 84, "terminal_on_life_loss": True, "clip_reward": True}
    given = {key: options.pop(key, default) for key, default in known.items()}
    for key in options:
        run.without[f"env_wrapper.{key}"] = "there is no such argument of the wrapper of Atari games"
    sizes = {key: given[key] for key in ("noop_max", "frame_skip", "screen_size")}
    parts: list[Any] = [{"atari_preprocessing": sizes}]
    parts += ["episodic_life"] if given["terminal_on_life_loss"] else []
    return [*parts, "fire_at_start", *(["sign_reward"] if given["clip_reward"] else [])]


def _normalisation(run: ZooRun, has_stack: bool) -> None:
    value = run.take("normalize", False)
    options = dict(value) if isinstance(value, Mapping) else {}
    if not value:
        return
    run.data["norm_obs"] = bool(options.pop("norm_obs", True))
    run.data["norm_reward"] = bool(options.pop("norm_reward", True))
    for key, number in {"clip_obs": 10, "clip_reward": 10, "gamma": run.given.get("gamma", 0.99)}.items():
        if options.get(key) == number:
            del options[key]
    for key in options:
        run.without[f"normalize.{key}"] = "the normalisation has no such option here"
    if has_stack:
        run.notes.append("normalize: frames are stacked before they are normalised here, and after it there")


# ---------------------------------------------------------------------- networks


def _network(run: ZooRun) -> None:
    """Translate the kind of network and its arguments."""
    kind, arguments = str(run.take("policy", "MlpPolicy")), dict(run.take("policy_kwargs") or {})
    is_image = kind.startswith("Cnn")
    if "." in kind:
        run.without["policy"] = f"{kind} is a class of the user or of the zoo"
    for key in list(arguments):
        if key not in NETWORK_KEYS:
            run.without[f"policy_kwargs.{key}"] = "there is no such option of the network here"
            del arguments[key]
    name = class_name(arguments.pop("activation_fn", None))
    default = "tanh" if run.policy in ON_POLICY else "relu"
    if name is not None and name not in ACTIVATIONS:
        run.without["policy_kwargs.activation_fn"] = f"there is no activation {name}"
    run.model["activation"] = ACTIVATIONS.get(name or "", default)
    if is_image and run.model["activation"] != "relu":
        run.model["encoder_kwargs"] = {"activation": "relu"}
    LAYERS[run.policy](run, arguments, is_image)
    _optimizer(run, arguments)
    _noise(run, arguments)
    for key in arguments:
        run.without[f"policy_kwargs.{key}"] = f"{run.policy} has no such option here"


def _actor_critic_layers(run: ZooRun, arguments: dict[str, Any], is_image: bool) -> None:
    sizes = arguments.pop("net_arch", [] if is_image else [64, 64])
    lists = sizes if isinstance(sizes, Mapping) else {"pi": sizes, "vf": sizes}
    run.model["actor_hidden_size_list"] = list(lists.get("pi", []))
    run.model["critic_hidden_size_list"] = list(lists.get("vf", []))
    run.model["share_encoder"] = bool(arguments.pop("share_features_extractor", True))
    run.learn["ppo_param_init"] = bool(arguments.pop("ortho_init", True))


def _recurrent_layers(run: ZooRun, arguments: dict[str, Any], is_image: bool) -> None:
    _actor_critic_layers(run, arguments, is_image)
    number = arguments.pop("n_lstm_layers", 1)
    core = {"type": "lstm", "hidden_size": arguments.pop("lstm_hidden_size", 256), "num_layers": number}
    is_shared, has_own = arguments.pop("shared_lstm", False), arguments.pop("enable_critic_lstm", True)
    run.model |= {"core": core, "share_encoder": not has_own}
    if not has_own and not is_shared:
        run.without["policy_kwargs.enable_critic_lstm"] = "a critic without recurrent layers; it uses the actor's"


def _q_layers(run: ZooRun, arguments: dict[str, Any], is_image: bool) -> None:
    sizes = arguments.pop("net_arch", [] if is_image else [64, 64])
    run.model["dueling"] = False
    if not is_image:
        run.model["encoder_hidden_size_list"] = list(sizes)
    elif sizes and len(set(sizes)) == 1:
        run.model |= {"head_hidden_size": sizes[0], "head_layer_num": len(sizes)}
    elif sizes:
        run.without["policy_kwargs.net_arch"] = "layers of different widths after an image's features"
    if run.policy == "qrdqn":
        run.model["num_quantiles"] = arguments.pop("n_quantiles", 200)


def _actor_and_critics_layers(run: ZooRun, arguments: dict[str, Any], is_image: bool) -> None:
    default: Any = [256, 256]
    if run.policy in ("td3", "ddpg") and not is_image:
        default = [400, 300]
    if run.policy == "crossq":
        default = {"pi": [256, 256], "qf": [1024, 1024]}
    sizes = arguments.pop("net_arch", default)
    lists = sizes if isinstance(sizes, Mapping) else {"pi": sizes, "qf": sizes}
    run.model["actor_hidden_size_list"] = list(lists["pi"])
    run.model["critic_hidden_size_list"] = list(lists["qf"])
    number = arguments.pop("n_critics", 1 if run.policy == "ddpg" else 2)
    if run.policy in ("tqc", "crossq"):
        run.model["ensemble_num"] = number
    elif number in (1, 2):
        run.model["twin_critic"] = number == 2
    else:
        run.without["policy_kwargs.n_critics"] = f"{run.policy} has one or two critics here"
    if run.policy == "tqc":
        run.model["num_quantiles"] = arguments.pop("n_quantiles", 25)
    if arguments.pop("share_features_extractor", False):
        run.model["share_encoder"] = True


ON_POLICY = ("ppo", "a2c", "recurrent_ppo")
LAYERS: dict[str, Callable[[ZooRun, dict[str, Any], bool], None]] = {
    **dict.fromkeys(("ppo", "a2c"), _actor_critic_layers),
    "recurrent_ppo": _recurrent_layers,
    **dict.fromkeys(("dqn", "qrdqn"), _q_layers),
    **dict.fromkeys(("sac", "td3", "ddpg", "tqc", "crossq"), _actor_and_critics_layers),
}
"""The translation of the layers of each policy."""


def _optimizer(run: ZooRun, arguments: dict[str, Any]) -> None:
    kind, options = class_name(arguments.pop("optimizer_class", None)), dict(arguments.pop("optimizer_kwargs", {}))
    if kind is not None and kind not in OPTIMIZERS:
        run.without["policy_kwargs.optimizer_class"] = f"there is no optimizer {kind}"
    elif kind is not None:
        run.learn.setdefault("optimizer", {})["type"] = OPTIMIZERS[kind]
    for key in [one for one in options if one in ("eps", "weight_decay", "betas", "momentum")]:
        run.learn.setdefault("optimizer", {})[key] = options.pop(key)
    for key in options:
        run.without[f"policy_kwargs.optimizer_kwargs.{key}"] = "the optimizer has no such option here"


def _noise(run: ZooRun, arguments: dict[str, Any]) -> None:
    """Translate the arguments of state-dependent noise, and the first standard deviation of actions."""
    arguments.pop("use_sde", None)
    is_used = bool(run.given.get("use_sde")) and run.policy in WITH_SDE
    known = {"log_std_init": is_used or run.policy in ON_POLICY, "use_expln": is_used, "full_std": is_used}
    known["clip_mean"] = is_used and run.policy not in ON_POLICY
    for key, has_effect in known.items():
        if key not in arguments:
            continue
        value = arguments.pop(key)
        if has_effect:
            run.model[key] = value
        else:
            run.without[f"policy_kwargs.{key}"] = f"{run.policy} has no state-dependent noise here"
