"""Pictures of a run to look at again: confident errors and suspect labels.

Axes: N images, C channels, H W pixels, K classes, gh gw patch grid.
"""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup
from matplotlib import colormaps
from PIL import Image
from torch import Tensor

from vitcli.core.data.batches import limit_images
from vitcli.core.data.source import Images, evenly_spaced, together
from vitcli.core.inspect.maps import METHODS, MapRequest, default_method, states_all
from vitcli.core.metrics.linear_probe import HELD_OUT, cross_validated
from vitcli.core.models.image_model import MappedModel
from vitcli.core.spec import DataSpec
from vitcli.runner.attn_map.overlay import OPACITY, map_scale
from vitcli.runner.data.contact_sheet import to_rgb
from vitcli.runner.data.corrections import read_corrections
from vitcli.runner.data.find import own_path
from vitcli.runner.data.folds import count_different, folds_of_probes
from vitcli.runner.data.picture_reader import list_pictures
from vitcli.runner.data.pictures import Box, picture_bytes, picture_to_draw
from vitcli.runner.errors import ConfigError, InputError
from vitcli.runner.evaluate.scores import why_uncalibrated
from vitcli.runner.evaluate.trained_run import OnStage, TrainedRun, load_trained_run
from vitcli.runner.figure_style import CMAP
from vitcli.runner.files import commit, policy_hash, require_replaceable
from vitcli.runner.report import pages
from vitcli.runner.report.report import DataTable, Fact, Report, hidden
from vitcli.runner.run.folder import RunDir, find_run
from vitcli.runner.text import portable, quantity

SHOWN = 24
MOST_LABELS = 20_000
"""Largest number of training images whose labels are checked. Their features take a minute or two
with a small model on two cores."""
PROBE_LABELS = 5000
"""Largest number of images that a probe learns from."""

DOUBT = ("name", "given", "given_probability", "predicted", "predicted_probability")


@dataclass(frozen=True, kw_only=True)
class Doubt:
    """A picture that the model gets wrong, or whose label may be wrong."""

    name: str
    """Its file below the folder of the data set, or its split and index."""
    given: str
    given_probability: float
    predicted: str
    """The likeliest class."""
    predicted_probability: float
    pixels: Tensor
    """(C, H, W) uint8."""
    heat: Tensor | None = None
    """(gh, gw), not negative: the model's default map; None without one."""


def review_run(
    name: str, *, data_dir: Path | None = None, on_stage: OnStage = lambda *_: None, **options: Any
) -> tuple[Report, float]:
    """Write the page of a run; return the report and the accuracy on test images."""
    spec = find_run(name).spec()
    if not spec.task.row.classifies:
        raise ConfigError(
            f"--review: {name} has no one class for each image (task {spec.task.name!r}); name a"
            " run of task 'classify'"
        )
    found = load_trained_run(name, data_dir=data_dir, **options)
    test = limit_images(_named(found, "test"), found.spec)
    if not len(test):
        raise InputError(f"{name}: {spec.data.name} has no test images")
    temperature = found.record.temperature
    on_stage(f"answers for {quantity(len(test), 'test image')}", 0, 1)
    answers = found.task().outputs(found.module, test)["logits"]
    wrong, shares = _wrong(found, answers / (temperature or 1.0), test.labels)
    wrong = wrong[shares[wrong].max(1).values.argsort(descending=True, stable=True)]

    whole, notes = _training_images(found), found.notes
    train = evenly_spaced(limit_images(whole, found.spec), MOST_LABELS)
    if len(train) < len(whole):
        notes.append(f"Labels of {len(train):,} of {len(whole):,} training images were checked.")
    checked = train[_checked(found, train, notes)]
    unseen, suspect = shares, list[int]()
    if len(checked):
        logits = _unseen_logits(found, checked, notes, on_stage)
        differing, unseen = _wrong(found, logits, checked.labels)
        # By self-confidence (Northcutt et al. 2021, https://arxiv.org/abs/1911.00068)
        confidence = unseen[differing, checked.labels[differing]]
        suspect = differing[confidence.argsort(stable=True)].tolist()
    model, method = found.model, None
    if isinstance(model, MappedModel) and model.has_attention_weights:
        batch = found.data.normalize(test.pixels[:1])
        method = default_method(model) if states_all(model, batch) else "gradcam"
    errors = _doubts(found, test, shares, wrong[:SHOWN].tolist(), method)
    suspects = _doubts(found, checked, unseen, suspect[:SHOWN], method)
    numbers = {
        "num_errors": len(wrong),
        "num_suspects": len(suspect),
        "num_test": len(test),
        "num_checked": len(checked),
        "temperature": temperature,
    }
    lists = {"errors": errors, "suspects": suspects}
    page = write_review(found, data_dir, lists, numbers | {"method": method, "notes": notes})
    report = report_of(found.run, lists, numbers)
    report = replace(report, notes=notes, files=[page], next=[f"open {page} in a browser"])
    return report, 1 - len(wrong) / len(test)


