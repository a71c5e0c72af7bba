"""`vitcli attn-map`: maps of a model's attention over pictures."""

import json as json_text
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, cast, get_args

from typer import Option

from vitcli.cli import options as shared
from vitcli.cli.chosen import run_and_pictures
from vitcli.cli.console import emit_report, say
from vitcli.cli.options import exclude, output_option, with_code, with_example
from vitcli.runner.errors import ConfigError, InputError, summarize_failures
from vitcli.runner.files import commit, make_output_folder, require_replaceable
from vitcli.runner.report.report import DataTable, Report

if TYPE_CHECKING:
    from vitcli.runner.attn_map.explain import Explainer, Explanation
    from vitcli.runner.evaluate.predict import Predictor


Method = Literal["cls", "rollout", "grad-rollout", "gradcam", "head", "raw"]
FileFormat = Literal["png", "svg", "pdf", "npz", "json", "html"]

MethodOption = Annotated[
    Method | None,
    Option(
        metavar="METHOD",
        help=f"Method: {', '.join(get_args(Method))}.",
        show_default="one that fits",
    ),
]
Layers = Annotated[
    str, Option(metavar="LAYERS", help="Layers, such as 1,3,6 or -1.", show_default="last")
]
Heads = Annotated[
    str, Option(metavar="HEADS", help="Heads, such as 3 or 1,2, or mean.", show_default="all")
]
Query = Annotated[
    str,
    Option(
        metavar="X,Y",
        help="Show what the patch at this point attends to; x and y from 0 to 1.",
        show_default=False,
    ),
]
About = Annotated[
    str | None, Option("--class", help="Class to explain.", show_default="the most likely")
]
FormatOption = Annotated[
    FileFormat | None,
    Option(
        "--format",
        metavar="FORMAT",
        help=f"Format: {', '.join(get_args(FileFormat))}.",
        show_default="suffix of -o, or png",
    ),
]
Output = Annotated[Path | None, output_option("FILE|FOLDER", "File or folder to write.", ".")]
MAP = rb"vitcli attn-map|num_prefix_tokens|explorer-page"
"""What every file of ``attn-map`` contains: a figure, the numbers of a map, or a page."""


@with_example(
    "vitcli attn-map photo.jpg",
    "vitcli attn-map photo.jpg --format html",
    "vitcli attn-map quickstart photo.jpg",
    "vitcli attn-map timm:vit_tiny_patch16_224 photo.jpg",
)
@with_code
def attn_map(
    run: shared.RunOf = None,
    pictures: shared.Pictures = None,
    method: MethodOption = None,
    layer: Layers = "",
    head: Heads = "",
    query: Query = "",
    about: About = None,
    form: FormatOption = None,
    fit: shared.FitOption = None,
    output: Output = None,
    device: shared.Device = "auto",
    offline: shared.Offline = False,
    json: shared.Json = False,
) -> None:
    """Draw a model's attention over pictures.

    RUN may be timm:NAME: a model of timm with its published weights.
    """
    from vitcli.runner.attn_map.explain import Explainer
    from vitcli.runner.data.folder import picture_files

    run, images = run_and_pictures("attn-map", [run, *(pictures or ())])
    kind = format_of(form, output)
    chosen = {"--method": method, "--head": head, "--query": query, "--class": about}
    for option, value in chosen.items():
        exclude({"--format html": kind == "html", option: value or None})
    layers = parse_numbers("--layer", layer)
    notes: list[str] = []
    explainer = Explainer(
        choose_model(run, device, offline, notes.append),
        method=method,
        layers=layers,
        heads=None if head == "mean" else parse_numbers("--head", head),
        average_heads=head == "mean",
        query=parse_point(query),
        class_name=about,
        fit=fit,
        by_class=kind != "html",
    )
    if output == Path("-"):
        raise ConfigError("-o -: a figure cannot go to standard output; name a file or a folder")
    files = picture_files(images, say)
    if len(files) > 1 and output is not None and is_file_name(output):
        raise ConfigError(f"-o {output}: {len(files)} pictures need a folder, not a file")
    encode = encoder(kind, explainer, all_layers=layers is None)
    ending = f"{'explorer' if kind == 'html' else explainer.method}.{kind}"
    draw_all(files, explainer, encode, output, ending, notes, json)


def choose_model(
    run: str | None, device: str, offline: bool, on_note: Callable[[str], None]
) -> "Predictor":
    from vitcli.runner.evaluate.predict import Predictor, describe_model
    from vitcli.runner.evaluate.weights import default_run, published_weights
    from vitcli.runner.experiment.family import split_published
    from vitcli.runner.run.folder import RunDir, find_run

    if run is not None and (published := split_published(run)):
        family, name = published
        weights = published_weights(family)
        assert weights
        return Predictor(RunDir(Path(name)), device, weights.model(name, offline, say))
    chosen = find_run(run) if run is not None else default_run()
    predictor = Predictor(chosen, device, on_message=on_note)
    say(describe_model(predictor.run, predictor.spec))
    return predictor


