"""Videos of what a world model predicts, next to what happened.

Shapes: V sequences, L frames, C channels, H height, W width.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from lightning.pytorch import Callback, Trainer
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import override

from lightning_ding import nested
from lightning_ding.callbacks.evaluation_interval import is_passed
from lightning_ding.config import require
from lightning_ding.utils.modes import IS_FIRST, STATE

BAR = 2  # pixels of the bar above the frames, and of the grey line to the right of them
SEEN, IMAGINED = (0.0, 1.0, 0.0), (1.0, 0.0, 0.0)
"""Colours of the bar while the model gets the frames, and while it predicts them from the actions alone."""


class ImaginedVideo(Callback):
    """Write videos of sequences from the last minibatch: frames, the world model's predictions, and their differences.

    The three are stacked from top to bottom, and sequences are side by side with a grey line between them. The bar
    above them is green for the first frames, which the model gets, and red for the later ones, which it predicts from
    the actions. A difference of 0 is grey. Predictions do not know where an episode ends. Of stacked frames, the last
    one is shown.

    The tag is ``imagined``, with the name of an entry of dict observations. The loggers are those that take videos of
    evaluations, and the extra ``video`` is needed. A run with this callback has the same weights as one without it.

    Args:
        every: Updates between two videos, >= 1.
        context: First frames of a sequence that the model gets, >= 1 and below those of the sequence.
        sequences: Number of sequences of a video, >= 1.
        fps: Frames per second, > 0.

    Raises:
        ValueError: If an argument is out of range, or the policy has no world model or no images.

    Example:
        >>> ImaginedVideo(every=500, context=8).context
        8
    """

    def __init__(self, every: int = 1000, context: int = 5, sequences: int = 4, fps: float = 10.0) -> None:
        for name, value in (("every", every), ("context", context), ("sequences", sequences)):
            require(value >= 1, name, ">= 1", value)
        require(fps > 0, "fps", "> 0", fps)
        self.every, self.context, self.sequences, self.fps = every, context, sequences, fps
        self._before = 0  # updates before the round

    @override
    def setup(self, trainer: Trainer, pl_module: Any, stage: str) -> None:
        """Raise if there would be no videos."""
        if stage != "fit":
            return
        from lightning_ding.worker.evaluator.rendering import LoggerMedia, check_takes_videos

        predicts = hasattr(pl_module, "predict_open_loop")
        require(predicts, "policy", "one with a world model (predict_open_loop)", type(pl_module).__name__)
        check_takes_videos(LoggerMedia(trainer.loggers))

    @override
    def on_train_batch_start(self, trainer: Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Note the number of updates."""
        self._before = pl_module.progress.train_iter

    @override
    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Write a video if one is due after this round."""
        if not is_passed(self.every, self._before, pl_module.progress.train_iter) or not trainer.is_global_zero:
            return
        from lightning_ding.worker.evaluator.rendering import LoggerMedia

        last: Any = nested.unbind(batch.drawn)[-1]
        data = _first_sequences(last, self.sequences)
        names = pl_module.model.inputs.image_names
        require(len(names) > 0, "observations", "images, or a dict with images", pl_module.config.model.obs_shape)
        real, predicted = (some[-len(names) :] for some in pl_module.predict_open_loop(data, self.context))
        media = LoggerMedia(trainer.loggers)
        for name, frames, guesses in zip(names, real, predicted, strict=True):
            video = compare(frames, guesses, self.context)
            media.add_video(f"imagined/{name}" if name else "imagined", video, pl_module.progress.env_step, self.fps)


def compare(real: Tensor, predicted: Tensor, context: int) -> NDArray[np.uint8]:
    """Return frames, predictions and their differences as one video of each sequence.

    Args:
        real: Frames in [0, 1], shape (L, V, C, H, W); the last channel is shown unless there are three.
        predicted: Their predictions, of the same shape; clipped to [0, 1].
        context: Frames that the model got.

    Returns:
        Videos, shape (V, L, 3, 3 H + BAR, W + BAR).
    """
    shown = [_rgb(one.float().clamp(0, 1)) for one in (real, predicted)]
    pixels = torch.cat([*shown, (shown[1] - shown[0] + 1) / 2], -2)  # (L, V, 3, 3 H, W)
    length, size, _, _, width = pixels.shape
    colours = torch.tensor([SEEN] * context + [IMAGINED] * (length - context), device=pixels.device)
    bar = colours.view(length, 1, 3, 1, 1).expand(length, size, 3, BAR, width)
    video = F.pad(torch.cat([bar, pixels], -2), (0, BAR), value=0.5).transpose(0, 1)
    return (video * 255).round().to(torch.uint8).cpu().numpy()


def _rgb(frames: Tensor) -> Tensor:
    return frames if frames.shape[-3] == 3 else frames[..., -1:, :, :].expand(*frames.shape[:-3], 3, -1, -1)


def _first_sequences(data: Mapping[str, Any], number: int) -> dict[str, Any]:
    """Return some sequences of a minibatch, whose leading axes are (T, B), or (B,) of what belongs to first steps."""
    return {
        name: value[:number] if name in (STATE, IS_FIRST) else nested.apply(lambda x: x[:, :number], value)
        for name, value in data.items()
    }
