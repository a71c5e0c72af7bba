"""Make the pictures of docs/tutorials: terminal screens, HTML pages and an attention map.

python .ci/pictures.py [FOLDER]

The commands of the tutorials run in FOLDER/vitcli (default: a temporary folder). A screen that is
already in FOLDER is not run again. Needs Chromium. Like .ci/figures.py, nothing compares the files:
times and last digits differ between machines.
"""

import base64
import io
import math
import os
import random
import re
import shlex
import subprocess
import sys
import tempfile
import textwrap
from contextlib import ExitStack
from inspect import signature
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw
from rich.console import Console
from rich.terminal_theme import SVG_EXPORT_THEME
from rich.text import Text

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
from tests.browser.chromium import Browser, Page, chromium  # noqa: E402
from tests.terminal import run_in_terminal  # noqa: E402

PICTURES = ROOT / "docs" / "pictures"
TUTORIALS = ROOT / "docs" / "tutorials"
COLUMNS = 88
WIDTH, SCALE = 800, 1.25
"""Size of a page in CSS pixels, and how many pixels of the picture one of them takes."""
BLOCK = re.compile(r"^```(?:python|yaml)\n# (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
"""A file that the reader is to save; its name is in a comment."""
SVG_FORMAT = signature(Console.export_svg).parameters["code_format"].default
LARGEST = 150_000
"""Bytes of a picture."""
STEPS = {
    "train": "vitcli train",
    "eval": "vitcli eval quickstart",
    "no-positions": "vitcli train quickstart -s model.pos_embed=none --name no-positions",
    "runs-page": "vitcli runs page",
    "explorer": "vitcli attn-map cifar10-pocket experiments/results/ship.jpg --format html",
    "report": "vitcli ablate ablation-cifar10-full",
    "own-study": "vitcli ablate ./pool.yaml",
    "data-check": "vitcli data check 'my leaves' --page check.html --leave-out copies.csv",
    "finetune": "vitcli train finetune --data 'imagefolder:my leaves'"
    " -s data.corrections=copies.csv --name leaves",
    "review": "vitcli eval leaves --review",
    "predict": "vitcli predict leaves 'my leaves/test' --reject 0.8",
    "own-check": "vitcli experiments check --code cosine.py --code net.py",
}
"""Name -> a command, in the order in which they run."""
SCREENS = ("train", "eval", "own-study", "data-check", "finetune", "predict", "own-check")
"""The commands whose screen is a picture."""
SHORTENED = {"own-study": (1, "pool: "), "finetune": (14, "epoch  14"), "predict": (7, 14)}
"""Picture -> the number of lines that are shown from the beginning, and where the end begins: the
number of its lines, or what its first line begins with."""
STATE = re.compile(r"commit [0-9a-f, ]+;( with uncommitted changes;)? \d{4}-\d\d-\d\d")
"""What a table says of the code and the day."""
PAGES = {
    "runs-page": ("runs/index.html", "body", 775),
    "report": ("runs/ablation-cifar10-full/report.html", "figure", 500),
    "explorer": ("ship-explorer.html", "body", 820),
    "check-page": ("check.html", "body", 350),
    "review": ("runs/leaves/review.html", "body", 875),
}
"""Picture -> a page, the element where the picture begins, and its height in CSS pixels."""
MARKS = """(() => {
  const dates = /\\d{4}-\\d\\d-\\d\\d([ T]\\d\\d:\\d\\d(:\\d\\d)?)?/g
  const commits = /\\b(?=\\w*\\d)[0-9a-f]{7,12}\\b( \\+ changes)?/g
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT)
  while (walker.nextNode()) {
    const text = walker.currentNode
    text.data = text.data.replace(dates, '(date)').replace(commits, '(commit)')
  }
})()"""
"""Script that removes from a page what differs with every run."""


def main() -> None:
    PICTURES.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        folder = Path(sys.argv[1] if sys.argv[1:] else stack.enter_context(temporary())).resolve()
        clone = folder / "vitcli"
        if not clone.exists():
            subprocess.run(["git", "clone", "-q", ROOT, clone], check=True)
        os.chdir(clone)
        write_files()
        environment = os.environ | {"HOME": str(folder), "PYTHONPATH": str(ROOT)}
        environment |= {"VITCLI_CACHE": str(folder / "cache"), "VITCLI_OFFLINE": "1"}
        environment["PYTHONSAFEPATH"] = "1"  # the code of ROOT, not of the clone
        for name, command in STEPS.items():
            kept = folder / f"{name}.txt"
            if not kept.exists():
                words = shlex.split(command)[1:]
                _, printed = run_in_terminal(*words, environment=environment, width=COLUMNS)
                kept.write_bytes(printed.encode())
            if name in SCREENS:
                write_screen(name, command, kept.read_bytes().decode())
        browser = stack.enter_context(chromium(folder / "profile"))
        for name in PAGES:
            photograph(browser, name)


def temporary() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory()


def write_files() -> None:
    """Write the files that the tutorials let the reader write, and draw the pictures."""
    for page in sorted(TUTORIALS.glob("*.md")):
        blocks = re.findall(
            r"^```(?:python|yaml)\n# (\S+)\n(.*?)^```$", page.read_text(), re.M | re.S
        )
        for name, body in blocks:
            Path(name).write_text(body)
    if not Path("my leaves").exists():
        draw_leaves(Path("my leaves"))


def draw_leaves(place: Path) -> None:
    """Draw leaves of two trees, and save one training picture again as a test picture."""
    rng = random.Random(0)
    numbers = iter(rng.sample(range(1000, 9999, 7), 200))
    for split, count in (("train", 40), ("test", 15)):
        for tree in ("beech", "red oak"):
            folder = place / split / tree
            folder.mkdir(parents=True)
            for _ in range(count):
                file = folder / f"IMG_{next(numbers)}.jpg"
                draw_leaf(rng, has_lobes=tree == "red oak").save(file, quality=90)
    first = sorted((place / "train/beech").iterdir())[0]
    Image.open(first).resize((120, 120)).save(place / "test/beech/leaf again.jpg", quality=85)


def draw_leaf(rng: random.Random, *, has_lobes: bool, size: int = 160) -> Image.Image:
    """Return a leaf in any direction on uneven ground."""
    noise = np.random.default_rng(rng.randrange(1 << 30)).uniform(90, 250, (6, 6, 1))
    ground = (noise * (1, rng.uniform(0.85, 1), rng.uniform(0.7, 0.95))).astype(np.uint8)
    picture = Image.fromarray(ground).resize((3 * size, 3 * size), Image.Resampling.BICUBIC)
    middle = [1.5 * size + rng.uniform(-0.2, 0.2) * size for _ in range(2)]
    length, width = size * rng.uniform(0.9, 1.3), rng.uniform(0.45, 0.7)
    turn, waves = rng.uniform(0, 2 * math.pi), 2 * rng.choice((4, 5, 6))
    depth = rng.uniform(0.08, 0.35) if has_lobes else rng.uniform(0, 0.06)

    def place(along: float, across: float) -> tuple[float, float]:
        x, y = length * along, length * across
        cos, sin = math.cos(turn), math.sin(turn)
        return middle[0] + x * cos - y * sin, middle[1] + x * sin + y * cos

    angles = [math.radians(i) for i in range(360)]
    edge = [
        place(math.cos(a), math.sin(a) * width * (1 + depth * math.cos(a * waves))) for a in angles
    ]
    draw = ImageDraw.Draw(picture)
    green = (rng.randint(40, 110), rng.randint(90, 160), rng.randint(20, 70))
    draw.polygon(edge, fill=green)
    draw.line([place(-0.9, 0), place(1.25, 0)], fill=(95, 80, 40), width=9)
    return picture.resize((size, size), Image.Resampling.LANCZOS)


def write_screen(name: str, command: str, printed: str) -> None:
    """Write the SVG of a terminal with a command and what it left on the screen."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), color_system="truecolor")
    typed = textwrap.wrap(command.replace("-s ", "-s\0"), COLUMNS - 6, break_on_hyphens=False)
    console.print(Text("$ " + " \\\n    ".join(typed).replace("\0", " "), style="bold"))
    lines = left_on_screen(printed)
    if name in SHORTENED:
        first, end = SHORTENED[name]
        starts = (i for i, line in enumerate(lines) if line.startswith(str(end)))
        lines[first : -end if isinstance(end, int) else next(starts)] = ["..."]
    lines = [STATE.sub("commit ...", line) for line in lines]
    console.print(Text.from_ansi("\n".join(lines)))
    fonts = re.compile(r"@font-face \{\{.*?\}\}\n", re.DOTALL)  # they come from the network
    drawing = console.export_svg(
        title="~/vitcli",
        theme=SVG_EXPORT_THEME,
        code_format=fonts.sub("", SVG_FORMAT),
        unique_id=f"vitcli-{name}",
    )
    (PICTURES / f"{name}.svg").write_text(re.sub(r"[ \t]+$", "", drawing, flags=re.M))


def left_on_screen(printed: str) -> list[str]:
    """Return the lines that remain when progress bars have been erased."""
    lines: list[str] = []
    for line in re.sub(r"\x1b\[\?25[lh]", "", printed).rstrip("\n").split("\n"):
        for _ in range(line.count("\x1b[1A")):
            lines.pop()
        lines.append(re.split(r"\x1b\[2K|\x1b\[1A", line)[-1].strip("\r"))
    return lines


def photograph(browser: Browser, name: str) -> None:
    """Save a part of a page as a picture."""
    file, selector, height = PAGES[name]
    page: Page = browser.open(Path(file).resolve().as_uri(), size=(WIDTH, height))
    metrics = {"width": WIDTH, "height": height, "deviceScaleFactor": SCALE, "mobile": False}
    page.call("Emulation.setDeviceMetricsOverride", **metrics)
    page.evaluate(MARKS)
    page.evaluate(f"document.querySelector('{selector}').scrollIntoView()")
    taken = page.call("Page.captureScreenshot", format="png")
    save(Image.open(io.BytesIO(base64.b64decode(taken["data"]))), name)


def save(picture: Image.Image, name: str) -> None:
    """Save a picture with as many colours as its size allows."""
    file = PICTURES / f"{name}.png"
    for colours in (256, 128, 64, 32):
        picture.convert("RGB").quantize(colours).save(file, optimize=True)
        if file.stat().st_size <= LARGEST:
            return
    raise SystemExit(f"{file}: larger than {LARGEST} bytes")


if __name__ == "__main__":
    main()
