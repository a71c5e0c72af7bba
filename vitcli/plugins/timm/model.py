"""Models of timm, and the weights that they start from. timm is imported when one is built.

Axes: B batch, C channels, H W pixels, N tokens (prefix first), D width, h num_heads,
K classes.
"""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from vitcli.core.models.image_model import (
    ImageModel,
    MappedModel,
    build_model,
    chosen_layers,
    hooked,
)
from vitcli.core.randomness import seed_of
from vitcli.core.spec import DataSpec, ExperimentSpec
from vitcli.plugins.timm.spec import MISSING, PREFIX, TimmSpec, timm_config
from vitcli.plugins.weights.tensors import order_classes, prefix_of, read_tensors, stated_settings
from vitcli.runner.data.find import is_offline
from vitcli.runner.errors import InputError
from vitcli.runner.evaluate.weights import PublishedWeights, encoder_weights
from vitcli.runner.run.folder import RunDir
from vitcli.runner.text import Listener, ignore_message, one_line, quantity

CAPTURED = {"Attention", "AttentionRope", "EvaAttention"}
"""Classes of timm whose attention is one matrix between all tokens."""
POOLS = {"token": "cls", "avg": "mean", "map": "seq"}
"""timm's pooling of tokens -> the row of ``POOLS`` that is like it."""


def create_net(spec: TimmSpec, seed: int = 0, **options: Any) -> Any:
    """Return timm's model of a name, with timm's random weights, for the sizes of the spec.

    Its ``arguments`` are those of ``create_model``, beside the options. torch's global generator
    stays as it is. A ValueError says what timm refuses.
    """
    try:
        import timm
    except ModuleNotFoundError as error:
        raise ValueError(MISSING) from error
    name = spec.name or ""
    if not timm.is_model(name):  # before create_model, which reads other names from the network
        raise ValueError(f"timm {timm.__version__} has no model {name!r}")
    sizes = {name: getattr(spec, name) for name in ("num_classes", "in_chans", "img_size")}
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        try:
            try:
                net: Any = timm.create_model(name, **sizes | options)
            except TypeError as error:
                if "img_size" not in str(error):
                    raise
                del sizes["img_size"]  # a net that takes any size has no such argument
                net = timm.create_model(name, **sizes | options)
        except (RuntimeError, ValueError, TypeError, LookupError, AssertionError) as error:
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            raise ValueError(f"timm refuses {name}: {reason}") from error
    net.arguments = {"model_name": name} | sizes
    return net


