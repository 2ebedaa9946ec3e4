"""Tasks of a user's first hour: sections of the guides, and code where a guide has no section for the task."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from tests.docs.pages import FENCE, code_of

DOCS = Path(__file__).parents[1] / "docs"
TITLE = re.compile(r"^## (.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Task:
    """One thing that a user wants to do."""

    goal: str
    page: str
    """Page that explains it, relative to docs/."""
    sections: tuple[str, ...] = ()
    """Headings whose blocks run, after those above the first heading."""
    text: str = ""
    """Markdown whose blocks run instead of the page's."""
    package: str | None = None
    """Optional package without which the task cannot run."""

    def markdown(self) -> str:
        """Return the Markdown whose blocks run."""
        return self.text or sections_of((DOCS / self.page).read_text(), self.sections)


def sections_of(page: str, titles: tuple[str, ...]) -> str:
    """Return the text above the first heading of a page, and some of its sections.

    Args:
        page: Text of the page.
        titles: Headings of the sections.

    Raises:
        ValueError: If the page has no section of that heading.
    """
    code = [found.span() for found in FENCE.finditer(page)]
    headings = [one for one in TITLE.finditer(page) if not any(start < one.start() < end for start, end in code)]
    ends = [*(one.start() for one in headings[1:]), len(page)]
    sections = {one[1]: page[one.start() : end] for one, end in zip(headings, ends, strict=True)}
    unknown = [title for title in titles if title not in sections]
    if unknown:
        raise ValueError(f"sections must be of {list(sections)}, got {unknown}")
    return "\n".join([page[: headings[0].start()], *(text for title, text in sections.items() if title in titles)])


def di_engine_config() -> str:
    """Return the config of the page about DI-engine, as a file, and the commands that run and translate it."""
    config = code_of("python", (DOCS / "from_di_engine.md").read_text())[0]
    return f"""```python
# file: cartpole_dqn_config.py
{config}```
```bash
lightning-ding convert cartpole_dqn_config.py
lightning-ding serial -c cartpole_dqn_config.py -s 0 --env-step 2000
```
"""


