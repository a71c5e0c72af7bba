"""Classify pictures with a model that vitcli exported. Needs Pillow, numpy and onnxruntime.

    python recipe.py photo.jpg

Axes: C channels, H W pixels, K classes.
"""

import json
import sys
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from PIL import Image, ImageOps

VERSION = 1
"""Version of the preprocessing that ``prepare`` follows."""
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF")
BILINEAR = Image.Resampling.BILINEAR
ORIENTATION, PHOTOMETRIC = 0x0112, 0x0106
MAX_LEVEL = 2**16 - 1
Size = tuple[int, int]
Picture = str | Path | BinaryIO | Image.Image


def load(path: str | Path) -> tuple[Any, dict[str, Any]]:
    """Return the session of onnxruntime and the metadata of a model, or of a folder's model.onnx.

    The metadata hold ``preprocessing``, ``mean``, ``std`` and, where the model has them,
    ``class_names`` and ``temperature``. Raises ValueError if ``prepare`` cannot follow them.
    """
    import onnxruntime

    file = Path(path) / "model.onnx" if Path(path).is_dir() else path
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    texts = session.get_modelmeta().custom_metadata_map
    known = ("preprocessing", "mean", "std", "class_names", "temperature", "thresholds")
    steps = {name: json.loads(texts[name]) for name in known if name in texts}
    if steps.get("preprocessing", {}).get("version") != VERSION:
        raise ValueError(f"{file}: its metadata have no preprocessing of version {VERSION}")
    return session, steps


def prepare(picture: Picture, steps: dict[str, Any]) -> np.ndarray:
    """Return the input of a model for a picture: float32 (C, H, W), normalised.

    ``steps`` are the metadata that ``load`` returns. Raises what Pillow raises for a file that is
    no picture, and ValueError for pixels of more than 16 bits.
    """
    how = steps["preprocessing"]
    size, is_crop = (how["height"], how["width"]), how["fit"] == "crop"
    image, shape = read_upright(picture, 2 * max(size))
    image = eight_bits(image).convert({"RGB": "RGB", "grey": "L"}[how["colours"]])
    box = central_box(shape, size) if how["fit"] == "pad" else size
    height, width = central_box(size, image.size[::-1]) if is_crop else image.size[::-1]
    blocks = max(1, height // (2 * box[0])), max(1, width // (2 * box[1]))
    rows, columns = 2 * [min(blocks)] if is_crop else blocks
    image = crop(image, (height - height % rows, width - width % columns)).reduce((columns, rows))
    if is_crop:
        image = crop(image, central_box(size, image.size[::-1]))
    planes = [plane.convert("F").resize(box[::-1], BILINEAR) for plane in image.split()]
    pixels = np.rint([crop(plane, size) for plane in planes]) / 255  # bars of pad are black
    mean, std = (np.reshape(steps[name], (-1, 1, 1)) for name in ("mean", "std"))
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


def central_box(aspect: tuple[float, float], room: tuple[float, float]) -> Size:
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


def classify(session: Any, steps: dict[str, Any], picture: Picture) -> np.ndarray:
    """Return the probability of each class for a picture: (K,)."""
    logits = session.run(["logits"], {"images": prepare(picture, steps)[None]})[0][0]
    logits = logits.astype(np.float64) / steps.get("temperature", 1)
    exponentials = np.exp(logits - logits.max())
    return exponentials / exponentials.sum()


def main(paths: list[str]) -> int:
    session, steps = load(Path(__file__).parent)
    num_failed = 0
    for path in paths:
        try:
            shares = classify(session, steps, path)
        except Exception as error:  # decoders raise many kinds
            num_failed += 1
            sys.stderr.write(f"{path}: {error}\n")
            continue
        best = int(shares.argmax())
        sys.stdout.write(f"{path}\t{steps['class_names'][best]}\t{shares[best]:.6f}\n")
    return 1 if num_failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
