"""The models to choose from: trained runs, bundled models, and published weights."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from vitcli.core.data.source import DataSet
from vitcli.core.models.image_model import ImageModel
from vitcli.core.spec import FAMILIES, GENERATED, DataSpec, ExperimentSpec
from vitcli.core.spec.data import READ_FIELDS
from vitcli.runner.data.catalogue import IN_CHANS
from vitcli.runner.data.find import is_offline, own_path
from vitcli.runner.errors import InputError, UserError
from vitcli.runner.evaluate.weights import load_module, published_weights
from vitcli.runner.experiment.build import encoder_of
from vitcli.runner.experiment.family import split_published
from vitcli.runner.run.folder import RunDir, bundled_models, find_run, list_runs
from vitcli.runner.run.record import read_record
from vitcli.runner.run.split import labelled_runs, read_sides
from vitcli.runner.text import Listener, size_text


class LeftOutError(InputError):
    """A model that cannot take part; the message says why."""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A trained model with its preprocessing."""

    name: str
    spec: ExperimentSpec
    """Its sizes, ``data.mean``, ``data.std`` and READ_FIELDS are those of the model's pictures."""
    module: nn.Module
    run: RunDir | None
    """None for published weights."""

    def fit(self, changes: Mapping[str, Any]) -> str:
        return str(changes.get("data.fit") or self.spec.data.fit)

    def preprocessing(self, asked: DataSpec, changes: Mapping[str, Any]) -> DataSpec:
        """Return the data as this model reads them: all training images, in its size and scale."""
        mine, size = self.spec.data, self.spec.model.img_size
        fields: dict[str, Any] = {"resize": size, "mean": mine.mean, "std": mine.std}
        if own_path(asked.name):
            fields |= {
                name: getattr(asked if f"data.{name}" in changes else mine, name)
                for name in READ_FIELDS
            }
        return asked.replace(**fields, folds=None)

    @property
    def encoder(self) -> ImageModel:
        return encoder_of(self.spec, self.module)

    def has_learned(self, data: DataSet) -> bool | None:
        """Return whether it, or a run that it started from, was trained on the labels of these
        training images; None if the runs do not say which pictures they learned from.
        """
        try:
            for run in labelled_runs(self.run) if self.run else ():
                if run is None:
                    return None
                sides, name = read_sides(run) if data.contents else None, run.spec().data.name
                if read_record(run).data_hash == data.data_hash:
                    return True
                if sides is not None:  # also of the runs that this one started from
                    return any(sides.get(data.contents[n]) == "train" for n in data.train.names)
                if name == data.name:
                    return True
                if data.contents and own_path(name):
                    return None
        except UserError:
            return None
        return False


def known_models() -> list[str]:
    """Return the bundled models, the runs below runs/, and the published weights on this machine.

    Trials of studies are left out, and runs on a generated data set, which know no real pictures.
    """
    names = bundled_models()
    for run in list_runs():
        record = read_record(run)
        is_real = not record.variant and record.meta.get("data") not in GENERATED
        if record.state == "finished" and is_real:
            names.append(run.name)
    for family, row in FAMILIES.items():
        if row.weights and (weights := published_weights(family)):
            names += [f"{family}:{name}" for name in weights.here()]
    return names


def load_candidates(
    names: Sequence[str] | None, left_out: dict[str, str], offline: bool, on_message: Listener
) -> Iterator[Candidate]:
    """Yield the models of these names, by default all on this machine.

    ``left_out`` gets the name of each that cannot take part, and why. What is wrong with a model
    that was named is an error, unless its weights would have to be downloaded.
    """
    for name in dict.fromkeys(known_models() if names is None else names):
        try:
            candidate = _load(name, offline, on_message)
            if names is None and candidate.spec.model.in_chans != IN_CHANS:
                raise LeftOutError("it reads no colours; --models takes it")
        except UserError as error:
            if names is not None and not isinstance(error, LeftOutError):
                raise
            left_out[name] = str(error).partition("\n")[0]
        else:
            yield candidate


def _load(name: str, offline: bool, on_message: Listener) -> Candidate:
    published = split_published(name)
    if published is None:
        run = find_run(name)
        spec = run.spec()
        module = load_module(run, spec, on_message=on_message)
        spec = spec.replace(train=spec.train.replace(limit_batches=None))
        return Candidate(name=name, spec=spec, module=module, run=run)
    weights = published_weights(published[0])
    assert weights
    if is_offline(offline) and (size := weights.download_bytes(published[1])):
        about = size_text(size)
        raise LeftOutError(f"its weights are not on this machine; a download has about {about}")
    spec, model = weights.model(published[1], offline, on_message)
    return Candidate(name=name, spec=spec, module=model, run=None)
