"""Decorators that add your own parts to vitcli: attention, FFN, norm, model, objective and others.

    # sigmoid.py
    import torch
    from vitcli.parts import attention

    @attention(about="sigmoid instead of softmax (Ramapuram et al. 2024)", time="N^2")
    class Sigmoid(torch.nn.Module):
        def __init__(self, shape, *, bias: float = -4.0):
            super().__init__()
            self.scale, self.bias = shape.head_dim**-0.5, bias

        def forward(self, q, k, v):
            return torch.sigmoid(q @ k.mT * self.scale + self.bias) @ v

An experiment names the file and the part:

    code: [sigmoid.py]
    model: {attention: {name: Sigmoid, bias: -3}}

The name of a part is that of its class or function. Options are the keyword-only parameters, whose
annotations and defaults are checked like any field. A parameter of a reserved name receives a field
of the model instead; each decorator lists these names.

Axes: B batch, C channels, H W pixels, N tokens (prefix first), D embed_dim, h heads, d = D / h,
K classes. ``shape`` is a TokenShape with embed_dim, num_heads, head_dim, num_tokens, grid_size and
num_prefix_tokens.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal, TypeVar

from torch import Tensor

from vitcli.core.metric import ACCURACY, MAX_NUMBER, METRICS, Metric, bare_name, metric_of
from vitcli.core.models.own import OwnModel
from vitcli.core.nn.attention import Position
from vitcli.core.objectives.classify import Classify
from vitcli.core.objectives.objective import Task as Objective
from vitcli.core.objectives.own import OwnTaskSpec, task_of
from vitcli.core.spec import FAMILIES, OPTIMIZERS, SCHEDULES, TASKS, ModelSpec, OptimSpec, Spec
from vitcli.core.spec.data import DATA_READERS, POLICIES, DataReader, PolicyRow
from vitcli.core.spec.families import FamilyRow
from vitcli.core.spec.optim import OptimizerRow
from vitcli.core.spec.own import (
    OwnPartError,
    add_row,
    first_line,
    new_spec,
    options_of_signature,
    parameters_of,
    source_of,
)
from vitcli.core.spec.rows import Row
from vitcli.core.spec.slots import (
    ATTENTIONS,
    FFNS,
    NORMS,
    PATCH_EMBEDS,
    POOLS,
    POS_EMBEDS,
    UNSTATED,
    AttentionRow,
    FfnRow,
    NormRow,
    PatchEmbedRow,
    PoolRow,
    PosEmbedRow,
)
from vitcli.core.spec.task import TaskRow
from vitcli.core.train.optim import own_optimizer

__all__ = [
    "Classify",
    "Objective",
    "Position",
    "attention",
    "augmentation",
    "data_set",
    "ffn",
    "metric",
    "model",
    "norm",
    "objective",
    "optimizer",
    "patch_embed",
    "pool",
    "pos_embed",
    "schedule",
]

Part = TypeVar("Part", bound=Callable[..., Any])


def _part(
    table: Any, build: Part | None, name: str, make_row: Callable[[Part, str], Row | Metric]
) -> Any:
    """Add a part to a table, or return a decorator that does."""

    def add(build: Part) -> Part:
        part = name or build.__name__
        add_row(table, make_row(build, part), part)
        return build

    return add if build is None else add(build)


def _slot(
    table: Any,
    kind: type[Row],
    build: Part | None,
    name: str,
    about: str,
    skip: int,
    reserved: Mapping[str, str] | None = None,
    facts: Callable[[Part], dict[str, Any]] | None = None,
    **fixed: Any,
) -> Any:
    def make_row(build: Part, part: str) -> Row:
        passed = {k: v for k, v in (reserved or {}).items() if k in parameters_of(build)}
        fields = options_of_signature(build, skip, passed)
        row: dict[str, Any] = {
            "build": build,
            "about": about or first_line(build),
            "options": passed,
            "own": new_spec(build.__name__, __base__=Spec, **fields),
            "source": source_of(build, part),
        }
        return kind(**row | fixed | (facts(build) if facts else {}))

    return _part(table, build, name, make_row)


def attention(
    build: Part | None = None,
    *,
    name: str = "",
    about: str = "",
    time: str = UNSTATED,
    memory: str = UNSTATED,
    takes_bias: bool = False,
    needs_grid: bool = False,
) -> Any:
    """Add an attention rule: a module of ``(shape, *, options)``.

    ``forward(q, k, v)`` maps three tensors (B, h, N, d) to one. A method ``weights(q, k)`` that
    returns (B, h, N, N) with rows that sum to 1 gives attention maps. Reserved: ``dropout``
    (``model.attn_drop``).

    Args:
        time: Growth of the time with the number of tokens, such as ``N^2``.
        memory: Growth of the memory.
        takes_bias: Whether ``forward`` and ``weights`` take a bias of the scores, (1, h, N, N), as
            their last argument, as ``pos_embed: relative`` needs.
        needs_grid: Whether the rule works only with all patches of the grid of ``shape``.
    """
    costs = {"time": time, "memory": memory}
    needs = {"takes_bias": takes_bias, "needs_grid": needs_grid}

    def facts(build: Part) -> dict[str, Any]:
        return {"has_attention_matrix": hasattr(build, "weights"), **costs, **needs}

    return _slot(ATTENTIONS, AttentionRow, build, name, about, 1, {"dropout": "attn_drop"}, facts)


def ffn(
    build: Part | None = None, *, name: str = "", about: str = "", needs_grid: bool = False
) -> Any:
    """Add a feed-forward network: a module of ``(shape, *, options)``, (B, N, D) -> (B, N, D).

    Reserved: ``hidden_dim`` (from ``model.mlp_ratio``), ``dropout`` (``model.proj_drop``).
    """
    reserved = {"hidden_dim": "hidden_dim", "dropout": "proj_drop"}
    return _slot(FFNS, FfnRow, build, name, about, 1, reserved, needs_grid=needs_grid)


def norm(
    build: Part | None = None, *, name: str = "", about: str = "", is_batch_norm: bool = False
) -> Any:
    """Add a normalisation: a module of ``(dim, *, options)``, (B, N, D) -> (B, N, D).

    Reserved: ``eps`` (``model.norm_eps``). ``is_batch_norm`` states that the output for an image
    depends on the other images of its batch.
    """
    reserved = {"eps": "norm_eps"}
    return _slot(NORMS, NormRow, build, name, about, 1, reserved, is_batch_norm=is_batch_norm)


def pos_embed(build: Part | None = None, *, name: str = "", about: str = "") -> Any:
    """Add a position embedding of ``(shape, *, options)``.

    Either a module without inputs that returns the table (1, N, D) that is added to the tokens, or
    a subclass of ``Position``, which changes q and k or adds a bias to the scores of each block.
    """

    def facts(build: Part) -> dict[str, Any]:
        if not (isinstance(build, type) and issubclass(build, Position)):
            return {}
        no_table = f"{build.__name__} acts inside attention and has no table of positions"
        positions = {"heads": build, "biases_scores": build.biases_scores, "no_table": no_table}
        return {"build": None, **positions}

    return _slot(POS_EMBEDS, PosEmbedRow, build, name, about, 1, None, facts)


def patch_embed(
    build: Part | None = None, *, name: str = "", about: str = "", has_batch_norm: bool = False
) -> Any:
    """Add a patch embedding: a module of ``(in_chans, patch_size, embed_dim, *, options)``.

    It maps images (B, C, H, W) to tokens (B, H W / patch_size^2, D) in reading order. Reserved:
    ``bias`` (``model.patch_bias``).
    """
    facts: dict[str, Any] = {"reserved": {"bias": "patch_bias"}, "has_batch_norm": has_batch_norm}
    return _slot(PATCH_EMBEDS, PatchEmbedRow, build, name, about, 3, **facts)


def pool(
    build: Part | None = None, *, name: str = "", about: str = "", has_cls_token: bool = False
) -> Any:
    """Add a pooling: a module of ``(shape, *, options)``, (B, N, D) -> (B, D).

    A method ``weights(tokens)`` that returns the share of each token, (B, N), gives attention maps.
    ``has_cls_token`` puts a CLS token before the patches.
    """
    facts: dict[str, Any] = {"has_cls_token": has_cls_token, "reads": "your own read-out"}
    return _slot(POOLS, PoolRow, build, name, about, 1, **facts)


def schedule(build: Part | None = None, *, name: str = "", about: str = "") -> Any:
    """Add a schedule of the learning rate: ``(progress, *, options)`` -> a share of the peak rate.

    ``progress`` goes from 0 after the warm-up to 1 at the end.
    """
    return _slot(SCHEDULES, Row, build, name, about, 1)


def augmentation(
    build: Part | None = None, *, name: str = "", about: str = "", draws: int = 0
) -> Any:
    """Add an augmentation, for ``data.augment.policy``: ``(images, draws, *, options)`` -> images.

    Images are float32 (B, C, H, W) in [0, 1] on the device. ``draws`` are (B, ``draws``) uniform
    random numbers in [0, 1), which depend on seed, epoch and image only. Take all randomness from
    them, so that a resumed training sees the same images.
    """
    return _slot(POLICIES, PolicyRow, build, name, about, 2, draws=draws)


def optimizer(
    build: Part | None = None, *, name: str = "", about: str = "", state_copies: float = 1
) -> Any:
    """Add an optimiser: a subclass of ``torch.optim.Optimizer`` of ``(params, lr, *, options)``.

    Its groups have ``lr`` and ``weight_decay``. Reserved: the fields of ``optim`` such as
    ``betas``, ``eps`` and ``momentum``; a default of the class for one of them is not used.
    ``state_copies`` is the number of values that it stores for each parameter.
    """
    fields = {field: field for field in OptimSpec.model_fields if field != "name"}

    def facts(build: Part) -> dict[str, Any]:
        taken = [p for p in [*parameters_of(build).values()][2:] if p.name in fields]
        given = tuple(p.name for p in taken if p.name != "weight_decay")
        defaults = {p.name: p.default for p in taken if p.default is not p.empty}
        made = partial(own_optimizer, build, given)
        return {"build": made, "options": {}, "defaults": defaults}

    row = OptimizerRow
    return _slot(OPTIMIZERS, row, build, name, about, 2, fields, facts, state_copies=state_copies)


def data_set(build: Part | None = None, *, name: str = "", about: str = "") -> Any:
    """Add a data set, for ``data.name: NAME:TEXT``: a function of the text after the colon.

    It returns NumPy arrays by name: ``train_images`` and ``test_images``, uint8 (N, H, W) or
    (N, H, W, C), ``train_labels`` and ``test_labels``, integers (N,); or ``images`` and ``labels``,
    of which a fifth is held out. It must return the same for the same text.
    """

    def make_row(build: Part, part: str) -> DataReader:
        return DataReader(
            about=about or first_line(build),
            build=build,
            example=f"{part}:TEXT",
            is_path=False,
            source=source_of(build, part),
        )

    return _part(DATA_READERS, build, name, make_row)


def model(
    build: Part | None = None, *, name: str = "", about: str = "", has_batch_norm: bool = False
) -> Any:
    """Add a model, for ``model.family``: a module of ``(*, img_size, in_chans, num_classes, ...)``.

    ``forward`` maps normalised images (B, C, H, W) to logits (B, K). The layer that makes the
    logits is its attribute ``head`` and is called last. Options are fields of ``model``.
    """

    def make_row(build: Part, part: str) -> FamilyRow:
        sizes, taken = ("img_size", "in_chans", "num_classes"), {"family", *dir(ModelSpec)}
        fields = options_of_signature(build, 0, sizes, taken)
        fields["family"] = (Literal[part], part)
        spec = new_spec(build.__name__, __base__=ModelSpec, **fields)
        spec.is_own, spec.has_blocks, spec.is_convolutional = True, False, has_batch_norm
        options = tuple(field for field in fields if field != "family")
        return FamilyRow(
            about=about or first_line(build),
            build=partial(OwnModel, build=build, options=options),
            spec=spec,
            source=source_of(build, part),
        )

    return _part(FAMILIES, build, name, make_row)


def metric(
    build: Part | None = None,
    *,
    name: str = "",
    label: str = "",
    unit: str = "",
    higher_is_better: bool = True,
) -> Any:
    """Add a metric of every classification: ``(logits, labels)`` -> a number, or None.

    Logits are (N, K) float64 and labels (N,) int64, on the CPU; both are copies. With the unit
    ``%`` it returns a share, which is shown in percent. NaN, infinity and numbers from 1e300 on
    count as None. The name may not be that of another metric behind ``train_``, ``val_`` or
    ``test_``.
    """

    def make_row(build: Part, part: str) -> Metric:
        bare = bare_name(part)
        if bare != part and metric_of(bare):
            raise ValueError(f"{part} is the {bare} of a split in a run's files; rename the metric")
        return Metric(
            name=part,
            label=label or part.replace("_", " "),
            scale=100 if unit == "%" else 1,
            unit=unit,
            digits=2 if unit == "%" else 4,
            short_digits=1 if unit == "%" else None,
            higher_is_better=higher_is_better,
            of_logits=partial(_as_number, build, part),
            source=source_of(build, part),
        )

    return _part(METRICS, build, name, make_row)


def _as_number(
    build: Callable[..., Any], name: str, logits: Tensor, labels: Tensor
) -> float | None:
    value = build(logits.clone(), labels.clone())
    if value is None:
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, RuntimeError) as error:
        text = f"metric {name} returned {type(value).__name__}, not one number"
        raise OwnPartError(build, text) from error
    return number if abs(number) < MAX_NUMBER else None


def objective(
    build: Part | None = None,
    *,
    name: str = "",
    about: str = "",
    headline: Metric = ACCURACY,
    reports: tuple[str, ...] | None = None,
    recorded: tuple[str, ...] | None = None,
    uses_labels: bool = True,
) -> Any:
    """Add an objective, for ``task.name``: a loss function, or a subclass of ``Objective``.

    A function ``(logits, targets, *, options)`` returns the loss of a classification. Logits are
    float32 (B, K); targets are class indices (B,), or shares (B, K) with MixUp or CutMix. The
    options of a class are its annotated attributes. ``Classify`` is the objective to start from.

    Args:
        headline: Metric that tables compare.
        reports: Names of the numbers that ``losses`` returns.
        recorded: Names of the numbers that ``measure`` returns and metrics.jsonl records.
        uses_labels: Whether the training reads labels.
    """

    def make_row(build: Part, part: str) -> TaskRow:
        task, options = task_of(build)
        fields: dict[str, Any] = {"name": (Literal[part], part), **options}
        classifies = issubclass(task, Classify)
        numbers = recorded or (("loss", "accuracy") if classifies else ())
        return TaskRow(
            about=about or first_line(build),
            build=task,
            spec=new_spec(build.__name__, __base__=OwnTaskSpec, **fields),
            headline=headline,
            reports=reports or (("loss", "accuracy") if classifies else ("loss",)),
            recorded=(*(number for number in numbers if number != headline.name), headline.name),
            uses_labels=uses_labels,
            classifies=classifies,
            source=source_of(build, part),
        )

    return _part(TASKS, build, name, make_row)