FIT = "lightning-ding fit --policy dqn --data.env_id CartPole-v1 --data.max_env_step 2000 --trainer.accelerator cpu"
FIRST_RUN = f"""```bash
{FIT}
```
"""
KILLED = """```python
# file: train.py
import sys

import torch
from lightning import Trainer, seed_everything
from lightning_ding.checkpoints import last_checkpoint
from lightning_ding.datamodules import ReplayDataModule
from lightning_ding.policy import DQNPolicy

if __name__ == "__main__":
    folder = sys.argv[1]
    seed_everything(0)
    policy = DQNPolicy({"eval": {"evaluator": {"eval_freq": 100, "n_episode": 2}}})
    data = ReplayDataModule("CartPole-v1", max_env_step=4_000)
    trainer = Trainer(accelerator="cpu", default_root_dir=folder, logger=False, enable_progress_bar=False)
    trainer.fit(policy, data, ckpt_path=last_checkpoint(folder))
    torch.save(policy.state_dict(), f"{folder}/weights.pt")
```
```bash
python train.py whole
```
```python
import subprocess
import time

import torch
from lightning_ding.checkpoints import last_checkpoint

process = subprocess.Popen(["python", "train.py", "killed"])
while last_checkpoint("killed") is None:
    time.sleep(0.01)
process.kill()
assert process.wait() == -9, "the run had ended before it was killed"
```
```bash
python train.py killed
```
```python
whole, killed = (torch.load(f"{run}/weights.pt", weights_only=True) for run in ("whole", "killed"))
assert all((whole[name] == killed[name]).all() for name in whole)
```
"""
TWO_RANKS = """```python
# file: ranks.py
from lightning import Trainer
from lightning_ding.datamodules import ReplayDataModule
from lightning_ding.policy import DQNPolicy

if __name__ == "__main__":
    data = ReplayDataModule("CartPole-v1", max_env_step=2_000, n_evaluator_episode=4)
    trainer = Trainer(strategy="ddp", accelerator="cpu", devices=2)
    trainer.fit(DQNPolicy(), data)
```
```bash
python ranks.py
```
"""
DISTRIBUTED = """```bash
lightning-ding parallel --config recipes/configs/parallel_dqn_cartpole.yaml --set main.max_env_step=3000
```
"""
DEMONSTRATIONS = f"""```bash
{FIT} --trainer.default_root_dir expert --trainer.logger false
lightning-ding collect expert/checkpoints/best.ckpt --out demos.npz --episodes 20 --greedy
lightning-ding fit --config recipes/configs/sqil_cartpole.yaml --data.max_env_step 2000
```
"""
VIDEO = f"""```bash
{FIT} --trainer.default_root_dir run --trainer.logger false
lightning-ding enjoy run/checkpoints/best.ckpt --video cartpole.gif
```
"""
EVALUATION = f"""```bash
{FIT} --trainer.default_root_dir run --trainer.logger false
lightning-ding evaluate run/checkpoints/best.ckpt --episodes 100 --json
```
"""
HUB = f"""```bash
{FIT} --trainer.default_root_dir run --trainer.logger false
```
```python
import os
import threading
from http.server import ThreadingHTTPServer

from tests.test_hub import Hub

hub = type("OwnHub", (Hub,), {{"repos": {{}}, "asked": []}})
server = ThreadingHTTPServer(("127.0.0.1", 0), hub)  # takes the place of the Hugging Face hub
threading.Thread(target=server.serve_forever, daemon=True).start()

from huggingface_hub import constants

constants.ENDPOINT = f"http://127.0.0.1:{{server.server_address[1]}}"
constants.HUGGINGFACE_CO_URL_TEMPLATE = constants.ENDPOINT + "/{{repo_id}}/resolve/{{revision}}/{{filename}}"
constants.HF_HUB_CACHE, constants.HF_HUB_DISABLE_XET = os.path.abspath("cache"), True

from lightning_ding.entry.evaluate import evaluate
from lightning_ding.hub import from_hub, push_to_hub
from lightning_ding.policy import load_policy

best = "run/checkpoints/best.ckpt"
push_to_hub(load_policy(best), "me/dqn-cartpole", evaluation=evaluate(best), token="hf_stand_in")
print(from_hub("me/dqn-cartpole"))
```
"""
LOOK_UP = """```bash
lightning-ding fit --policy dqn --help
python -m pydoc lightning_ding.policy.DQNPolicy
```
"""
LOGGED = ("TensorBoard and CSV",)
TASKS = {
    "first_run": Task("train a first policy", "index.md", text=FIRST_RUN),
    "own_env": Task("my own env, from Python", "guides/own_env.md", ("The env", "Training from Python")),
    "own_env_yaml": Task("my own env, from YAML", "guides/own_env.md", ("The env", "Training from YAML")),
    "own_network": Task("my own network", "guides/own_network.md", ("An encoder", "A whole network")),
    "own_algorithm": Task("my own algorithm", "guides/own_algorithm.md", ("One file", "From Python", "Test it")),
    "own_callback": Task("my own callback", "guides/own_callback.md", ("A callback",)),
    "own_metric": Task("my own metric", "guides/own_callback.md", ("A callback", "A metric over labelled data")),
    "resume": Task(
        "continue a run with more env steps", "guides/resume.md", ("Where the checkpoint is", "More env steps")
    ),
    "killed": Task("resume a killed run with the same result", "guides/resume.md", text=KILLED),
    "two_ranks": Task("two ranks of DDP", "guides/scaling.md", text=TWO_RANKS),
    "distributed": Task("collectors in other processes", "distributed.md", text=DISTRIBUTED),
    "offline": Task("learn from a data set", "guides/offline.md", ("Collect", "Train")),
    "demonstrations": Task(
        "collect demonstrations and learn from them", "algorithms.md#demonstrations", text=DEMONSTRATIONS
    ),
    "tune": Task("search for hyper-parameters", "guides/tuning.md"),
    "export": Task("export to ONNX and run it", "guides/deploy.md", ("Act", "Take it elsewhere")),
    "hub": Task("share a policy on a hub", "guides/deploy.md", text=HUB),
    "video": Task("a video of a policy", "guides/deploy.md", text=VIDEO),
    "evaluate": Task("evaluate a policy, as JSON", "guides/deploy.md", text=EVALUATION),
    "tensorboard": Task("log to TensorBoard and CSV", "guides/tracking.md", LOGGED),
    "wandb": Task("log to Weights & Biases, offline", "guides/tracking.md", (*LOGGED, "W&B"), package="wandb"),
    "mlflow": Task("log to MLflow", "guides/tracking.md", (*LOGGED, "MLflow"), package="mlflow"),
    "pixels": Task("learn from images", "guides/pixels.md", ("An env with images", "A run")),
    "game": Task("a game of two players", "guides/games.md", ("Self-play with a Trainer",)),
    "from_sb3": Task("come from Stable-Baselines3", "guides/from_sb3.md", ("A run",)),
    "from_cleanrl": Task("come from CleanRL", "guides/from_cleanrl.md", ("A run with the same hyper-parameters",)),
    "from_di_engine": Task("run a config of DI-engine", "from_di_engine.md", text=di_engine_config()),
    "reproduce": Task("get the same weights twice", "guides/reproducibility.md", ("Two seeds",)),
    "speed": Task("find what a run spends its time on", "guides/speed.md", ("Rounds",)),
    "look_up": Task("look up an option and a class", "api/index.md", text=LOOK_UP),
}
"""Tasks by the names that ``--only`` takes."""
