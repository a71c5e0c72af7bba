"""A parser of an explorer's page: its tags, its texts and the numbers in its data."""

import base64
import json
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any

import numpy as np


@dataclass
class Parsed(HTMLParser):
    """Tags in order, the text of scripts and styles, the policy."""

    tags: list[tuple[str, dict[str, str | None]]] = field(default_factory=list)
    texts: dict[str, list[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__init__()
        self.inside = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.inside = tag
        self.texts.setdefault(tag, [])
        if tag in ("script", "style", "title"):
            self.texts[tag].append("")

    def handle_endtag(self, tag: str) -> None:
        self.inside = ""

    def handle_data(self, data: str) -> None:
        if self.inside in ("script", "style", "title"):
            self.texts[self.inside][-1] += data

    @property
    def policy(self) -> str:
        found = [a for tag, a in self.tags if tag == "meta" and "http-equiv" in a]
        assert [a["http-equiv"] for a in found] == ["Content-Security-Policy"]
        return str(found[0]["content"])

    @property
    def data(self) -> dict[str, Any]:
        data: dict[str, Any] = json.loads(self.texts["script"][0])
        return data


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
