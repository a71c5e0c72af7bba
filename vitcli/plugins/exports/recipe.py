"""Classify pictures with a model that vitcli exported. Needs Pillow, numpy and onnxruntime.

    python recipe.py photo.jpg

It reads PNG, JPEG, WebP, BMP, GIF and TIFF. ``prepare`` takes a picture of another format, such as
HEIC, as an image that another library has opened for Pillow.

Axes: C channels, H W pixels, K classes.
"""

import json
import sys
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from PIL import Image, ImageOps

STEPS = {
    "version": 1,
    "draft": "JPEG at 1/2, 1/4 or 1/8, no side below 2 * max(height, width)",
    "orientation": "turned upright as the EXIF data say",
    "16 bits": "(level + 128) // 257",
    "transparent": "on white",
    "reduce": "means of blocks of max(1, side // (2 * target)) pixels, square blocks for crop",
    "crop": "central, sides rounded half to even, offsets rounded down",
    "filter": "bilinear with antialiasing in float32, rounded half to even to 8 bits",
}
"""What ``prepare`` does, as the metadata of a model say it. They add ``SETTINGS``."""
SETTINGS = ("fit", "colours", "height", "width")
MODES = {"RGB": "RGB", "grey": "L"}
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF")
BILINEAR = Image.Resampling.BILINEAR
ORIENTATION, PHOTOMETRIC, NUMBERS = 0x0112, 0x0106, 0x0153
SIGNED = 2
MAX_LEVEL = 2**16 - 1
Size = tuple[int, int]
Picture = str | Path | BinaryIO | Image.Image


def can_follow(steps: dict[str, Any]) -> bool:
    """Return whether ``prepare`` does all of these steps of metadata, and no other ones."""
    known_colours = steps.get("colours") in MODES
    return known_colours and steps == STEPS | {name: steps.get(name) for name in SETTINGS}


def load(path: str | Path) -> tuple[Any, dict[str, Any]]:
    """Return the session of onnxruntime and the metadata of an exported model.

    The metadata hold ``preprocessing``, ``mean``, ``std`` and, where the model has them,
    ``class_names``, ``temperature`` and ``thresholds``. Raises ValueError if ``prepare`` does not
    do what they say.
    """
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    texts = session.get_modelmeta().custom_metadata_map
    names = ("preprocessing", "mean", "std", "class_names", "temperature", "thresholds")
    metadata = {name: json.loads(texts[name]) for name in names if name in texts}
    if "preprocessing" not in metadata:
        raise ValueError(f"{path}: it has no metadata of vitcli")
    if not can_follow(metadata["preprocessing"]):
        raise ValueError(
            f"{path}: its metadata say other steps from a picture file to pixels than vitcli; take"
            " its run in place of the file, or prepare the images as the metadata say"
        )
    num_names, num_outputs = len(metadata.get("class_names", ())), session.get_outputs()[0].shape[1]
    if num_names not in (0, num_outputs):
        raise ValueError(f"{path}: its metadata name {num_names} classes of {num_outputs} outputs")
    return session, metadata


