"""The models to choose from: trained runs, bundled models, and published weights."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from vitcli.core.data.source import DataSet
from vitcli.core.models.image_model import ImageModel
from vitcli.core.spec import FAMILIES, GENERATED, DataSpec, ExperimentSpec
from vitcli.runner.data.find import is_offline, own_path
from vitcli.runner.evaluate.weights import load_module, published_weights
from vitcli.runner.experiment.build import encoder_of
from vitcli.runner.experiment.family import split_published
from vitcli.runner.run.folder import RunDir, bundled_models, find_run, list_runs
from vitcli.runner.run.record import read_record
from vitcli.runner.text import Listener, size_text


class LeftOutError(Exception):
    """A model that cannot take part; the message says why."""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A trained model with its preprocessing."""

    name: str
    spec: ExperimentSpec
    """Its sizes, ``data.mean``, ``data.std`` and ``data.fit`` are those of the model's pictures."""
    module: nn.Module
    run: RunDir | None
    """None for published weights."""

    def fit(self, changes: Mapping[str, Any]) -> str:
        return str(changes.get("data.fit") or self.spec.data.fit)

    def preprocessing(self, asked: DataSpec, changes: Mapping[str, Any]) -> DataSpec:
        """Return the data as this model reads them: all training images, in its size and scale."""
        mine = self.spec.data
        fields = {"resize": self.spec.model.img_size, "mean": mine.mean, "std": mine.std}
        own = {"fit": self.fit(changes)} if own_path(asked.name) else {}
        return asked.replace(**fields, **own, folds=None)

    @property
    def encoder(self) -> ImageModel:
        return encoder_of(self.spec, self.module)


def known_models() -> list[str]:
    """Return the bundled models, the runs below runs/, and the published weights on this machine.

    Trials of studies are left out, and runs on a generated data set, which know no real pictures.
    """
    names = bundled_models()
    for run in list_runs():
        record = read_record(run)
        is_real = not record.variant and record.meta.get("data") not in GENERATED
        if record.state == "finished" and is_real and not record.imported:
            names.append(run.name)
    for family, row in FAMILIES.items():
        if row.weights and (weights := published_weights(family)):
            names += [f"{family}:{name}" for name in weights.here()]
    return names


def load_candidate(name: str, offline: bool, on_message: Listener) -> Candidate:
    """Return a model; of published weights that are not here and may not be downloaded, refuse."""
    published = split_published(name)
    if published is None:
        run = find_run(name)
        spec = run.spec()
        return Candidate(
            name=name, spec=spec, module=load_module(run, spec, on_message=on_message), run=run
        )
    weights = published_weights(published[0])
    assert weights
    if is_offline(offline) and published[1] not in weights.here():
        size = size_text(weights.download_bytes(published[1]))
        raise LeftOutError(f"its weights are not on this machine; a download has about {size}")
    spec, model = weights.model(published[1], offline, on_message)
    return Candidate(name=name, spec=spec, module=model, run=None)


def refuse_known_pictures(candidate: Candidate, data: DataSet) -> None:
    """Refuse a run that learned the labels of these pictures: its features fit to them."""
    run = candidate.run
    if run is None or not candidate.spec.task.row.uses_labels:
        return
    if candidate.spec.data.name == data.name or read_record(run).data_hash == data.data_hash:
        raise LeftOutError("it learned from these pictures, so its accuracy would be too high")
