"""A trained classifier for pictures of any source: its answers, and their schema. No torch.

Axes: N pictures, K classes.
"""

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import Any, BinaryIO, TypeGuard, cast, overload

import numpy as np
from PIL import Image, ImageFile

from vitcli.runner.data.pictures import (
    FORMATS,
    Content,
    content_of,
    explain_errors,
    open_picture,
    picture_bytes,
    quiet_pillow,
)
from vitcli.runner.errors import ConfigError, InputError
from vitcli.runner.files import sha256
from vitcli.runner.limits import allowed_cores
from vitcli.runner.text import join_words, printable

Buffer = bytes | bytearray | memoryview
Picture = str | os.PathLike[str] | Buffer | BinaryIO | Image.Image | np.ndarray
"""A path, the bytes of a file, an open file, an image of Pillow, or pixels (H, W) or (H, W, C) of 8
bits."""
SCHEMA = 1
"""Version of the fields of ``Prediction.to_dict``, and of the rows of ``vitcli predict``."""
LAST_FIELDS = ("error", "classifier", "schema")
FIELDS = ("file", "class", "probability", "accepted", "set", "probabilities", *LAST_FIELDS)
MODES = {1: "L", 3: "RGB", 4: "RGBA"}
"""Number of channels of an array -> what they are."""
AHEAD = 2
"""Number of batches that are decoded before the model has computed them."""


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """The answer for one picture, or the reason why there is none."""

    classifier: str
    """Name of the model, and a digest of its weights and options."""
    file: str | None
    """Path of the picture; None if it was not given as a path."""
    probabilities: Mapping[str, float] = field(default_factory=dict)
    """Class -> probability from 0 to 1, the likeliest class first; empty for an error."""
    accepted: bool | None = None
    """Whether ``reject`` or ``coverage`` accepts the answer; None without them."""
    set: tuple[str, ...] | None = None
    """With ``coverage``, the classes of the prediction set, the likeliest first."""
    error: str | None = None
    """Why there is no answer."""
    answers: Mapping[str, Any] | None = None
    """What a task without a likeliest class says instead, by name."""

    @property
    def class_name(self) -> str | None:
        """The likeliest class."""
        return next(iter(self.probabilities), None)

    @property
    def probability(self) -> float | None:
        """The probability of the likeliest class."""
        return next(iter(self.probabilities.values()), None)

    def to_dict(self, top: int | None = None) -> dict[str, Any]:
        """Return the fields of the schema; ``top`` limits the number of probabilities."""
        last = dict(zip(LAST_FIELDS, (self.error, self.classifier, SCHEMA), strict=True))
        if self.answers is not None:
            return {"file": self.file, **self.answers, **last}
        shares = dict(islice(self.probabilities.items(), top))
        members = None if self.set is None else [*self.set]
        values = (self.file, self.class_name, self.probability, self.accepted, members, shares)
        return dict(zip(FIELDS, values, strict=False)) | last


