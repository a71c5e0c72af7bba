"""The part of a picture that a model sees. No torch: an exported model is used without it."""

Size = tuple[int, int]
"""(height, width)"""


def central_box(height: int, width: int, size: Size) -> tuple[int, int, int, int]:
    """Return the largest centred box with the aspect of ``size``: (top, left, height, width)."""
    scale = min(height / size[0], width / size[1])
    h = min(height, max(1, round(size[0] * scale)))
    w = min(width, max(1, round(size[1] * scale)))
    return (height - h) // 2, (width - w) // 2, h, w