class TimmModel(MappedModel):
    """A model of timm: normalised images (B, C, H, W) -> timm's logits (B, K)."""

    spec: TimmSpec
    net: Any
    library_prefix = "net."

    def __init__(self, spec: TimmSpec) -> None:
        super().__init__(spec)
        with torch.device("meta"):
            self.net = create_net(spec)
        patch = getattr(getattr(self.net, "patch_embed", None), "patch_size", None) or 1
        patch = (patch, patch) if isinstance(patch, int) else patch
        height, width = self.image_shape[1:]
        if height % patch[0] or width % patch[1]:
            raise ValueError(
                f"{spec.name} has patches of {patch[0]}x{patch[1]} pixels, which do not divide"
                f" {height}x{width}; set data.resize"
            )
        kinds = {type(getattr(block, "attn", None)).__name__ for block in self._all_blocks()}
        has_maps = kinds and kinds <= CAPTURED and hasattr(self.net, "num_prefix_tokens")
        self.no_maps = None if has_maps else "has no attention between all patches"

    def initialise(self, seed: int | None = None) -> Self:
        """Fill the model with timm's initial weights, which depend only on the seed."""
        if torch.empty(0).is_meta:
            return self
        seed = int(torch.randint(2**62, ())) if seed is None else seed
        self.net = create_net(self.spec, seed_of("init", seed))
        return self

    def _all_blocks(self) -> Sequence[Any]:
        return [*getattr(self.net, "blocks", ())]

    @property
    def grad_checkpointing(self) -> bool:
        return self._recomputes

    @grad_checkpointing.setter
    def grad_checkpointing(self, value: bool) -> None:
        self._recomputes = value
        if value:
            self.net.set_grad_checkpointing(True)

    @property
    def head(self) -> nn.Module:  # type: ignore[override]
        found = self.net.get_classifier()
        return nn.ModuleList(found) if isinstance(found, tuple) else found

    @property
    def library_call(self) -> tuple[str, dict[str, Any]]:
        return "timm.create_model", self.net.arguments

    @property
    def num_features(self) -> int:
        return int(self.net.head_hidden_size)

    def parameter_layers(self) -> list[int]:
        from timm.models import group_parameters

        if not hasattr(self.net, "group_matcher"):
            return super().parameter_layers()
        layers = group_parameters(self.net, self.net.group_matcher(), reverse=True)
        return [layers[name] for name, _ in self.net.named_parameters()]

    def features(self, images: Tensor) -> Tensor:
        self.check_images(images)
        return self.net.forward_head(self.net.forward_features(images), pre_logits=True)

    def forward(self, images: Tensor) -> Tensor:
        self.check_images(images)
        return self.net(images)

    @property
    def has_attention_weights(self) -> bool:
        return self.no_maps is None

    @property
    def blocks(self) -> Sequence[Any]:
        """Return the blocks whose attention can be captured: all of the model, or none."""
        return self._all_blocks() if self.has_attention_weights else ()

    @property
    def num_heads(self) -> int:
        return int(self.blocks[0].attn.num_heads) if self.blocks else 0

    @property
    def num_prefix_tokens(self) -> int:
        return int(self.net.num_prefix_tokens) if self.blocks else 0

    @property
    def grid_size(self) -> tuple[int, int]:
        height, width = self.net.patch_embed.grid_size
        return height, width

    @property
    def pool_name(self) -> str:
        return POOLS[self.net.global_pool]

    @property
    def cls_token(self) -> Tensor | None:
        return self.net.cls_token if self.blocks and self.pool_name == "cls" else None

    def pool_weights(self, images: Tensor) -> Tensor:
        """Return the share of each token in the pooling: (B, N), rows sum to 1."""
        first = self.num_prefix_tokens
        count = first + self.grid_size[0] * self.grid_size[1]
        if self.pool_name == "seq":
            pool = self.net.attn_pool
            with hooked({"q": pool.q_norm, "k": pool.k_norm}) as found:
                self.net(images)
            return (found["q"] @ found["k"].mT * pool.scale).softmax(-1).mean((1, 2))
        read = torch.zeros(len(images), count, device=images.device)
        if self.pool_name == "mean":
            read[:, first:] = 1
        else:
            read[:, : 2 if hasattr(self.net, "dist_token") else 1] = 1
        return read / read.sum(1, keepdim=True)

    def forward_with_weights(
        self, images: Tensor, layers: Sequence[int] | None = None
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """Return the logits (B, K), and the attention weights that they depend on, by layer."""
        self.check_images(images)
        chosen = chosen_layers(layers, len(self.blocks))
        parts = [self.blocks[i].attn for i in chosen]
        fused = [part.fused_attn for part in parts]
        try:
            for part in parts:  # a fused attention never stores its weights
                part.fused_attn = False
            with hooked({i: self.blocks[i].attn.attn_drop for i in chosen}) as found:
                logits = self.net(images)
        finally:
            for part, value in zip(parts, fused, strict=True):
                part.fused_attn = value
        return logits, found

    def forward_with_features(self, images: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """Return the logits (B, K), and the features that they depend on.

        The features are the tokens (B, N, D) that enter the attention after ``layer`` blocks, or
        the head after the last block. Without attention weights, they are the last feature map,
        (B, D, H, W) or (B, H, W, D).
        """
        self.check_images(images)
        if self.no_maps:
            features = self.net.forward_features(images)
            if features.ndim != 4:
                raise ValueError(f"{self.spec.name} {self.no_maps}, and no feature map")
            return self.net.forward_head(features), features
        is_last = layer == len(self.blocks)
        with hooked({0: self.net.norm if is_last else self.blocks[layer].norm1}) as found:
            logits = self.net(images)
        return logits, found[0]

    def by_place(self, features: Tensor) -> Tensor:
        if features.ndim == 3:
            return super().by_place(features)
        is_last = features.shape[-1] == self.net.num_features
        return features if is_last else features.movedim(1, -1)


NET = TimmModel.library_prefix
HUB_FILE = "model.safetensors"


def first_file(spec: ExperimentSpec, offline: bool, on_message: Listener) -> Path | None:
    """Return the file that a model of timm starts from; None for a run or random weights."""
    model, init = spec.model, spec.train.init
    if not isinstance(model, TimmSpec):
        return None
    if init:
        return Path(init) if Path(init).is_file() else None
    return hub_file(model.name or "", offline, on_message) if model.pretrained else None


def hub_file(name: str, offline: bool, on_message: Listener) -> Path:
    """Return timm's published weights: the copy in the cache of the Hub, or a download."""
    import huggingface_hub as hub

    config = timm_config(name)
    place = config and config.hf_hub_id
    to_type = "a training takes a local file, too: --init FILE"
    if not place:
        raise InputError(f"{PREFIX}{name} has no weights on the Hugging Face Hub; {to_type}")
    hub_name = config.hf_hub_filename or HUB_FILE
    if cached := cached_file(config):
        return cached
    if is_offline(offline):
        raise InputError(f"{PREFIX}{name}: its weights are not on this computer; {to_type}")
    try:
        url = hub.hf_hub_url(place, hub_name)
        size = hub.get_hf_file_metadata(url).size or 0
        on_message(f"downloading {url} ({size:,} bytes) into the cache of huggingface_hub")
        return Path(hub.hf_hub_download(place, hub_name))
    except Exception as error:  # its HTTP library, and so its errors, differ between releases
        reason = one_line(str(error).strip().partition("\n")[0], 200)
        raise InputError(
            f"{PREFIX}{name}: its weights cannot be downloaded ({reason}); {to_type}"
        ) from error


def load_timm(
    model: ImageModel, source: RunDir | Path, on_message: Listener, class_names: Sequence[str]
) -> None:
    """Copy the weights of a run or file, which timm renames and resizes as it does for its own.

    The model keeps its own head if the source has another number of classes, or no head, or if it
    states classes of other names. Of the same names in another order, the head is brought into the
    order of the model; where a file states none, a note says which it may have.
    """
    assert isinstance(model, TimmModel)
    config, name = timm_config(model.spec.name or ""), f"{PREFIX}{model.spec.name}"
    own = model.state_dict()
    if isinstance(source, RunDir):
        found = encoder_weights(source, on_message=on_message)
        prefix, source_name = NET, source.name
    else:
        found, source_name = read_tensors(source), str(source)
        prefix = prefix_of(found, {key.removeprefix(NET) for key in own}, source, on_message)
    tensors = {k.removeprefix(prefix): v for k, v in found.items() if k.startswith(prefix)}
    first = config.first_conv if config else ()
    convs = [f"{name}.weight" for name in ([first] if isinstance(first, str) else first or ())]
    ours, theirs = ({k: v.shape for k, v in each.items()} for each in (own, tensors))
    fits = all(k in theirs and theirs[k] == ours.get(NET + k) for k in convs)
    # timm before 1.0.31 takes them for weights of 3 channels, and draws those of others anew
    unchanged = {"first_conv": None} if fits else {}
    heads = (key.removeprefix(NET) for key in model.head_names if key.endswith(".weight"))
    sizes = [len(tensors[key]) for key in heads if key in tensors and tensors[key].ndim]
    problem: ValueError | None = None
    for count in dict.fromkeys([*sizes, config.num_classes if config else 0, 0]):
        head: dict[str, Any] = {"num_classes": count}
        head["pretrained_cfg_overlay"] = head | unchanged | {"state_dict": dict(tensors)}
        try:
            theirs = create_net(model.spec, pretrained=True, **head).state_dict()
            break
        except ValueError as error:
            problem = problem or error
    else:
        raise InputError(f"{source_name} is not {name}: {problem}")
    state = {NET + key: tensor for key, tensor in theirs.items()}
    differs = {k for k in own if k not in state or state[k].shape != own[k].shape}
    if isinstance(source, RunDir):
        stated = source.spec().data.class_names
    else:
        stated = stated_settings(source).get("classes")
    if class_names and stated and sorted(stated) != sorted(class_names):
        differs |= model.head_names
    if differs - model.head_names:
        raise InputError(f"{source_name} is not {name}: {min(differs - model.head_names)} differs")
    if not all(tensor.isfinite().all() for tensor in state.values()):
        raise InputError(f"{source_name} has values that are not finite")
    if class_names and not differs:
        head = {name: state[name] for name in model.head_names}
        advice = "train another head: -s train.init_head=probe"
        state |= order_classes(head, class_names, stated, None, advice, on_message)
    model.load_state_dict(own | {k: state[k] for k in own if k not in differs})
    new = f"; the head for {quantity(model.num_classes, 'class')} is new" if differs else ""
    on_message(f"weights: {source_name}, read as {name}{new}")


def published_model(
    name: str, offline: bool, on_message: Listener
) -> tuple[ExperimentSpec, ImageModel]:
    """Return timm's published weights as a model; it classifies if timm names its classes."""
    from timm.data import ImageNetInfo, infer_imagenet_subset

    file = hub_file(name, offline, on_message)
    config = timm_config(name)
    channels, *size = config.input_size
    count = config.num_classes or 1
    subset = infer_imagenet_subset({"num_classes": count})
    names = tuple(ImageNetInfo(subset).label_descriptions()) if subset else None
    shape = {"img_size": tuple(size), "in_chans": channels, "num_classes": count}
    data = DataSpec(mean=tuple(config.mean), std=tuple(config.std), class_names=names)
    spec = ExperimentSpec(model=TimmSpec(name=name, **shape), data=data)
    model = build_model(spec.model, seed=0).eval()
    load_timm(model, file, ignore_message, ())
    on_message(f"model {PREFIX}{name}")
    return spec, model


def cached_file(config: Any) -> Path | None:
    """Return the weights of a configuration of timm, if they are in the cache of the Hub."""
    import huggingface_hub as hub

    place = config and config.hf_hub_id
    file = place and hub.try_to_load_from_cache(place, config.hf_hub_filename or HUB_FILE)
    return Path(file) if isinstance(file, str) else None


def names_here() -> list[str]:
    """Return the models whose published weights are in the cache of the Hub, by whole name."""
    if find_spec("timm") is None:
        return []
    from huggingface_hub import constants

    if not any(Path(constants.HF_HUB_CACHE).glob("models--*")):
        return []  # timm takes seconds to import
    import timm

    return [name for name in timm.list_pretrained() if cached_file(timm.get_pretrained_cfg(name))]


def download_bytes(name: str) -> int:
    """Return the bytes of a model's weights in fp32; 0 if they are in the cache of the Hub."""
    if cached_file(timm_config(name)):
        return 0
    with torch.device("meta"):
        parameters = create_net(TimmSpec(name=name)).parameters()
    return sum(4 * parameter.numel() for parameter in parameters)


WEIGHTS = PublishedWeights(
    first_file=first_file,
    load=load_timm,
    model=published_model,
    here=names_here,
    download_bytes=download_bytes,
)
