"""The names of tensors in a file, and the names of the same tensors in vitcli."""

from collections.abc import Collection
from dataclasses import dataclass, replace

from vitcli.runner.weights.unpickle import AVERAGED

PREFIXES = ("module.", "_orig_mod.", "model.", "net.", "backbone.")
"""Prefixes that DistributedDataParallel, torch.compile and wrappers add to every name."""
TIMM = (
    ("patch_embed.proj.", "patch_embed.0.proj."),
    ("pos_embed", "pos_embed.table"),
    ("reg_token", "reg_tokens"),
    (".attn.", ".attn.inner."),
    (".mlp.", ".ffn.inner."),
    (".norm1.", ".attn.norm."),
    (".norm2.", ".ffn.norm."),
    (".ls1.", ".attn.after.0."),
    (".ls2.", ".ffn.after.0."),
)
"""Parts of names in timm's VisionTransformer and in vitcli, in the order of replacement."""
TIMM_STARTS = ("patch_embed.proj.", "blocks.0.norm1.")
"""Only names of timm start like this."""
PATCHES = ("patch_embed.proj.weight", "patch_embed.0.proj.weight")
"""The patch embedding in timm and in vitcli, of which a model has one."""


@dataclass(frozen=True)
class Naming:
    """A translation between the names in a file and the names in vitcli."""

    prefix: str = ""
    is_timm: bool = False
    several: tuple[str, ...] = ()
    """The prefixes of the models, if there are several and none of them is the average."""

    def to_vitcli(self, name: str) -> str:
        """Return the name in vitcli of a tensor of the file."""
        name = name.removeprefix(self.prefix)
        for theirs, ours in TIMM if self.is_timm else ():
            name = name.replace(theirs, ours)
        return name

    def to_file(self, name: str) -> str:
        for theirs, ours in reversed(TIMM) if self.is_timm else ():
            name = name.replace(ours, theirs)
        return self.prefix + name


def naming_of(names: Collection[str]) -> Naming:
    """Return the translation for the tensors of a file, from their names.

    The prefix is that of the patch embedding. Tensors without this prefix are no part of the
    model. Of several models, the average is chosen.
    """
    models = sorted({prefix for name in names if (prefix := _prefix(name)) is not None})
    averaged = [prefix for prefix in models if AVERAGED.search(prefix)]
    if len(models) == 1 or len(averaged) == 1:
        prefix = (averaged if len(averaged) == 1 else models)[0]
        inside = [name.removeprefix(prefix) for name in names if name.startswith(prefix)]
        return Naming(prefix, is_timm=any(name.startswith(TIMM_STARTS) for name in inside))
    if models:
        return Naming(several=tuple(models))
    for prefix in PREFIXES:
        if names and all(name.startswith(prefix) for name in names):
            inner = naming_of([name.removeprefix(prefix) for name in names])
            return replace(inner, prefix=prefix + inner.prefix)
    return Naming(is_timm=any(name.startswith(TIMM_STARTS) for name in names))


def _prefix(name: str) -> str | None:
    """Return what stands before the patch embedding in its name; None for other tensors."""
    starts = [name.removesuffix(end) for end in PATCHES if name.endswith(end)]
    return next((start for start in starts if not start or start.endswith(".")), None)
