"""Comm learners in DI-engine's form: methods that a subclass may replace, and learners of tasks in its form."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from typing import Any

import torch
from lightning.pytorch import Callback
from typing_extensions import override

from lightning_ding.callbacks.remote import LearningReporter, WeightPublisher
from lightning_ding.config import require
from lightning_ding.datamodules.remote_feed import RemoteData
from lightning_ding.di_engine import parallel_config, parallel_forms
from lightning_ding.di_engine.comm_role import BaseCommRole
from lightning_ding.distributed.comm_worker.learner import CommLearner
from lightning_ding.distributed.comm_worker.ranks import global_rank
from lightning_ding.distributed.comm_worker.remote_learner import RemoteLearner
from lightning_ding.distributed.config import LearningTask, ParallelLearnerConfig
from lightning_ding.distributed.transport import Message
from lightning_ding.policy import create_policy, get_policy_cls
from lightning_ding.utils.attributes import policy_of
from lightning_ding.worker import BaseLearner, LearnerHook, create_learner
from lightning_ding.worker.log import DEFAULT_EXPERIMENT


class BaseCommLearner(BaseCommRole, CommLearner):
    """Trains policies for a coordinator with the data that it sends, and publishes their weights.

    With ``learner.multi_gpu`` the Trainer runs on several ranks, which Lightning starts with the same command or
    torchrun has started. All but rank zero take part in the task of rank zero.

    A subclass may replace the way of the data: ``get_data(batch_size)`` returns the next batch, a list of transitions
    or of functions that load one; ``send_policy(state_dict)`` gets the weights and ``send_learn_info(info)`` the
    progress and the priorities; ``hooks4call`` returns the hooks that call the last two. Each of them may call the
    method of the base class, which communicates with the coordinator. Tasks and progress reach the coordinator in any
    case. See the base class for the arguments.
    """

    _progress: Mapping[str, int] = {}  # counters of the collected data, from the newest answer of the coordinator

    @property
    def learner_uid(self) -> str:
        """Random id of this worker."""
        return self._uid

    @property
    def hooks4call(self) -> list[Callback]:
        """Callbacks of the Trainer that send weights, progress and priorities to the coordinator."""
        every = self._task.learner.send_policy_freq
        reporter = parallel_forms.InfoForm if self._overrides("send_learn_info") else LearningReporter
        return [WeightPublisher(self.send_policy, every), reporter(self.send_learn_info, every)]

    @override
    def _callbacks(self) -> list[Callback]:
        callbacks = [*self.hooks4call]
        if self._overrides("send_learn_info", "hooks4call"):
            callbacks.append(LearningReporter(self._report_progress, self._task.learner.send_policy_freq))
        return callbacks

    @override
    def _source(self) -> Any:
        if not self._overrides("get_data"):
            return super()._source()
        return parallel_forms.BatchSource(self.get_data, lambda: self._progress)

    @override
    def _create_learner(self, task_info: Mapping[str, Any]) -> BaseLearner:
        """Return the learner for a task, with ``get_data``, ``send_policy`` and ``send_learn_info`` as attributes.

        Args:
            task_info: A task of the coordinator; or without ``main``, ``learner_cfg``, the config of a
                learner and its ``exp_name``, and ``policy``, ``type`` and config of a policy that knows its shapes.

        Raises:
            ValueError: If the task cannot be done, for example because the policy is on-policy, or learns from
                sequences and gets lists of transitions.
        """
        if "main" not in task_info or self._overrides("get_data"):
            policy_class = get_policy_cls(task_info["policy"])
            takes_single = not (policy_class.learns_from_sequences or policy_class.on_policy)
            require(takes_single, "policy", parallel_forms.SINGLE, task_info["policy"]["type"])
        if "main" in task_info:
            learner: BaseLearner = super()._create_learner(self._with_ranks(task_info))
        else:
            learner = self._plain_learner(task_info)
            options = {"n_step": 1, "discount_factor": 1.0, **_options(learner)}
            learner.setup_dataloader(parallel_forms.ColumnsOf(self.get_data, **options))
        for name in ("get_data", "send_policy", "send_learn_info"):
            setattr(learner, name, getattr(self, name))
        return learner

    def _with_ranks(self, task_info: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a task with the ranks of the config of this worker."""
        own = self.config.system.learner
        if not (self._has_worker_config and own.multi_gpu):
            return task_info
        section = task_info["learner_cfg"]
        section = {**section, "multi_gpu": True, "trainer": {**own.trainer, **section.get("trainer", {})}}
        return {**task_info, "learner_cfg": section}

    def _plain_learner(self, task_info: Mapping[str, Any]) -> BaseLearner:
        learner_cfg, others = parallel_config.learner_section(task_info["learner_cfg"])
        settings = ParallelLearnerConfig(send_policy_freq=others.get("send_policy_freq", 1))
        policy_id = str(task_info.get("policy_id", ""))
        self._task = LearningTask(task_info["policy"], learner=settings, policy_id=policy_id)
        ranks = (global_rank(), int(os.environ.get("WORLD_SIZE", "1")))
        exp_name = others.get("exp_name", DEFAULT_EXPERIMENT)
        learner = create_learner(learner_cfg, dist_info=ranks, exp_name=exp_name)
        learner.policy = create_policy(task_info["policy"], enable_field=["learn"])
        return learner

    @override
    def _run_learner(self, learner: BaseLearner) -> None:
        if self._overrides("get_data"):  # whose answers do not end the run
            self._connected().on_close = learner.close
        if isinstance(learner, RemoteLearner):
            learner.start()  # it has its hooks already
            return
        callbacks = self.hooks4call if self._overrides("hooks4call") else self._plain_hooks()
        for hook in callbacks:
            if isinstance(hook, LearnerHook):
                learner.register_hook(hook)
        learner.start(callbacks=[one for one in callbacks if not isinstance(one, LearnerHook)])

    def _plain_hooks(self) -> list[Any]:
        return [*parallel_forms.hooks_of_comm_learner(self._task.learner.send_policy_freq)]

    def get_data(self, batch_size: int) -> list[Any]:
        """Wait for the next batch of the coordinator and return it.

        Args:
            batch_size: Number of transitions, >= 1.

        Returns:
            A list of ``batch_size`` dicts, each a transition as the policy learns from it; an empty list if the run is
            over.

        Raises:
            RuntimeError: If there is no task at the moment.
            ValueError: If the policy learns from sequences.
            LeaseLostError: If another learner has the task now.
        """
        learner = self.learner
        if learner is None:
            raise RuntimeError(f"{type(self).__name__} has no task, so there are no data for it")
        while not self._end_flag:
            answer = self.get_round(batch_size, 1, learner.train_iter, _options(learner))
            if answer.data is not None:
                return [self._item(row) for row in parallel_forms.transitions_of(answer.data)]
            if answer.stop:
                break
            threading.Event().wait(max(answer.wait, 0.002))
        return []

    def _item(self, transition: dict[str, Any]) -> Any:
        """Return the form in which :meth:`get_data` returns a transition."""
        return transition

    @override
    def get_round(
        self, batch_size: int, num_batches: int, cur_learner_iter: int, options: Mapping[str, Any], rank: int = 0
    ) -> RemoteData:
        found = super().get_round(batch_size, num_batches, cur_learner_iter, options, rank)
        self._progress = found.progress
        return found

    @override
    def send_learn_info(self, learn_info: Mapping[str, Any]) -> None:
        """Report the progress after a round.

        Args:
            learn_info: ``learner_step``, ``learner_done``, metrics, and in ``priority_info`` tensors or lists of
                ``priority``, ``replay_unique_id`` and ``replay_buffer_idx``, or nothing.

        Raises:
            LeaseLostError: If another learner has the task now.
            OSError: If the store has no space.
        """
        priorities = learn_info.get("priority_info") or None
        if priorities is not None:
            priorities = {name: torch.as_tensor(values) for name, values in priorities.items()}
        self._report({**learn_info, "priority_info": priorities})

    def _report_progress(self, info: Mapping[str, Any]) -> None:
        """Report the progress if a subclass sends the priorities in its own way."""
        self._report({**info, "priority_info": None})

    @override
    def _report(self, learn_info: Mapping[str, Any]) -> Message:
        answer = super()._report(learn_info)
        self._progress = answer.get("progress", self._progress)
        return answer


def _options(learner: BaseLearner) -> dict[str, Any]:
    """Return the options for sampling that the policy needs."""
    return policy_of(learner.policy).sample_options
