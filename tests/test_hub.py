"""Policies on a local server that answers as the Hugging Face hub does."""

from __future__ import annotations

import base64
import hashlib
import json
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from gymnasium import spaces

from lightning_ding.entry.evaluate import statistics
from lightning_ding.hub import from_hub, push_to_hub
from lightning_ding.policy import DQNPolicy, Policy

constants = pytest.importorskip("huggingface_hub.constants")
VECTOR = spaces.Box(-1, 1, (3,), np.float32)


class Hub(BaseHTTPRequestHandler):
    """The routes of the hub that uploads and downloads of small files use."""

    repos: dict[str, dict[str, bytes]]
    asked: list[str]

    def do_POST(self) -> None:
        path, body = self.path.partition("?")[0], self.rfile.read(int(self.headers["Content-Length"]))
        self.asked.append(f"POST {path}")
        if path == "/api/repos/create":
            asked = json.loads(body)
            repo = f"{asked['organization']}/{asked['name']}"
            self.repos.setdefault(repo, {})
            self.answer({"url": f"http://{self.headers['Host']}/{repo}", "id": repo})
        elif path == "/api/validate-yaml":
            self.answer({"errors": [], "warnings": []})
        elif "/preupload/" in path:
            files = [
                {"path": one["path"], "uploadMode": "regular", "shouldIgnore": False}
                for one in json.loads(body)["files"]
            ]
            self.answer({"files": files})
        else:
            stored = self.repos["/".join(path.split("/")[3:5])]
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    stored[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            oid = hashlib.sha1(body).hexdigest()
            repo = "/".join(path.split("/")[3:5])
            address = f"http://{self.headers['Host']}/{repo}/commit/{oid}"
            self.answer({"commitUrl": address, "commitOid": oid, "success": True})

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        self.asked.append(f"{self.command} {self.path}")
        parts = self.path.partition("?")[0].strip("/").split("/")
        files = self.repos.get("/".join(parts[2:4] if parts[0] == "api" else parts[:2]))
        if files is None:
            self.answer({"error": "Repository not found"}, 404, {"X-Error-Code": "RepoNotFound"})
        elif parts[0] == "api":
            self.answer(
                {"id": "/".join(parts[2:4]), "sha": "0" * 40, "siblings": [{"rfilename": name} for name in files]}
            )
        elif parts[-1] not in files:
            self.answer({"error": "Entry not found"}, 404, {"X-Error-Code": "EntryNotFound"})
        else:
            data = files[parts[-1]]
            digest = f'"{hashlib.sha1(data).hexdigest()}"'
            self.answer(data, 200, {"ETag": digest, "X-Repo-Commit": "0" * 40})

    def answer(self, content: Any, status: int = 200, headers: dict[str, str] | None = None) -> None:
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Write nothing."""


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Hub]]:
    handler = type("OwnHub", (Hub,), {"repos": {}, "asked": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    endpoint = f"http://127.0.0.1:{server.server_address[1]}"  # what HF_ENDPOINT sets before the first import
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", endpoint + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setenv("HF_TOKEN", "hf_test")
    yield handler
    server.shutdown()
    server.server_close()


def policy() -> Policy[Any]:
    made = DQNPolicy({"nstep": 3, "model": {"encoder_hidden_size_list": [8]}}).build(VECTOR, spaces.Discrete(2))
    made.trained_in = {"env_id": "Cup-v0", "max_env_step": 500}
    made.progress.env_step = 500
    return made


def test_policy_comes_back_from_the_hub(hub: type[Hub]) -> None:
    pushed = policy()
    address = push_to_hub(pushed, "me/cup")
    assert address.startswith(f"{constants.ENDPOINT}/me/cup/commit/")
    assert set(hub.repos["me/cup"]) == {"policy.safetensors", "run.yaml", "README.md"}
    found = from_hub("me/cup")
    obs = np.random.default_rng(0).uniform(-1, 1, (20, 3))
    assert found.predict(obs).tolist() == pushed.predict(obs).tolist()
    assert (found.config.nstep, found.trained_in, found.progress.env_step) == (3, pushed.trained_in, 500)
    downloads = [asked for asked in hub.asked if "/resolve/" in asked]
    assert all(asked.endswith("/me/cup/resolve/main/policy.safetensors") for asked in downloads)


def test_card_holds_return_config_and_command(hub: type[Hub]) -> None:
    evaluation = {**statistics([1.0, 2.0, 3.0]), "seed": 4, "stochastic": False}
    push_to_hub(policy(), "me/cup", evaluation=evaluation, command="python train.py --seed 1")
    card = hub.repos["me/cup"]["README.md"].decode()
    _, metadata, text = card.split("---\n", 2)
    (index,) = yaml.safe_load(metadata)["model-index"]
    assert index["results"][0]["metrics"][0]["value"] == "2.00 +/- 0.82"
    assert "Mean return: **2.00** (95 % interval 1.00 to 3.00" in text
    assert "over 3 deterministic episodes with seed 4" in text
    assert "python train.py --seed 1" in text
    assert 'policy = from_hub("me/cup")' in text
    run = yaml.safe_load(hub.repos["me/cup"]["run.yaml"])
    assert (run["policy"], run["model"]["cfg"]["nstep"], run["data"]["env_id"]) == ("dqn", 3, "Cup-v0")
    assert "env_id: Cup-v0" in text


def test_what_is_no_policy_of_the_hub_is_refused(hub: type[Hub]) -> None:
    with pytest.raises(FileNotFoundError, match=r"with policy\.safetensors on the hub, got 'me/none'"):
        from_hub("me/none")
    hub.repos["me/pickle"] = {"policy.ckpt": b"pickle"}
    with pytest.raises(FileNotFoundError, match="got 'me/pickle' at revision 'v1'"):
        from_hub("me/pickle", revision="v1")
    hub.repos["me/text"] = {"policy.safetensors": b"text"}
    with pytest.raises(ValueError, match="path must be a safetensors file of a policy"):
        from_hub("me/text")


@pytest.mark.parametrize("repo_id", ["me/cup", "me/none"])
def test_hub_that_cannot_be_reached_is_not_a_missing_repository(
    repo_id: str, hub: type[Hub], monkeypatch: pytest.MonkeyPatch
) -> None:
    push_to_hub(policy(), "me/cup")
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    template = "http://127.0.0.1:9/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)  # it tries five times more, and waits up to 8 s
    with pytest.raises(ConnectionError, match=f"the hub must answer, because '{repo_id}' is not in the cache: "):
        from_hub(repo_id)


def test_mistakes_are_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="repo_id must be of the form name/repository, got 'cup'"):
        push_to_hub(policy(), "cup")
    with pytest.raises(ValueError, match="evaluation must be with the entries"):
        push_to_hub(policy(), "me/cup", evaluation={"mean": 1.0})
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    for use in (lambda: push_to_hub(policy(), "me/cup"), lambda: from_hub("me/cup")):
        with pytest.raises(ImportError, match=r"pip install 'lightning_ding\[hub\]'"):
            use()
