"""The ``env`` sections of DI-engine's configs, translated to arguments of this project's datamodules."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from easydict import EasyDict

from lightning_ding.config import deep_merge, require
from lightning_ding.di_engine.data_sets import is_of_ding
from lightning_ding.di_engine.env_manager import translate_manager
from lightning_ding.di_engine.env_section import EnvSection, Need, plain_dicts, wrapper_entry
from lightning_ding.di_engine.known_envs import translate_known
from lightning_ding.envs.named import EnvLike, names_of
from lightning_ding.envs.vector import VectorMode
from lightning_ding.registry import ENV_REGISTRY, import_modules

Section = Mapping[str, Any]
BASE_ENV = "lightning_ding.envs.make_base_env"


@dataclass(frozen=True)
class TranslatedEnvs:
    """The envs of a config, as arguments of a datamodule and of the policy's config."""

    env: EnvLike
    """Training env: a gymnasium id, or the dotted path of a function that makes it."""
    eval_env: EnvLike | None
    """Evaluation env; None means ``env``, perhaps with other arguments and wrappers."""
    num_envs: int
    """Number of training envs."""
    num_eval_envs: int
    """Number of evaluation envs."""
    vector_mode: VectorMode
    """How envs are stepped: ``"sync"`` or ``"async"``."""
    n_evaluator_episode: int
    """Episodes of an evaluation."""
    stop_value: Any
    """Mean return that ends the run."""
    datamodule: dict[str, Any]
    """Further arguments of the datamodule: plain values, except for a ``BaseEnv`` that has no importable name."""
    collector: dict[str, Any]
    """Entries of the policy's ``collect.collector``."""
    replay_path: str | None
    """Folder for the videos of an evaluation of a trained policy; see :meth:`with_replay`."""
    translated: tuple[str, ...]
    """A line "old -> new" for each entry that has another name or form here."""
    warnings: tuple[str, ...]
    """A line for each entry without effect, or whose effect differs."""
    needs: tuple[Need, ...] = ()
    """The packages that the envs need and this project does not bring."""
    dataset: str = ""
    """D4RL's name of the data set that the name of the env implies; empty for none."""
    reward_norm: str | None = None
    """D4RL's way to scale the rewards of the data set."""
    scales_actions: bool = False
    """Whether DI-engine's env maps actions in [-1, 1] to its bounds."""
    norm_by_data: bool = False
    """Whether observations are normalized with the statistics of a data set, if there is one."""

    def datamodule_kwargs(self) -> dict[str, Any]:
        """Return the keyword arguments of the datamodule that describe the envs."""
        return {
            "env_id": self.env,
            "eval_env_id": self.eval_env,
            "num_envs": self.num_envs,
            "evaluator_env_num": self.num_eval_envs,
            "mode": self.vector_mode,
            "n_evaluator_episode": self.n_evaluator_episode,
            "stop_value": self.stop_value,
            **self.datamodule,
        }

    def for_data(self, path: Any) -> TranslatedEnvs:
        """Return the same envs, with actions in [-1, 1] if those of a data set of DI-engine are.

        Args:
            path: The data set; anything else than the path of a file in DI-engine's form changes nothing.
        """
        if not (self.scales_actions and is_of_ding(path)):
            return self
        unit = wrapper_entry("gymnasium.wrappers.RescaleAction", min_action=-1.0, max_action=1.0)
        wrappers = [*self.datamodule.get("wrappers", []), unit]
        note = f"env.act_scale True -> the envs take actions in [-1, 1], as the data set {str(path)!r} has them"
        return replace(self, datamodule={**self.datamodule, "wrappers": wrappers}, translated=(*self.translated, note))

    def with_replay(self, folder: str | None = None) -> TranslatedEnvs:
        """Return the same envs, whose evaluations write a video of each episode to a folder.

        Args:
            folder: The folder; None means ``replay_path``. Without either, no videos are written.
        """
        folder = folder or self.replay_path
        if not folder:
            return self
        kwargs = self.datamodule.get("eval_env_kwargs", self.datamodule.get("env_kwargs", {}))
        if self.env == BASE_ENV:
            return replace(self, datamodule={**self.datamodule, "eval_env_kwargs": {**kwargs, "replay_path": folder}})
        wrappers = [
            *self.datamodule.get("eval_wrappers", []),
            wrapper_entry("lightning_ding.envs.wrappers.record_videos", folder=folder),
        ]
        rendered = self.with_rendering()
        return replace(rendered, datamodule={**rendered.datamodule, "eval_wrappers": wrappers})

    def with_rendering(self) -> TranslatedEnvs:
        """Return the same envs, whose evaluation envs render frames as arrays, which an evaluator's videos need."""
        kwargs = self.datamodule.get("eval_env_kwargs", self.datamodule.get("env_kwargs", {}))
        changed = {"eval_env_kwargs": {**kwargs, "render_mode": "rgb_array"}}
        return replace(self, datamodule={**self.datamodule, **changed})


