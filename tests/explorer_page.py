"""A parser of an explorer's page: its tags, its texts and the numbers in its data."""

import base64
import json
from html.parser import HTMLParser
from typing import Any

import numpy as np


class Parsed(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {"script": [], "style": [], "title": []}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag in self.texts:
            self.texts[tag].append("")

    def handle_endtag(self, tag: str) -> None:
        self.lasttag = ""

    def handle_data(self, data: str) -> None:
        if self.lasttag in self.texts:
            self.texts[self.lasttag][-1] += data

    @property
    def policy(self) -> str:
        found = [a for tag, a in self.tags if tag == "meta" and "http-equiv" in a]
        assert [a["http-equiv"] for a in found] == ["Content-Security-Policy"]
        return str(found[0]["content"])

    @property
    def data(self) -> dict[str, Any]:
        return dict(json.loads(self.texts["script"][0]))


def parse(content: bytes | str) -> Parsed:
    parser = Parsed()
    parser.feed(content if isinstance(content, str) else content.decode())
    parser.close()
    return parser


def attention(scene: dict[str, Any], name: str = "attention") -> np.ndarray:
    """Return (L, h, Q, N), or (L, Q, N) for ``rollout``, as the page's script decodes it."""
    maxima = {"attention": "maxima", "rollout": "rolloutMaxima"}[name]
    rows = np.frombuffer(base64.b64decode(scene[name]), np.uint8)
    largest = np.frombuffer(base64.b64decode(scene[maxima]), "<f4")
    values = (rows.reshape(len(largest), -1) / 255) ** 2 * largest[:, None].astype(float)
    heads = (scene["heads"],) if name == "attention" else ()
    return values.reshape(len(scene["layers"]), *heads, -1, values.shape[-1])
