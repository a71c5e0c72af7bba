"""TensorBoard as a view of metrics.jsonl: scalars can be thrown away and rebuilt at any time."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.summary import hparams

from vitcli.core.spec import ExperimentSpec

TAGS = {
    "lr": "optim/lr",
    "grad_norm": "optim/grad_norm",
    "images_per_second": "speed/images_per_second",
}
SPLITS = ("train", "val", "test")
PICTURES = "attention"
"""The tag of pictures that come with a step of the training."""


def tag_of(key: str) -> str | None:
    """Return TensorBoard's tag of a number in metrics.jsonl: ``test_loss`` is ``loss/test``."""
    split, _, name = key.partition("_")
    return f"{name}/{split}" if split in SPLITS else TAGS.get(key)


class Board:
    """Writes one event file into a run folder, replacing older ones.

    Scalars are written anew from the records. Pictures are in no record: those of steps up to the
    last record are copied from the older files, so that a resumed run neither loses them nor has
    them twice (later ones it draws again). Where an event file was deleted or cut short, its
    pictures are gone.
    """

    def __init__(self, folder: Path, records: list[dict[str, Any]]) -> None:
        old = sorted(folder.glob("events.out.tfevents.*"))
        pictures = [*pictures_in(old, records[-1]["step"])] if old and records else []
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
        for key, value in record.items():
            if value is not None and (tag := tag_of(key)):
                self.writer.add_scalar(tag, value, record["step"])
        self.writer.flush()

    def images(self, tag: str, images: Tensor, step: int) -> None:
        """A grid of (N, C, H, W) pictures, stretched to the full range together."""
        low, high = images.amin(), images.amax()
        images = (images - low) / (high - low).clamp(min=1e-12)
        if images.shape[1] not in (1, 3):
            images = images.mean(1, keepdim=True)
        self.writer.add_images(tag, images.float().cpu(), step)

    def picture(self, pixels: np.ndarray, step: int) -> None:
        """A picture (height, width, 3) uint8 of this step."""
        self.writer.add_image(PICTURES, pixels, step, dataformats="HWC")
        self.writer.flush()

    def hparams(
        self, spec: ExperimentSpec, result: dict[str, float], labels: dict[str, Any]
    ) -> None:
        """The three hparams records in this file; ``add_hparams`` would start a second run.

        ``labels``, such as study and variant, are columns to group by; None is left out.
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


def pictures_in(files: list[Path], last_step: int) -> Iterator[Any]:
    """The events with a picture, one a step, up to ``last_step``; a damaged file ends early."""
    # A third of a second to import: a training should not start later for it.
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

    seen = set()
    for file in files:
        for event in LegacyEventFileLoader(str(file)).Load():
            shown = {value.tag for value in event.summary.value if value.HasField("image")}
            if shown == {PICTURES} and event.step <= last_step and event.step not in seen:
                seen.add(event.step)
                yield event


def flatten(data: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings to dotted keys."""
    out: dict[str, Any] = {}
    for key, value in data.items():
        if isinstance(value, dict):
            out |= flatten(value, f"{prefix}{key}.")
        else:
            out[prefix + key] = value
    return out