def translate_envs(
    main_env: Section, create_env: Section, manager: Section, env_setting: tuple[Any, Any, Any] | None = None
) -> TranslatedEnvs:
    """Return the envs of a DI-engine config.

    Args:
        main_env: Section ``env`` of the main config. Its entries have priority over those of the other sections.
        create_env: Section ``env`` of the create config, with ``type`` and ``import_names``.
        manager: Section ``env_manager`` of the create config.
        env_setting: Function that makes an env of a config, configs of the training envs, and configs of the evaluation
            envs, in place of the env that the config names; None uses the latter.

    Raises:
        ValueError: If there is no such env type, an entry has a value that cannot be translated, or the configs of
            several envs differ.
        ImportError: If a module of ``import_names`` cannot be imported.

    Example:
        >>> envs = translate_envs({"env_id": "LunarLander-v2"}, {"type": "lunarlander"}, {"type": "subprocess"})
        >>> envs.env, envs.vector_mode, envs.translated[0]
        ('LunarLander-v3', 'async', "env.env_id 'LunarLander-v2' -> 'LunarLander-v3'")
    """
    managed = translate_manager({**manager, **(main_env.get("manager") or {})})
    section = EnvSection({**plain_dicts(create_env), **plain_dicts(main_env)})
    kind = section.take("type", None)
    section.kind = str(kind)
    modules = names_of(section.take("import_names", []))
    section.modules = [name for name in modules if name.partition(".")[0] != "dizoo"]
    import_modules(section.modules)
    if env_setting is not None:
        _translate_own(section, *env_setting)
    elif kind in ENV_REGISTRY:
        _translate_own(section, ENV_REGISTRY.get(kind))
    else:
        translate_known(section, kind, modules)
    return TranslatedEnvs(
        env=section.env,
        eval_env=None,
        num_envs=section.num_envs,
        num_eval_envs=section.num_eval_envs,
        vector_mode=managed.mode,
        n_evaluator_episode=section.common["n_evaluator_episode"],
        stop_value=section.common["stop_value"],
        datamodule={**section.datamodule(), **managed.datamodule},
        collector=managed.collector,
        replay_path=section.common["replay_path"],
        translated=(*section.translated, *managed.translated),
        warnings=(*section.warnings, *managed.warnings),
        needs=tuple(section.needs),
        dataset=section.dataset,
        reward_norm=section.reward_norm,
        scales_actions=section.scales_actions,
        norm_by_data=section.norm_by_data,
    )


def _translate_own(section: EnvSection, make: Any, train_cfgs: Any = None, eval_cfgs: Any = None) -> None:
    """Read the section for an env of the user, which gets all its entries."""
    defaults: dict[str, Any] = plain_dicts(make.default_config()) if hasattr(make, "default_config") else {}
    section.left = deep_merge(defaults, section.left)
    cfg = EasyDict(copy.deepcopy(section.left))
    section.take_common()
    train_cfgs = _cfgs(make, "collector", cfg) if train_cfgs is None else train_cfgs
    eval_cfgs = _cfgs(make, "evaluator", cfg) if eval_cfgs is None else eval_cfgs
    section.num_envs, section.num_eval_envs = len(train_cfgs), len(eval_cfgs)
    train_cfg, eval_cfg = _only(train_cfgs, "collector"), _only(eval_cfgs, "evaluator")
    section.use(BASE_ENV, env=_name_of(make), cfg=train_cfg)
    section.eval_kwargs = {"cfg": eval_cfg, "evaluation": True}


def _only(cfgs: Any, name: str) -> dict[str, Any]:
    """Return the config that all envs of the training or of the evaluation have."""
    require(len(cfgs) >= 1, f"{name}_env_num", ">= 1", len(cfgs))
    are_equal = all(one == cfgs[0] for one in cfgs)
    require(are_equal, f"the configs of all {name} envs", "equal, because all envs are made alike", list(cfgs))
    return dict(plain_dicts(cfgs[0] or {}))


def _cfgs(make: Any, name: str, cfg: Any) -> Any:
    create = getattr(make, f"create_{name}_env_cfg", None)
    own = copy.deepcopy(cfg)
    own.setdefault(f"{name}_env_num", 1)
    return create(own) if create is not None else [own] * own.pop(f"{name}_env_num")


def _name_of(make: Any) -> Any:
    """Return the dotted path of a class or function, or the object itself if it cannot be imported by a path."""
    module, name = getattr(make, "__module__", "__main__"), getattr(make, "__qualname__", "<no name>")
    return make if module.startswith(("__main__", "_config_")) or "<" in name or "." in name else f"{module}:{name}"