@dataclass(frozen=True, kw_only=True)
class Classifier:
    """A trained model with its pre-processing, which many threads may call at the same time."""

    model: str
    """Name of the model."""
    source: str
    """Folder of the run, or the file."""
    about: str
    """A line that names the model and what it was trained on."""
    weights: str
    """Hash of what computes the logits."""
    names: Sequence[str]
    """The K classes."""
    prepare: Callable[[Content, str], Any]
    """Returns the input of the model for a picture and its name; raises ``InputError``."""
    logits: Callable[[Sequence[Any]], Iterable[Any]]
    """Returns logits (N, K) of N such inputs."""
    batch_size: int
    temperature: float = 1.0
    """Divides the logits."""
    reject: float | None = None
    """Least probability of an accepted answer."""
    threshold: float | None = None
    """Least probability, with temperature 1, of a class in a prediction set."""
    options: str = ""
    """What else decides an answer, such as ``fit``."""
    notes: Callable[[], Iterable[str]] = tuple
    """Returns what the pictures so far held that was not read."""
    answers: Sequence[str] = ()
    """Names of what a task without a likeliest class says, such as ``target``. ``logits`` then
    returns a mapping from them for each input, or None if an output is not finite."""
    _one_at_a_time: Any = field(default_factory=threading.Lock, repr=False, init=False)

    @cached_property
    def name(self) -> str:
        """Name of the model, and a digest of all that decides its answers."""
        rule = (self.temperature, self.reject, self.threshold, self.options)
        decisive = (self.weights, [*self.names], *rule)
        return f"{self.model}@{sha256(repr(decisive).encode())[:12]}"

    @property
    def columns(self) -> Sequence[str]:
        """The fields of a row."""
        return ("file", *self.answers, *LAST_FIELDS) if self.answers else FIELDS

    @overload  # a path is an iterable of texts, too, but one picture
    def __call__(self, pictures: Picture) -> Prediction: ...  # type: ignore[overload-overlap]

    @overload
    def __call__(self, pictures: Iterable[Picture]) -> list[Prediction]: ...

    def __call__(self, pictures: Picture | Iterable[Picture]) -> Prediction | list[Prediction]:
        """Return the answer for a picture, or a list of answers for several pictures.

        Args:
            pictures: A picture, or a list, tuple or iterator of several: paths, bytes of picture
                files, files opened to read bytes, images of Pillow, or uint8 arrays (H, W) or
                (H, W, C) with 1, 3 or 4 channels.

        Raises:
            UserError: A single picture cannot be read. Among several pictures, the answer for such
                a picture has an ``error``.
        """
        if not _is_single(pictures):
            return [*self.stream(cast(Iterable[Picture], pictures))]
        (prediction,) = self._answer([self._read(*self._take(None, pictures))])
        if prediction.error:
            raise InputError(prediction.error)
        return prediction

    def stream(self, pictures: Iterable[Picture]) -> Iterator[Prediction]:
        """Yield the answers in the order of the pictures; only a few are in memory at a time."""
        numbered, count = enumerate(pictures), self.batch_size
        pool = ThreadPoolExecutor(len(allowed_cores()))

        def read(number: int) -> Iterator[Future[Any]]:
            for index, picture in islice(numbered, number):
                yield pool.submit(self._read, *self._take(index, picture))

        try:
            waiting = deque(read(AHEAD * count))
            while waiting:
                batch = [waiting.popleft().result() for _ in range(min(count, len(waiting)))]
                waiting += read(len(batch))
                yield from self._answer(batch)
        finally:
            pool.shutdown(cancel_futures=True)

    def _take(self, index: int | None, picture: Picture) -> tuple[str | None, str, Any]:
        """Return file and name of a picture, and a copy of what is no file, or an error.

        An iterator may give one object again with another content, such as the frames of a GIF.
        """
        file = os.fspath(picture) if isinstance(picture, str | os.PathLike) else None
        name = file or ("picture" if index is None else f"picture {index + 1}")
        try:
            with quiet_pillow():
                return file, name, file if file is not None else _content(picture, name)
        except InputError as error:
            return file, name, error

    def _read(self, file: str | None, name: str, content: Any) -> tuple[str | None, str, Any]:
        """Return file and name of a picture, and the input of the model or an error."""
        if isinstance(content, InputError):
            return file, name, content
        try:
            with quiet_pillow():
                picture = content if file is None else picture_bytes(file)
                return file, name, self.prepare(picture, name)
        except InputError as error:
            return file, name, error

    def _answer(self, batch: Sequence[tuple[str | None, str, Any]]) -> Iterator[Prediction]:
        inputs = [ready for *_, ready in batch if not isinstance(ready, InputError)]
        with self._one_at_a_time:
            outputs = iter(self.logits(inputs) if inputs else ())
        nothing = {"answers": dict.fromkeys(self.answers)} if self.answers else {}
        for file, name, ready in batch:
            problem = str(ready) if isinstance(ready, InputError) else ""
            fields = {} if problem else self._judge(next(outputs))
            problem = problem or f"{printable(name)}: an output is infinite or NaN"
            fields = fields or nothing | {"error": problem}
            yield Prediction(classifier=self.name, file=file, **fields)

    def _judge(self, output: Any) -> dict[str, Any]:
        """Return the fields of an answer; none if an output is not finite."""
        if self.answers:
            return {"answers": output} if output else {}
        logits = output.astype(np.float64)
        if not np.isfinite(logits).all():
            return {}
        shares = _softmax(logits / self.temperature)
        order = np.argsort(-shares, kind="stable")
        classes = [self.names[index] for index in order]
        accepted, members = None, None
        if self.threshold is not None:
            count = int((_softmax(logits) >= self.threshold).sum())
            accepted, members = count == 1, tuple(classes[:count])
        elif self.reject is not None:
            accepted = bool(shares.max() >= self.reject)
        probabilities = dict(zip(classes, shares[order].tolist(), strict=True))
        return {"probabilities": probabilities, "accepted": accepted, "set": members}


