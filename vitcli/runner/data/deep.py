"""What a picture file holds beyond one page of three colours with 8 bits, and what is not read."""

import io
from collections.abc import Mapping
from typing import Any

import numpy as np
from PIL import Image
from PIL.TiffImagePlugin import ImageFileDirectory_v2, TiffImageFile

from vitcli.core.spec import DataSpec
from vitcli.core.spec.data import DEPTH_FIELDS, MOST_PAGES
from vitcli.runner.text import quantity

KIND, WIDTH, HEIGHT, BITS, PHOTOMETRIC = 0x00FE, 0x0100, 0x0101, 0x0102, 0x0106
SAMPLES, MOST_VALUE, PLANAR, FORMAT = 0x0115, 0x0119, 0x011C, 0x0153
SMALLER_OR_MASK = 0b101
"""Bits of the TIFF tag KIND: the page is a smaller copy or a mask of another one."""
WHITE_IS_ZERO = 0
"""Value of the TIFF tag PHOTOMETRIC: 0 is white."""
SEPARATE = 2
"""Value of the TIFF tag PLANAR: the channels are stored one after the other."""
UNSIGNED, SIGNED = 1, 2
"""Values of the TIFF tag FORMAT for whole numbers."""
NUMBERS = {
    UNSIGNED: "whole numbers",
    SIGNED: "signed whole numbers",
    3: "floating-point numbers",
    6: "complex numbers",
}
MOST_COUNTED = 1000
MOST_SEEN = 100_000
"""Number of facts about pictures that a classifier keeps."""
MAX_LEVEL = 2**16 - 1
WHITES = (255, 1023, 4095, 16383)
"""Largest values of cameras with 8, 10, 12 and 14 bits."""
NUM_LEVELS, MOST_SAMPLED = 2**8, 2**16
MOST_PARTIAL, MOST_SOFT = 0.5, 0.9
"""Shares of half transparent pixels, of all and of those that are not clear, above which a last
channel may be no transparency."""
REMEDY = "save each channel as a grey page of 8, 16 or 32 bits (data.channels)"
NOTES = {
    "colours": "only the first page is read of {count} with up to {most:,}; to read another one,"
    " train with -s data.page=1, to keep the first, with -s data.page=0",
    "pages": "only the first page is read of {count} with up to {most:,}; to read each page as a"
    " channel, train with -s data.channels=pages, to read another one, with -s data.page=1",
    "channels": "not all channels are read of {count} with up to {most} in one page; " + REMEDY,
    "alpha": "the last channel of {count} is read as transparency, on white, although many of its"
    " pixels are half transparent; if it is another channel, " + REMEDY,
    "grey": "the 16-bit values of {count} reach {most:,} of 65,535, which leaves few of 256 levels;"
    " train with the white of the camera, such as -s data.levels={white}",
    "colour": "the 16-bit colours of {count} reach {most:,} of 65,535, which leaves few of 256"
    f" levels; {REMEDY}, and name their white (data.levels)",
}
"""What a picture holds that is not read -> the note on it."""
DARK = NUM_LEVELS // 16
"""Level, of 0 to 255, that no value of a picture which is far too dark is above."""
Seen = list[tuple[str, float, *tuple[str, ...]]]
"""A key of ``NOTES``, or white for what a file calls so, with a number and perhaps the name of the
picture, for each picture; its high, the largest value, and top, the level which that becomes; the
step of ``finer_values``; and the range, two levels that would read a refused picture."""


class RefusedError(Exception):
    """A reason for refusing a picture, without its name, and the ``data.levels`` that read it."""

    def __init__(self, reason: str, levels: tuple[float, ...] = ()) -> None:
        super().__init__(reason)
        self.levels = levels


def depth_fields(data: DataSpec) -> dict[str, Any]:
    """Return those of ``DEPTH_FIELDS`` that are set."""
    return data.model_dump(include={*DEPTH_FIELDS}, exclude_none=True)


def is_wide(image: Image.Image) -> bool:
    """Return whether a picture is grey, with values of more than 8 bits."""
    return image.mode[0] in "IF"