def report_of(
    run: RunDir, lists: Mapping[str, Sequence[Doubt]], numbers: Mapping[str, Any]
) -> Report:
    suspects = "not checked"
    if checked := numbers["num_checked"]:
        total = quantity(checked, "training image")
        suspects = f"{numbers['num_suspects']:,} of {total}, by probes that have not seen them"
    tested = f"of {quantity(numbers['num_test'], 'test image')}"
    shown = [
        Fact("num_errors", numbers["num_errors"], label="errors", about=tested),
        Fact("num_suspects", numbers["num_suspects"], label="suspect labels", text=suspects),
    ]
    names = {fact.name for fact in shown}
    rows = [
        {"list": name} | {field: getattr(doubt, field) for field in DOUBT}
        for name, doubts in lists.items()
        for doubt in doubts
    ]
    return Report(
        facts=[
            Fact("run", str(run.path), text=run.name),
            *shown,
            *hidden(**{name: value for name, value in numbers.items() if name not in names}),
        ],
        tables=[DataTable("pictures", ["list", *DOUBT], rows, is_shown=False)],
    )


def _named(found: TrainedRun, split: str) -> Images:
    images = found.images(split)
    names = images.names or tuple(f"{split} image {index}" for index in range(len(images)))
    return replace(images, names=names)


def _training_images(found: TrainedRun) -> Images:
    """Return the training images and those held out for validation, sorted by label."""
    images = _named(found, "train")
    if found.data.val is not None:
        images = together(images, _named(found, "val"))
    return images[images.labels.argsort(stable=True)]


