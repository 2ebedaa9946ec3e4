"""Trained policies on the Hugging Face hub: weights as safetensors, the config of the run, and a model card.

Nothing that is read from the hub can run code: a policy is one safetensors file, whose metadata is JSON.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml

from lightning_ding.config import MARK, require
from lightning_ding.policy import Policy, load_policy
from lightning_ding.policy.base.saved_state import SEED
from lightning_ding.policy.base.weights_file import description_of

WEIGHTS_FILE, RUN_FILE, CARD_FILE = "policy.safetensors", "run.yaml", "README.md"
TRAIN = f"lightning-ding fit --config {RUN_FILE}"
"""The command that trains such a policy again."""
IN_MEMORY = re.compile(r"\d+ transitions")
"""The name that a datamodule records for a data set without a file or a name."""


def push_to_hub(
    policy: Policy[Any],
    repo_id: str,
    *,
    evaluation: Mapping[str, Any] | None = None,
    command: str = TRAIN,
    private: bool = False,
    token: str | None = None,
) -> str:
    """Upload a policy to the hub in one commit, and return the address of the commit.

    The repository is made if there is none. It gets ``policy.safetensors``, ``run.yaml``, which is a config of
    ``lightning-ding fit``, and ``README.md``, the model card with return, config and command.

    Args:
        policy: A policy of a registered class that knows the spaces of its env.
        repo_id: Repository, ``name/repository``.
        evaluation: Result of :func:`lightning_ding.entry.evaluate.evaluate`, for the card; None leaves the return out.
        command: The command that trained the policy, for the card.
        private: Whether a new repository is private.
        token: Access token; None takes that of ``huggingface-cli login`` or ``HF_TOKEN``.

    Raises:
        ValueError: If the class of the policy is not registered, ``evaluation`` lacks an entry, or ``repo_id`` is not
            of that form.
        RuntimeError: If the policy does not know the spaces of its env.
        ImportError: If the extra ``hub`` is not installed.
    """
    hub = _hub()
    require(repo_id.count("/") == 1, "repo_id", "of the form name/repository", repo_id)
    description = description_of(policy)
    card = model_card(description, repo_id, evaluation, command)
    api = hub.HfApi(token=token)
    with tempfile.TemporaryDirectory() as folder:
        policy.export(Path(folder) / WEIGHTS_FILE, "safetensors")
        (Path(folder) / RUN_FILE).write_text(run_file(description))
        (Path(folder) / CARD_FILE).write_text(card)
        api.create_repo(repo_id, private=private, exist_ok=True)
        message = f"Upload a {type(policy).__name__}"
        commit = api.upload_folder(repo_id=repo_id, folder_path=folder, commit_message=message)
    return str(commit.commit_url)


def from_hub(repo_id: str, *, revision: str | None = None, token: str | None = None) -> Policy[Any]:
    """Return a policy that :func:`push_to_hub` uploaded, ready to act.

    Only its safetensors file is read.

    Args:
        repo_id: Repository, ``name/repository``.
        revision: Branch, tag or commit; None means the newest commit of the main branch. A commit cannot change later.
        token: Access token; None takes that of ``huggingface-cli login`` or ``HF_TOKEN``, if there is one.

    Raises:
        ValueError: If the file is not a policy, or names no registered one.
        FileNotFoundError: If there is no such repository, revision or file, or no access to it.
        ConnectionError: If the hub does not answer, and the file is not in the cache.
        ImportError: If the extra ``hub`` is not installed.
    """
    hub = _hub()
    try:
        file = hub.HfApi(token=token).hf_hub_download(repo_id, WEIGHTS_FILE, revision=revision)
    except hub.errors.LocalEntryNotFoundError as error:  # an EntryNotFoundError of the cache, without an answer
        raise ConnectionError(f"the hub must answer, because {repo_id!r} is not in the cache: {error}") from error
    except (
        hub.errors.RepositoryNotFoundError,
        hub.errors.RevisionNotFoundError,
        hub.errors.EntryNotFoundError,
    ) as error:
        place = f"{repo_id!r} at revision {revision!r}" if revision else repr(repo_id)
        raise FileNotFoundError(f"repo_id must be a repository with {WEIGHTS_FILE} on the hub, got {place}") from error
    return load_policy(file)


def run_file(description: Mapping[str, Any]) -> str:
    """Return the config of ``lightning-ding fit`` that trains a policy as the described one was trained."""
    cfg = {name: value for name, value in description["cfg"].items() if name != MARK}
    data = dict(description["run"])
    seed = {SEED: data.pop(SEED)} if SEED in data else {}
    notes = ""
    for name in ("dataset", "demonstrations"):
        if IN_MEMORY.fullmatch(str(data.get(name))):
            notes += (
                f"# data.{name} was an object in memory ({data.pop(name)}): add the path of a file with the data.\n"
            )
    content = {"policy": description["policy"], **seed, "model": {"cfg": cfg}, "data": data}
    return f"# {TRAIN}\n{notes}" + yaml.safe_dump(_plain(content), sort_keys=False)


def model_card(
    description: Mapping[str, Any], repo_id: str, evaluation: Mapping[str, Any] | None = None, command: str = TRAIN
) -> str:
    """Return the model card of a policy: metadata of the hub, return, use, command and config.

    Args:
        description: Description of the policy, see :func:`weights_file.description_of`.
        repo_id: Repository, ``name/repository``.
        evaluation: Result of an evaluation, or None.
        command: The command that trained the policy.

    Raises:
        ValueError: If ``evaluation`` lacks an entry.
    """
    name, env = description["policy"], str(description["run"].get("env_id", "an env"))
    needed = {"mean", "std", "mean_ci95", "episodes", "seed", "stochastic"}
    given = needed if evaluation is None else set(evaluation)
    require(needed <= given, "evaluation", f"with the entries {sorted(needed)}", sorted(given))
    steps = description["progress"]["env_step"]
    lines = [
        *("---", yaml.safe_dump(_metadata(name, env, evaluation), sort_keys=False).strip(), "---", ""),
        *(f"# {name} in {env}", "", f"A policy of lightning_ding, trained for {steps} env steps.", ""),
        *_return_lines(evaluation),
        *("## Use", "", "```python", "from lightning_ding.hub import from_hub", ""),
        *(f'policy = from_hub("{repo_id}")', "action = policy.actor()(obs)", "```", ""),
        *(
            "## Training",
            "",
            "```bash",
            command,
            "```",
            "",
            f"`{RUN_FILE}`:",
            "",
            "```yaml",
            run_file(description),
            "```",
        ),
    ]
    return "\n".join(lines) + "\n"


def _metadata(name: str, env: str, evaluation: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the metadata that the hub reads at the top of a card."""
    tags = [env, name, "reinforcement-learning", "lightning_ding"]
    found: dict[str, Any] = {"library_name": "lightning_ding", "tags": tags}
    if evaluation is not None:
        value = f"{evaluation['mean']:.2f} +/- {evaluation['std']:.2f}"
        result = {
            "task": {"type": "reinforcement-learning", "name": "reinforcement-learning"},
            "dataset": {"name": env, "type": env},
            "metrics": [{"type": "mean_reward", "value": value, "name": "mean_reward", "verified": False}],
        }
        found["model-index"] = [{"name": name, "results": [result]}]
    return found


def _return_lines(evaluation: Mapping[str, Any] | None) -> list[str]:
    if evaluation is None:
        return []
    low, high = evaluation["mean_ci95"]
    way = "stochastic" if evaluation["stochastic"] else "deterministic"
    interval = f"95 % interval {low:.2f} to {high:.2f}, standard deviation {evaluation['std']:.2f}"
    how = f"over {evaluation['episodes']} {way} episodes with seed {evaluation['seed']}"
    return [f"Mean return: **{evaluation['mean']:.2f}** ({interval}), {how}.", ""]


def _plain(data: Any) -> Any:
    """Return data with lists in place of tuples, which YAML has no name for."""
    if isinstance(data, Mapping):
        return {name: _plain(value) for name, value in data.items()}
    return [_plain(value) for value in data] if isinstance(data, (list, tuple)) else data


def _hub(module: str = "huggingface_hub") -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise ImportError("this needs huggingface_hub: pip install 'lightning_ding[hub]'") from error
