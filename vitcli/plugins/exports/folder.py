"""Export of a model as a folder that classifies pictures without vitcli and torch."""

import json
from pathlib import Path
from typing import Any

import torch

from vitcli.core.spec.data import DEPTH_FIELDS
from vitcli.plugins.exports import export, recipe
from vitcli.runner.errors import ConfigError, require_packages
from vitcli.runner.files import commit, make_output_folder, require_utf8, scratch_folder, sha256
from vitcli.runner.run.folder import RunDir

SUMS = "SHA256SUMS"
"""The hashes of the other files, as ``sha256sum --check`` reads them."""
USE = """
## Use

```
pip install -r requirements.txt
python recipe.py photo.jpg
```

`recipe.py` prints the file, the likeliest class and its probability. All that it needs to know of
the model stands in the metadata of `model.onnx`.
"""


def export_folder(run: RunDir, folder: Path, *, check: bool = True) -> dict[str, Any]:
    """Write a folder with an ONNX model, its labels, its card and the recipe that uses the model.

    Returns the paths of the ``files``, the ``bytes`` of the model and the largest ``difference`` of
    the logits from those of the trained model; None without ``check``.

    Raises:
        ConfigError: The model does not classify pictures, or a file in the folder is not as an
            export wrote it.
        CheckError: The difference is above its limit.
    """
    form, card = export.FORMATS["onnx"], export.FORMATS["card"]
    for needed in (form, card):
        require_packages("--to", needed.packages, needed.extra)
    require_utf8(folder)
    model = export.load_trained(run)
    names, steps = model.spec.data.class_names, model.preprocessing()
    can_read = model.classifies and names and model.spec.data.mean and recipe.can_follow(steps)
    if not can_read:
        fields = steps.keys() & {*DEPTH_FIELDS}
        unread = f"does not read pictures with data.{min(fields)}" if fields else ""
        raise ConfigError(
            f"{run.name}: --to {unread or 'takes a model that classifies grey or RGB pictures'};"
            f" for other programs, type: {run.command('export --format onnx')}"
        )
    difference = None
    with scratch_folder() as scratch, torch.no_grad():
        draft, readme = scratch / "model.onnx", scratch / "README.md"
        facts = form.write(model, draft)
        card.write(model, readme)
        if check and form.read:
            difference = export.compare(model, form.read, draft, folder)
        contents = {
            "README.md": readme.read_bytes() + USE.encode(),
            "labels.json": (json.dumps(names, indent=1) + "\n").encode(),
            "requirements.txt": b"numpy\nonnxruntime\npillow\n",
            "recipe.py": Path(recipe.__file__).read_bytes(),
            "model.onnx": draft.read_bytes(),
        }
    hashes = {name: sha256(content) for name, content in contents.items()}
    require_unedited(folder, hashes)
    make_output_folder(folder, "--to")
    sums = "".join(f"{digest}  {name}\n" for name, digest in hashes.items()).encode()
    for name, content in (contents | {SUMS: sums}).items():
        commit(folder / name, content)
    return {
        "files": [folder / name for name in (*contents, SUMS)],
        "bytes": len(contents["model.onnx"]),
        "difference": difference,
    } | facts


def require_unedited(folder: Path, hashes: dict[str, str]) -> None:
    """Refuse a folder in which a file is neither what an export wrote nor what this one writes."""
    sums, files = folder / SUMS, [name for name in hashes if (folder / name).exists()]
    try:
        lines = sums.read_text().splitlines() if sums.exists() else []
        written = {name: digest for digest, name in (line.split(maxsplit=1) for line in lines)}
        found = {name: sha256((folder / name).read_bytes()) for name in files}
    except (OSError, ValueError) as error:
        raise ConfigError(f"{sums}: cannot be replaced: {error}") from error
    edited = [name for name in files if found[name] not in (hashes[name], written.get(name))]
    if edited := edited or [SUMS] * bool(written.keys() - hashes.keys()):
        raise ConfigError(
            f"{folder / edited[0]}: this file is not as an export wrote it; move it, or choose"
            " another folder with --to"
        )