def pages_of(image: Image.Image) -> list[int]:
    """Return the pages of a TIFF file from 0, up to 1,000, without smaller copies and masks.

    The image is then at another page. Other files have one page.
    """
    pages = list[int]()
    if not isinstance(image, TiffImageFile):
        return [0]
    for page in range(MOST_COUNTED):
        try:
            image.seek(page)
        except EOFError:
            break
        except Exception:  # a page that Pillow cannot read is a page, and what follows is lost
            return [*pages, page]
        if not image.tag_v2.get(KIND, 0) & SMALLER_OR_MASK:
            pages.append(page)
    return pages


def num_samples(image: Image.Image) -> int:
    return int(image.tag_v2.get(SAMPLES, 1)) if isinstance(image, TiffImageFile) else 1


def look_at(image: Image.Image, content: object, data: DataSpec) -> Seen:
    """Return what a page has that is not read; refuse a page that would be read wrong.

    ``content`` are the bytes of the file, if there is one.
    """
    is_deep_png = isinstance(content, bytes) and image.format == "PNG" and content[24] > 8
    tags: Mapping[int, Any] = image.tag_v2 if isinstance(image, TiffImageFile) else {}
    seen = Seen()
    if (channels := num_samples(image)) > len(image.getbands()):
        seen.append(("channels", channels))
    form = tags.get(FORMAT, (UNSIGNED,))[0] if tags else None
    is_negative = form == UNSIGNED and image.mode == "I" and np.asarray(image).min() < 0
    if is_negative or (form == SIGNED and not is_wide(image)):  # Pillow reads other values
        raise RefusedError(
            f"{'unsigned numbers of 32' if is_negative else 'signed numbers of 8'} bits cannot be"
            " read exactly; save signed ones of 16 bits, or floating-point numbers"
        )
    if image.getbands()[-1] == "A":
        counts = image.getchannel("A").histogram()
        soft = sum(counts[1:-1])
        is_sparse = soft > MOST_SOFT * sum(counts[1:]) and _hides_colours(np.asarray(image))
        if soft > MOST_PARTIAL * sum(counts) or is_sparse:
            seen.append(("alpha", 1))
    if is_wide(image):
        seen += finer_values(np.asarray(image), data.levels)
        if data.levels is None:
            seen.append(("grey", np.asarray(image).max().item()))
            seen.append(("white", int(np.max(tags.get(MOST_VALUE, 0)))))
    elif is_deep_png or max(tags.get(BITS, (8,))) > 8:
        if data.levels or tags.get(PLANAR) == SEPARATE:
            raise RefusedError(f"colours with more than 8 bits cannot be read exactly; {REMEDY}")
        seen.append(("colour", 256 * np.asarray(image.convert("RGB")).max().item() + 255))
    return seen


def _hides_colours(values: np.ndarray) -> bool:
    """Return whether clear pixels differ, as below a channel, and not as in an empty drawing."""
    clear = values[values[..., -1] == 0]
    return bool((clear != clear[:1]).any())


