"""TensorBoard event files, which can be rebuilt from metrics.jsonl except for their pictures."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.summary import hparams

from vitcli.core.spec import ExperimentSpec
from vitcli.runner.experiment.config import flatten

TAGS = {
    "lr": "optim/lr",
    "grad_norm": "optim/grad_norm",
    "images_per_second": "speed/images_per_second",
}
SPLITS = ("train", "val", "test")
PICTURES = "attention"
"""The tag of the pictures that are drawn during training."""


def tag_of(key: str) -> str | None:
    """Return TensorBoard's tag of a number in metrics.jsonl: ``test_loss`` is ``loss/test``."""
    split, _, name = key.partition("_")
    return f"{name}/{split}" if split in SPLITS else TAGS.get(key)


class Board:
    """Writer of one event file in a run folder; the file replaces older event files.

    Scalars are written again from the records of metrics.jsonl. Pictures are not in these records.
    Pictures of steps up to the last record are therefore copied from the older event files; the
    training draws the later ones again. If an event file was deleted or truncated, its pictures are
    lost.
    """

    def __init__(self, folder: Path, records: list[dict[str, Any]]) -> None:
        old = sorted(folder.glob("events.out.tfevents.*"))
        pictures = [*read_picture_events(old, records[-1]["step"])] if old and records else []
        self.writer = SummaryWriter(str(folder))
        for record in records:
            self.scalars(record)
        assert self.writer.file_writer is not None
        for event in pictures:
            self.writer.file_writer.add_event(event, event.step, event.wall_time)
        self.writer.flush()
        for file in old:
            file.unlink()

    def scalars(self, record: dict[str, Any]) -> None:
        """Write the numbers of one record."""
        for key, value in record.items():
            if value is not None and (tag := tag_of(key)):
                self.writer.add_scalar(tag, value, record["step"])
        self.writer.flush()

    def images(self, tag: str, images: Tensor, step: int) -> None:
        """Write a grid of pictures (N, C, H, W), scaled together to the full value range."""
        low, high = images.amin(), images.amax()
        images = (images - low) / (high - low).clamp(min=1e-12)
        if images.shape[1] not in (1, 3):
            images = images.mean(1, keepdim=True)
        self.writer.add_images(tag, images.float().cpu(), step)

    def picture(self, pixels: np.ndarray, step: int) -> None:
        """Write a picture (H, W, 3) uint8 of this step."""
        self.writer.add_image(PICTURES, pixels, step, dataformats="HWC")
        self.writer.flush()

    def hparams(
        self, spec: ExperimentSpec, result: dict[str, float], labels: dict[str, Any]
    ) -> None:
        """Write the three hparams records into this file; ``add_hparams`` would start a second run.

        ``labels``, such as study and variant, become columns to group by. None values are omitted.
        """
        fields = labels | spec.model_dump(mode="json")
        flat = {k: v for k, v in flatten(fields).items() if v is not None}
        values = {
            k: v if isinstance(v, bool | int | float | str) else str(v) for k, v in flat.items()
        }
        metrics = {f"result/{name}": value for name, value in result.items()}
        assert self.writer.file_writer is not None
        for record in hparams(values, metrics):
            self.writer.file_writer.add_summary(record)
        for tag, value in metrics.items():
            self.writer.add_scalar(tag, value, 0)

    def close(self) -> None:
        self.writer.close()


def read_picture_events(files: list[Path], last_step: int) -> Iterator[Any]:
    """Yield one event with a picture per step up to ``last_step``; stop where a file is damaged."""
    # Imported here because the import takes 0.3 s and few runs need it.
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

    seen = set()
    for file in files:
        for event in LegacyEventFileLoader(str(file)).Load():
            tags = {value.tag for value in event.summary.value if value.HasField("image")}
            if tags == {PICTURES} and event.step <= last_step and event.step not in seen:
                seen.add(event.step)
                yield event