def threshold_of(
    model: object, thresholds: Mapping[str, float], coverage: float | None
) -> float | None:
    """Return the threshold of a model for ``coverage``; None without it."""
    if coverage is None or str(coverage) in thresholds:
        return thresholds.get(str(coverage))
    has = f"thresholds for {join_words(thresholds)}" if thresholds else "no thresholds"
    raise ConfigError(
        f"{model}: coverage {coverage:g}: it has {has}. Only 0.8, 0.9, 0.95 and 0.99 have one, from"
        " a classification with at least 4, 9, 19 and 99 validation pictures: train with"
        " -s data.val_split=N"
    )


def _is_single(pictures: Picture | Iterable[Picture]) -> TypeGuard[Picture]:
    if isinstance(pictures, np.ndarray):
        return pictures.ndim < 4
    is_known = isinstance(pictures, str | Buffer) or hasattr(pictures, "read")
    return is_known or not isinstance(pictures, Sequence | Iterator)


def _softmax(logits: np.ndarray) -> np.ndarray:
    shares: np.ndarray = np.exp(logits - logits.max())
    return shares / shares.sum()


def _content(picture: Picture, name: str) -> Content:
    """Return a copy of a picture that is no path.

    The file of an image that Pillow has not decoded yet is read as a file, so that its answer is
    that for its path: a large JPEG is decoded at a fraction of its size.
    """
    if isinstance(picture, Image.Image):
        file = picture.fp if isinstance(picture, ImageFile.ImageFile) and picture.tile else None
        with explain_errors(name, picture):
            if not file or picture.tell() or picture.format not in (*FORMATS, "MPO"):
                return open_picture(picture)
            file.seek(0)
            return content_of(cast(BinaryIO, file), name)
    if isinstance(picture, Buffer):
        return bytes(picture)
    if hasattr(picture, "read"):
        return content_of(cast(BinaryIO, picture), name)
    if not isinstance(picture, np.ndarray):
        problem = f"{type(picture).__name__} is no path, bytes, file, image of Pillow or array"
        advice = "; type .numpy() behind a tensor (H, W, C)" if hasattr(picture, "numpy") else ""
        raise InputError(f"{name}: {problem} of uint8{advice}")
    mode = MODES.get(1 if picture.ndim == 2 else picture.shape[-1] if picture.ndim == 3 else 0)
    if picture.dtype != np.uint8 or not mode or not picture.size:
        shape = f"{picture.dtype} {picture.shape}"
        raise InputError(
            f"{name}: an array {shape}; a picture is uint8 (H, W) or (H, W, C), C 1, 3 or 4"
        )
    pixels = picture.squeeze(-1) if picture.shape[2:] == (1,) else picture
    return Image.fromarray(np.array(pixels, order="C"))