def finer_values(values: np.ndarray, levels: tuple[float, float] | None) -> Seen:
    """Return the step from one pixel value to the next if many values are closer than that."""
    black, white = levels or (0, MAX_LEVEL)
    some = np.unique(values.ravel()[:: 1 + values.size // MOST_SAMPLED])
    some, step = some[(some >= black) & (some <= white)], (white - black) / NUM_LEVELS
    is_finer = len(some) > min(NUM_LEVELS, 2 * len(np.unique(some // step)))
    return [("step", step)] if is_finer else []


def remarks_on(seen: Seen) -> list[str]:
    """Return notes on how pictures are read, where nothing is wrong with that."""
    steps = [number for kind, number, *_ in seen if kind == "step"]
    is_noted = any("data.levels" in fields for fields in notes_on(seen).values())
    note = (
        f"note: the values of {quantity(len(steps), 'picture')} become {NUM_LEVELS} levels from"
        f" black to white, so differences below {max(steps, default=0):.3g} vanish; a narrower"
        " range shows finer ones: -s 'data.levels=[BLACK,WHITE]'"
    )
    return [note] * bool(steps and not is_noted)


def describe_tiff(content: bytes) -> str:
    """Return what a TIFF file holds and what would help; empty if it is damaged or no TIFF file."""
    try:
        tags = ImageFileDirectory_v2(content[: 16 if b"+" in content[2:4] else 8])
        file = io.BytesIO(content)
        file.seek(tags.next)
        tags.load(file)
        size, channels = f"{tags[WIDTH]}x{tags[HEIGHT]}", quantity(tags.get(SAMPLES, 1), "channel")
        values = f"{tags[BITS][0]}-bit {NUMBERS[tags.get(FORMAT, (1,))[0]]}"
    except Exception:  # of many kinds, as in decoders
        return ""
    return f"a TIFF page of {size} with {channels} of {values} cannot be read; {REMEDY}"


def notes_on(seen: Seen, *, some_dark: bool = True) -> dict[str, dict[str, Any]]:
    """Return notes on what pictures hold that is not read, with the fields that would read it.

    ``some_dark``: also on nearly black pictures beside others, which may be right.
    """
    numbers: dict[str, list[float]] = {}
    for kind, number, *_ in seen:
        numbers.setdefault(kind, []).append(number)
    if len({*numbers.get("pages", ())}) > 1:  # a stack of channels has the same in each file
        numbers["colours"] = numbers.get("colours", []) + numbers.pop("pages")
    most = {kind: int(max(row)) for kind, row in numbers.items()}
    notes: dict[str, dict[str, Any]] = {}
    for kind, text in NOTES.items():
        if kind not in most or (kind in ("grey", "colour") and most[kind] > WHITES[-1]):
            continue
        whites = (most.get("white", 0), *WHITES, most[kind])
        white = next(white for white in whites if white >= most[kind])
        count = quantity(len(numbers[kind]), "picture")
        note = "note: " + text.format(count=count, most=most[kind], white=white)
        fields: dict[str, dict[str, Any]] = {"grey": {"data.levels": white}}
        fields["colours"] = {"data.page": 0}
        if most.get("pages", MOST_PAGES) < MOST_PAGES:
            fields["pages"] = {"data.channels": "pages"}
        notes[note] = fields.get(kind, {})
    is_noted = most.get("grey", MAX_LEVEL) <= WHITES[-1]
    dark = {} if is_noted else _note_on_dark(seen)
    return notes | {note: fields for note, fields in dark.items() if fields or some_dark}


def _note_on_dark(seen: Seen) -> dict[str, dict[str, Any]]:
    highs = [(number, name) for kind, number, *name in seen if kind == "high"]
    tops = [number for kind, number, *_ in seen if kind == "top"]
    dark = [high for high, top in zip(highs, tops, strict=True) if top <= DARK]
    if not dark:
        return {}
    high, names = max(dark)
    white = next((white for white in (1, *WHITES) if high <= white < 15 * high), high)
    fields = {"data.levels": white} if len(dark) == len(highs) and high > 0 else {}
    note = (
        f"note: nearly black: {len(dark):,} of {quantity(len(highs), 'picture')}, such as"
        f" {names[0]}, with values up to {high:,.10g}, in the lowest sixteenth of the range from"
        " black to white; save all pictures in one unit"
    )
    note += f", or train with the range of these: -s data.levels={white}" if fields else ""
    return {note: fields}


def next_fields(seen: Seen) -> dict[str, Any]:
    """Return fields that would read more of pictures: levels for all refused ones, or of a note."""
    limits = [number for kind, number, *_ in seen if kind == "range"]
    if not limits:
        return next(filter(None, notes_on(seen).values()), {})
    black, white = min(limits), max(limits)
    if isinstance(white, int):
        white = next(each for each in (*WHITES, white) if each >= white)
    black, white = (int(level) if level % 1 == 0 else level for level in (black, white))
    return {"data.levels": [black, white] if black else white}
