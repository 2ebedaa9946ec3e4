from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from lightning_ding.callbacks import Curriculum
from lightning_ding.distributed.in_process import InProcessChannel
from lightning_ding.distributed.ray.store import RayStore
from lightning_ding.distributed.transport import Message
from lightning_ding.envs.handle import EnvHandle, EnvHandles
from lightning_ding.utils.protocols import RunData
from tests.distributed.comm_worker.fake_coordinator import FakeCoordinator
from tests.distributed.comm_worker.test_collector import run, task
from tests.distributed.test_env_settings import ENV


class Handles(RunData):
    """The part of a distributed learner's datamodule that has the settings."""

    def __init__(self) -> None:
        self.handles = EnvHandles()
        self.handles.training = EnvHandle("training", is_remote=True)

    def training_envs(self) -> Any:
        return self.handles.training


class DirectChannel(InProcessChannel):
    """Passes messages on as Ray does: handles keep their blocks, which JSON would drop."""

    def call(self, name: str, message: Message | None = None) -> Message:
        return self._handler(name, message or {})


class DirectCoordinator(FakeCoordinator):
    def channel(self) -> InProcessChannel:
        return DirectChannel(self.handle, self.store)


def test_level_of_a_curriculum_reaches_the_envs_of_a_collector_of_ray(ray: Any) -> None:
    data = Handles()
    Curriculum("level", levels=[7.0, 9.0], threshold=1.0)._set(SimpleNamespace(datamodule=data))  # type: ignore[arg-type]
    coordinator = DirectCoordinator([task(env={**ENV, "collector_env_num": 2, "evaluator_env_num": 2})])
    coordinator.publish("mine", 1)
    weights = coordinator.store.get(coordinator.policies["mine"][0]).tensors
    coordinator.store = RayStore()  # type: ignore[assignment]
    handle = coordinator.store.put("policy", weights, {"env_settings": data.handles.text})
    coordinator.policies["mine"] = (handle, 1, 1)
    run(coordinator)
    assert [block["obs"][:, 0].unique().tolist() for block in coordinator.blocks()] == [[7.0]] * 3
