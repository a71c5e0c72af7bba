"""The topics of ``vitcli explain``, and what stands before them. This module loads no torch."""

from typing import TYPE_CHECKING

from vitcli.core.make import make
from vitcli.core.spec.rows import Row
from vitcli.runner.errors import ConfigError
from vitcli.runner.text import did_you_mean

if TYPE_CHECKING:
    from vitcli.runner.explain.lesson import Lesson
    from vitcli.runner.explain.subject import Subject

ROOM = "vitcli.runner.explain"
TOPICS: dict[str, Row] = {
    "patches": Row(about="an image becomes a sequence of patches", build=f"{ROOM}.patches:explain"),
    "attention": Row(
        about="queries seek, keys label, values carry: one layer with its shapes and numbers",
        build=f"{ROOM}.attention:explain",
    ),
    "scale": Row(
        about="why the scores are divided by the square root of the width",
        build=f"{ROOM}.scale:explain",
    ),
    "average": Row(
        about="the attention matrix is a weighted average of values",
        build=f"{ROOM}.average:explain",
    ),
    "graph": Row(
        about="attention is a complete directed graph between tokens",
        build=f"{ROOM}.graph:explain",
    ),
    "permutation": Row(
        about="attention does not know the order of the tokens; positions tell it",
        build=f"{ROOM}.permutation:explain",
    ),
    "norms": Row(
        about="LayerNorm needs one token, BatchNorm needs the batch", build=f"{ROOM}.norms:explain"
    ),
}
"""Topic -> what it explains, and its function of a ``Subject``. In the order of the page."""

TRANSFORMER = (
    "A Vision Transformer cuts an image into patches and turns each patch into a vector, called"
    " a token. Its blocks repeat two steps: attention lets every token read every other token, and"
    " a small network changes each token alone. Each step adds its result to its input. At the"
    " end, one token or the mean of all tokens is classified."
)
CHALLENGES = (
    ("the cost of attention grows with the square of the number of tokens", "vitcli explain graph"),
    ("attention does not know where a patch is", "vitcli explain permutation"),
    ("deep networks are hard to optimise", "vitcli explain norms"),
    ("an image is no sequence, and has no words", "vitcli explain patches"),
)
"""The four challenges of the course report (section I.C), and the topic about each."""
REFERENCES = (
    "Dosovitskiy et al. 2021, An Image is Worth 16x16 Words (ViT), ICLR",
    "Vaswani et al. 2017, Attention is All You Need, NeurIPS",
    "Liu et al. 2021, Swin Transformer, ICCV",
    "Chen et al. 2020, Generative Pretraining from Pixels, ICML",
    "Carion et al. 2020, End-to-End Object Detection with Transformers, ECCV",
)
"""The references of the course report (section XI)."""


def check_topic(name: str) -> str:
    """Return the name of a topic.

    Raises:
        ConfigError: There is no such topic.
    """
    if name not in TOPICS:
        hint = did_you_mean(name, TOPICS) or f"; the topics are {', '.join(TOPICS)}"
        raise ConfigError(f"{name}: no such topic{hint}")
    return name


def lesson_of(name: str, subject: "Subject") -> "Lesson":
    """Return a topic on a model and a picture."""
    lesson: Lesson = make(TOPICS[name], subject)
    return lesson