def _wrong(found: TrainedRun, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the indices of wrong answers, and the probabilities of all classes (N, K)."""
    if not logits.isfinite().all():
        raise InputError(f"{found.run.name}: a logit is infinite or NaN")
    return (logits.argmax(1) != labels).nonzero().flatten(), logits.double().softmax(1)


def _checked(found: TrainedRun, train: Images, notes: list[str]) -> Tensor:
    """Return the indices of the images whose labels can be checked, and note the other classes."""
    counts = count_different(train, found.data).to(train.labels.device)
    is_enough = counts >= HELD_OUT
    has_some = int(is_enough.sum()) > 1
    if few := ((counts > 0) & ~is_enough).nonzero().flatten().tolist():
        names = ", ".join(found.data.class_names[label] for label in few)
        which = "Not all labels" if has_some else "No labels"
        different = "groups" if found.data.groups else "different images"
        reason = f"because some classes have fewer than {HELD_OUT} {different}: {names}"
        notes.append(f"{which} of the training images were checked, {reason}.")
    return (is_enough[train.labels] & has_some).nonzero().flatten()


def _unseen_logits(found: TrainedRun, train: Images, notes: list[str], on_stage: OnStage) -> Tensor:
    """Return the answers (N, K) of probes that have not seen the image or its copies; note whose
    copies they have seen.
    """
    stage, total = f"features of {quantity(len(train), 'training image')}", len(train)
    features = found.task().features(found.module, train, lambda done: on_stage(stage, done, total))
    if not features.isfinite().all():
        raise InputError(f"{found.run.name}: a feature of the encoder is infinite or NaN")
    on_stage("probes of the training labels", 0, 1)
    fold, apart = folds_of_probes(train, found.data, HELD_OUT)
    if apart:
        notes.append(f"Copies are in one fold{apart}; wrong labels of these may not be found.")
    count = found.data.num_classes
    logits = cross_validated(features, train.labels, count, fold=fold, most=PROBE_LABELS)
    assert logits is not None, "each class has images for all folds"
    return logits


def _doubts(
    found: TrainedRun, images: Images, shares: Tensor, rows: Sequence[int], method: str | None
) -> list[Doubt]:
    """Return the images at some indices, by the probabilities of all classes (N, K)."""
    model = found.model
    doubts, classes = [], found.data.class_names
    for row in rows:
        label = int(images.labels[row])
        doubt = Doubt(
            name=images.names[row],
            given=classes[label],
            given_probability=shares[row, label].item(),
            predicted=classes[int(shares[row].argmax())],
            predicted_probability=shares[row].max().item(),
            pixels=images.pixels[row].cpu(),
        )
        if method is not None and isinstance(model, MappedModel):
            batch = found.data.normalize(images.pixels[row][None])
            request = MapRequest(model=model, images=batch, layers=(len(model.blocks) - 1,))
            doubt = replace(doubt, heat=METHODS[method](request)[0].detach().float().cpu())
        doubts.append(doubt)
    return doubts


PAGE = "review.html"
SHOWN_SIDE = 192
"""Largest longer side of an embedded picture, in pixels."""


def write_review(
    found: TrainedRun,
    data_dir: Path | None,
    lists: Mapping[str, Sequence[Doubt]],
    review: Mapping[str, Any],
) -> Path:
    """Write the page into the run folder, for a bundled model into the current one; return it."""
    run, data = found.run, found.spec.data
    path = Path(PAGE) if run.is_bundled else run.path / PAGE
    name = data.name
    place = own_path(name, data_dir)
    folder = list_pictures(name, data_dir) if place else None
    moved = ["--data", f"{name.partition(':')[0]}:{place}"] if place != own_path(name) else []
    root = folder.root if folder else None
    made = read_corrections(data.corrections, folder) if folder else {}
    verb = "train -s data.corrections=corrections.csv"
    classes = found.data.class_names
    cards = {
        kind: [_card(doubt, review["method"], data, root) for doubt in doubts]
        for kind, doubts in lists.items()
    }
    script = pages.source("review.js")
    page = pages.render(
        "review.html",
        uncalibrated=why_uncalibrated(found.record),
        review=review,
        name=run.name,
        data_name=portable(name),
        errors=cards["errors"],
        suspects=cards["suspects"],
        can_correct=root is not None,
        command=run.command(verb, of_config=True, more=[*moved, "--name", "NAME"]),
        data={
            "classes": classes,
            "corrections": [
                [name, "" if label is None else classes[label]] for name, label in made.items()
            ],
        },
        script=script,
        script_hash=Markup(policy_hash(script)),
    )
    require_replaceable(path, "page", b": pictures to look at again</title>")
    commit(path, page.encode())
    return path


def _card(doubt: Doubt, method: str | None, data: DataSpec, root: Path | None) -> dict[str, Any]:
    picture, size = to_rgb(doubt.pixels[None])[0], (doubt.pixels.shape[1], doubt.pixels.shape[2])
    box = (0, 0, *size)
    with contextlib.suppress(InputError):  # the file is gone, or its name has control characters
        if root is not None:
            picture, box = picture_to_draw(picture_bytes(root / doubt.name), doubt.name, size, data)
    heat = None
    if method is not None and doubt.heat is not None:
        heat = _map(method, doubt.heat.numpy(), picture, box)
    return {
        "doubt": doubt,
        "picture": pages.picture_uri(picture, SHOWN_SIDE),
        "map": None if heat is None else pages.picture_uri(heat, SHOWN_SIDE),
        "is_small": max(picture.shape[:2]) < SHOWN_SIDE // 2,
    }


def _map(method: str, heat: np.ndarray, picture: np.ndarray, box: Box) -> np.ndarray:
    """Return a map (gh, gw) over the model's input in grey: (height, width, 3) uint8."""
    top, left, height, width = box
    scaled = map_scale(method, heat.max())(heat)
    layer = Image.fromarray(colormaps[CMAP](scaled, bytes=True)[..., :3])
    colours = np.asarray(layer.resize((width, height), Image.Resampling.NEAREST))
    grey = picture[top : top + height, left : left + width].mean(-1, keepdims=True)
    return (OPACITY * colours + (1 - OPACITY) * grey).round().astype(np.uint8)