def prepare(picture: Picture, metadata: dict[str, Any]) -> np.ndarray:
    """Return the input of a model for a picture and the metadata of ``load``: float32 (C, H, W).

    Raises what Pillow raises for a file that is no picture, and ValueError for pixels of more than
    16 bits.
    """
    how = metadata["preprocessing"]
    size, is_crop = (how["height"], how["width"]), how["fit"] == "crop"
    image, shape = read_upright(picture, 2 * max(size))
    image = eight_bits(image).convert(MODES[how["colours"]])
    box = central_box(shape, size) if how["fit"] == "pad" else size
    height, width = central_box(size, image.size[::-1]) if is_crop else image.size[::-1]
    blocks = max(1, height // (2 * box[0])), max(1, width // (2 * box[1]))
    rows, columns = 2 * [min(blocks)] if is_crop else blocks
    image = crop(image, (height - height % rows, width - width % columns)).reduce((columns, rows))
    if is_crop:
        image = crop(image, central_box(size, image.size[::-1]))
    planes = [plane.convert("F").resize(box[::-1], BILINEAR) for plane in image.split()]
    pixels = np.rint([np.asarray(crop(plane, size)) for plane in planes]) / 255  # pads with black
    mean, std = (np.reshape(metadata[name], (-1, 1, 1)) for name in ("mean", "std"))
    return ((pixels - mean) / std).astype(np.float32)


def read_upright(picture: Picture, side: int) -> tuple[Image.Image, tuple[float, float]]:
    """Return a picture turned as its EXIF data say, and its height and width in the file.

    A JPEG is decoded at 1/2, 1/4 or 1/8 of its size if no side is then below ``side``; the height
    and the width are divided by as much.
    """
    image = picture if isinstance(picture, Image.Image) else Image.open(picture, formats=FORMATS)
    draft = image.draft(image.mode, (side, side))
    image.load()
    width, height = draft[1][2:] if draft else image.size
    try:
        exif, turned = image.getexif(), ImageOps.exif_transpose(image)
    except Exception:  # EXIF data that cannot be read
        return image, (height, width)
    if image.mode == "L" and exif.get(NUMBERS) == SIGNED:  # Pillow reads other values
        raise ValueError("its pixels are signed numbers of 8 bits; save 8 or 16 bits")
    if (image.format, exif.get(PHOTOMETRIC)) == ("TIFF", 0) and image.mode.startswith("I;16"):
        turned = Image.fromarray(MAX_LEVEL - np.asarray(turned))  # 0 is white
    return turned, (width, height) if exif.get(ORIENTATION) in (5, 6, 7, 8) else (height, width)


def eight_bits(image: Image.Image) -> Image.Image:
    """Scale 16-bit grey to 8 bits; put transparent pixels on white."""
    if image.mode.startswith("I"):
        levels, clear = np.asarray(image).astype(np.int64), image.info.get("transparency")
        if not 0 <= levels.min() <= levels.max() <= MAX_LEVEL:
            raise ValueError("its pixels need more than 16 bits; save 8 or 16 bits")
        grey = np.where(levels == clear, 255, (levels + 128) // 257)
        return Image.fromarray(grey.astype(np.uint8))
    if image.mode == "F":
        raise ValueError("its pixels are floating-point numbers; save 8 or 16 bits")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image


def central_box(aspect: tuple[float, float], room: Size) -> Size:
    """Return height and width of the largest box with the aspect of a size in the room."""
    scale = min(room[0] / aspect[0], room[1] / aspect[1])
    height, width = (
        min(side, max(1, round(part * scale))) for part, side in zip(aspect, room, strict=True)
    )
    return height, width


def crop(image: Image.Image, size: Size) -> Image.Image:
    """Return the centre of a picture; black around it where the picture is smaller than that."""
    top, left = int((image.height - size[0]) / 2), int((image.width - size[1]) / 2)
    return image.crop((left, top, left + size[1], top + size[0]))


def classify(session: Any, metadata: dict[str, Any], picture: Picture) -> np.ndarray:
    """Return the probability of each class for a picture: (K,)."""
    (logits,) = session.run(["logits"], {"images": prepare(picture, metadata)[None]})[0]
    shares: np.ndarray = np.exp((logits - logits.max()) / metadata.get("temperature", 1))
    return shares / shares.sum()


def main(paths: list[str]) -> None:
    if not paths:
        sys.exit("type: python recipe.py PICTURE ...")
    session, metadata = load(Path(__file__).with_name("model.onnx"))
    problems = []
    for path in paths:
        try:
            shares = classify(session, metadata, path)
        except Exception as error:  # decoders raise many kinds
            problems.append(f"{path}: {error}")
            continue
        best = int(shares.argmax())
        sys.stdout.write(f"{path}\t{metadata['class_names'][best]}\t{shares[best]:.6f}\n")
    sys.exit("\n".join(problems) or 0)


if __name__ == "__main__":
    main(sys.argv[1:])
