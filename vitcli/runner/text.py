"""Text that is safe to print and to share: no control characters, no paths of this machine."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any


def portable(value: Any) -> Any:
    """Text without the folders of this machine: of an absolute path only the last name stays."""
    if not isinstance(value, str):
        return value
    kind, colon, path = value.rpartition(":")
    return f"{kind}{colon}{Path(path).name}" if path.startswith(("/", "~")) else value


def plain(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Values that JSON gives back unchanged, without folders of this machine."""
    return {
        name: list(value) if isinstance(value, tuple) else portable(value)
        for name, value in fields.items()
    }


def one_line(text: str, limit: int = 24) -> str:
    """A name that fits beside the images, whatever a folder was called."""
    plain = "".join(c if c.isprintable() else "?" for c in text)
    return plain if len(plain) <= limit else plain[: limit - 3] + "..."


def printable(path: object) -> str:
    """A name as it may be printed: control characters and broken encodings are escaped."""
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in str(path)
    )