def encoder(
    form: str, explainer: "Explainer", *, all_layers: bool
) -> "Callable[[Explanation], bytes]":
    from vitcli.runner.attn_map.explain import map_metadata, page_writer, to_npz

    if form == "npz":
        return to_npz
    if form == "json":
        return lambda explanation: json_text.dumps(
            map_metadata(explanation) | {"maps": explanation.maps.tolist()}, indent=1
        ).encode()
    if form == "html":
        return page_writer("explorer", explainer, all_layers=all_layers)
    from vitcli.runner.attn_map.overlay import draw

    return partial(draw, form=form, run=explainer.predictor.run.name)


def draw_all(
    files: list[str],
    explainer: "Explainer",
    encode: "Callable[[Explanation], bytes]",
    output: Path | None,
    ending: str,
    notes: list[str],
    json: bool,
) -> None:
    """Write the map of each picture. A picture that cannot be read does not stop the others."""
    from vitcli.cli.live import counted
    from vitcli.runner.attn_map.explain import MORE_THAN_WEIGHTS, map_metadata
    from vitcli.runner.data.deep import notes_on

    pictures = [Path(file) for file in files if Path(file).exists()]
    done = []
    failures: list[InputError] = []
    taken: set[Path] = set()
    if output is not None and is_file_name(output):
        require_free(output, pictures)
    for file in counted(files, len(files), "drawing"):
        try:
            explanation = explainer.explain(file)
            content = encode(explanation)
        except InputError as error:
            if len(files) == 1:
                raise
            say(f"error: {error}")
            failures.append(error)
            continue
        target = target_of(file, output, ending, taken, pictures)
        make_output_folder(target.parent)
        commit(target, content)
        run = {"run": str(explainer.predictor.run.path)}
        done.append(map_metadata(explanation) | run | {"file": str(target)})
        if not explanation.states_all:
            notes = [*dict.fromkeys([*notes, f"note: {MORE_THAN_WEIGHTS}"])]
    seen = explainer.predictor.seen
    notes = [*notes, *notes_on(seen)]
    table = DataTable("pictures", ["image", "class", "probability", "file"], done)
    report = Report(tables=[table], notes=notes, files=[Path(row["file"]) for row in done])
    emit_report(report, "json" if json else "text")
    if failures:
        raise summarize_failures(failures, len(files), "images could not be read")


def parse_numbers(option: str, text: str) -> list[int] | None:
    if text in ("", "all"):
        return None
    if not re.fullmatch(r"-?\d{1,4}(,-?\d{1,4})*", text):
        raise ConfigError(f"{option} takes numbers such as 1 or 1,3,-1, got {text!r}")
    return [int(number) for number in text.split(",")]


def parse_point(text: str) -> tuple[float, float] | None:
    if not text:
        return None
    point = re.fullmatch(r"(\d(?:\.\d+)?),(\d(?:\.\d+)?)", text)
    if point is None:
        raise ConfigError(f"--query takes x and y between 0 and 1, such as 0.5,0.25, got {text!r}")
    return float(point[1]), float(point[2])


def format_of(form: FileFormat | None, output: Path | None) -> FileFormat:
    if output is None or not is_file_name(output):
        return form or "png"
    suffix = output.suffix.lower().removeprefix(".")
    formats = (form,) if form else get_args(FileFormat)
    if suffix not in formats:
        raise ConfigError(f"-o {output}: the name does not end in .{', .'.join(formats)}")
    return cast(FileFormat, suffix)


def is_file_name(output: Path) -> bool:
    return bool(output.suffix) and not output.is_dir()


def require_free(target: Path, pictures: Sequence[Path]) -> None:
    if target.exists() and any(map(target.samefile, pictures)):
        raise ConfigError(f"-o {target} would overwrite the picture; choose another name")
    require_replaceable(target, "map", MAP)


def is_free(target: Path, pictures: Sequence[Path]) -> bool:
    with suppress(ConfigError):
        require_free(target, pictures)
        return True
    return False


def target_of(
    picture: str, output: Path | None, ending: str, taken: set[Path], pictures: Sequence[Path]
) -> Path:
    """Return ``-o``, or a free name of the picture and the kind of map, such as ``x-2-cls.png``."""
    if output is not None and is_file_name(output):
        return output
    stem = "stdin" if picture == "-" else Path(picture).stem
    target, number = (output or Path()) / f"{stem}-{ending}", 1
    while target in taken or not is_free(target, pictures):
        number += 1
        target = target.with_name(f"{stem}-{number}-{ending}")
    taken.add(target)
    return target
