"""What a decoder of PNG files leaves to do: unreadable metadata, and transparent colours."""

from typing import Any

GREY, RGB = 0, 2
"""Kinds of pixels in a header, of those whose transparency is a colour."""

SIGNATURE = b"\x89PNG\r\n\x1a\n"
KEPT = (b"tRNS", b"acTL", b"fcTL", b"fdAT")
"""Chunks that decide pixels, besides the critical ones."""
FRAME_BYTES = 12
"""Bytes of a chunk besides its data: length, name and checksum."""


def without_metadata(content: bytes) -> bytes | None:
    """Return a PNG file without text, profiles and EXIF data; None if it is no PNG or has none.

    The chunks of the pixels are kept as they are, with their checksums. So a decoder still refuses
    damaged pixels.
    """
    if not content.startswith(SIGNATURE):
        return None
    kept, start = [SIGNATURE], len(SIGNATURE)
    while start < len(content):
        name = content[start + 4 : start + 8]
        length = int.from_bytes(content[start : start + 4])
        end = start + FRAME_BYTES + length
        is_critical = name[:1].isupper()
        if is_critical or name in KEPT:
            kept.append(content[start:end])
        start = end
    plain = b"".join(kept)
    return None if plain == content else plain


def scaled_transparency(header: bytes, clear: Any) -> Any:
    """Return the transparent colour of a PNG file on the scale of its decoded pixels.

    Pillow scales pixels to 8 bits, but not this colour. It keeps 16 bits of grey.
    """
    depth, kind = header[24], header[25]
    most = 2**depth - 1
    if kind == RGB and depth == 16:
        return tuple(value >> 8 for value in clear)
    if kind == GREY and depth < 16:
        return (clear & most) * 255 // most
    return clear
