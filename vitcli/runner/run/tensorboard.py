"""TensorBoard event files, which can be rebuilt from metrics.jsonl except for their pictures."""

import contextlib
import itertools
import os
import socket
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.summary.writer.record_writer import RecordWriter
from torch import Tensor
from torch.utils.tensorboard.summary import hparams, image, scalar

from vitcli.runner.run.folder import EVENTS
from vitcli.runner.text import Listener

TAGS = {
    "lr": "optim/lr",
    "grad_norm": "optim/grad_norm",
    "skipped_steps": "optim/skipped_steps",
    "images_per_second": "speed/images_per_second",
}
SPLITS = ("train", "val", "test")
PICTURES = "attention"
"""The tag of the pictures of attention that are drawn during training."""
TASK_PICTURES = "pictures/"
"""How the tags of a task's pictures begin, which are drawn during training, too."""


class Board:
    """Writer of one event file in a run folder; the file replaces older event files.

    Scalars are written again from the records of metrics.jsonl. Pictures are not in these records.
    Pictures of steps up to the last record are therefore copied from the older event files; the
    training draws the later ones again. If an event file was deleted or truncated, its pictures are
    lost.

    metrics.jsonl holds the numbers, and this file only shows them. So an error of the disk ends the
    event file, but not the training: ``on_failure`` gets the reason, and later events are dropped.
    torch's SummaryWriter is not used, because it writes in a thread that prints a traceback.
    """

    _count = itertools.count()

    def __init__(
        self,
        folder: Path,
        records: list[dict[str, Any]],
        on_failure: Listener,
        settings: dict[str, Any] | None = None,
    ) -> None:
        self._on_failure = on_failure
        self._failed = False
        self._file: BinaryIO | None = None
        old = sorted(folder.glob(EVENTS))
        unique = f"{time.time():010.0f}.{socket.gethostname()}.{os.getpid()}.{next(self._count)}"
        self._path = folder / f"events.out.tfevents.{unique}"
        self._write([Event(wall_time=time.time(), file_version="brain.Event:2")])
        # torch's record of the columns is left out: TensorBoard would take the columns of all runs
        # from the record of one run. Without it, each setting of any run is a column.
        kinds = bool | int | float | str | None
        shown = {k: v if isinstance(v, kinds) else str(v) for k, v in (settings or {}).items()}
        self._write([event_of(hparams(shown, {})[1], 0)])
        self._write(event for record in records for event in scalar_events(record))
        if old and records:
            self._write(read_picture_events(old, records[-1]["step"]))
        # An incomplete new file must not replace the old ones.
        for file in [self._path] if self._failed else old:
            with contextlib.suppress(OSError):
                file.unlink()

    def _write(self, events: Iterable[Event]) -> None:
        if self._failed:
            return
        try:
            self._file = self._file or self._path.open("xb")
            writer = RecordWriter(self._file)
            for event in events:
                writer.write(event.SerializeToString())
            writer.flush()
        except OSError as error:
            self._failed = True
            self.close()
            self._on_failure(error.strerror or str(error))

    def scalars(self, record: dict[str, Any]) -> None:
        self._write(scalar_events(record))

    def images(self, tag: str, images: Tensor, step: int) -> None:
        """Write a grid of pictures (N, C, H, W), scaled together to the full value range."""
        low, high = images.amin(), images.amax()
        images = (images - low) / (high - low).clamp(min=1e-12)
        if images.shape[1] not in (1, 3):
            images = images.mean(1, keepdim=True)
        self._write([event_of(image(tag, images.float().cpu()), step)])

    def picture(self, pixels: np.ndarray, step: int, tag: str = PICTURES) -> None:
        """Write a picture (H, W, 3) uint8 of this step."""
        self._write([event_of(image(tag, pixels, dataformats="HWC"), step)])

    def result(self, result: dict[str, float]) -> None:
        """Write the result of a finished run, which TensorBoard shows beside its settings."""
        metrics = {f"result/{name}": value for name, value in result.items()}
        summaries = [hparams({}, {})[2], *itertools.starmap(scalar, metrics.items())]
        self._write(event_of(summary, 0) for summary in summaries)

    def close(self) -> None:
        if self._file:
            with contextlib.suppress(OSError):  # a failure that was already reported
                self._file.close()


def event_of(summary: Any, step: int) -> Event:
    return Event(wall_time=time.time(), step=step, summary=summary)


def scalar_events(record: dict[str, Any]) -> Iterator[Event]:
    """Yield an event for each number that TensorBoard shows; ``test_loss`` is ``loss/test``."""
    for key, value in record.items():
        split, _, name = key.partition("_")
        tag = f"{name}/{split}" if split in SPLITS else TAGS.get(key)
        if value is not None and tag:
            yield event_of(scalar(tag, value), record["step"])


def read_picture_events(files: list[Path], last_step: int) -> Iterator[Any]:
    """Yield the events with a picture up to ``last_step``, each once, until a file is damaged."""
    # Imported here because the import takes 0.3 s and few runs need it.
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

    seen = set()
    for file in files:
        for event in LegacyEventFileLoader(str(file)).Load():
            tags = [value.tag for value in event.summary.value if value.HasField("image")]
            is_drawn = all(tag == PICTURES or tag.startswith(TASK_PICTURES) for tag in tags)
            place = (event.step, *tags)
            if tags and is_drawn and event.step <= last_step and place not in seen:
                seen.add(place)
                yield event
