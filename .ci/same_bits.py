"""Show that two versions of vitcli compute the same bits.

    python .ci/same_bits.py OLD NEW [--only WORD] [--work FOLDER]
    python .ci/same_bits.py --record FILE CHECKOUT
    python .ci/same_bits.py --against FILE CHECKOUT

Moving and renaming code must not change results. Each case runs a few commands in a new folder,
once with the code of each checkout. All commands use the Python of this process, which needs the
dependencies of vitcli. Cases use only the command line, ``import vitcli`` and the files of a run,
so any two versions can be compared.

The following become named values, which must all be equal: tensors of the last checkpoint, metrics,
predictions, JSON and tables of the commands, and pixels of the maps. Prose, times, speeds, dates,
commits, versions, HTML pages and files of TensorBoard are not compared. Differences in the schema,
in drawn figures and in fields that one configuration lacks are printed as notes only.

``--against`` refuses values of another torch, CPU or number of threads, because these round
differently. The exit code is 1 if a value differs or a command has an unexpected exit code.
"""

import argparse
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import yaml
from PIL import Image

Values = dict[str, str]
Pairs = Iterator[tuple[str, str]]


class Case(NamedTuple):
    """Commands that run in a new folder with an experiment exp.yaml of these fields."""

    name: str
    fields: str
    commands: list[str]


UNCOMPARED = re.compile(
    r".*seconds.*|.*per_second.*|images/s|.*time.*|.*sha256|date|commits?|dirty|started|vitcli"
    r"|torch|python|platform|hardware|path|place|decoded|detail|question|description|note|notes"
    r"|reason|text|claim|measured|threads|.*omp_num_threads"
)
"""Names of fields and columns that vary between calls or contain prose."""
OFTEN_ONE_SIDED = {"config", "base_config"}
NOTED = {"figure", "schema"}

PLAIN = "embed_dim=32 depth=2 num_heads=2 patch_size=8 mlp_ratio=2.0"
SWIN = "family=swin embed_dim=16 num_heads=2 patch_size=2 depths=[2,1] pos_embed=relative pool=mean"
COATNET = (
    "family=coatnet embed_dim=8 num_heads=1 patch_size=4 stem_width=8 depths=[1,1,1] layout=CTT"
    " pos_embed=relative pool=mean"
)
PIT = "family=pit embed_dim=16 num_heads=2 patch_size=4 depths=[1,2]"
FOLDER = "data.name=imagefolder:images data.resize=32 train.batch_size=8"
TRAININGS = {
    "vit/plain": PLAIN,
    "vit/linformer-heads": f"{PLAIN} attention=linformer linformer_rank=8 pos_embed=sincos2d"
    " pool=mean aug.flip=random aug.crop_padding=2",
    "vit/linformer-none": f"{PLAIN} attention=linformer linformer_rank=8 linformer_share=none"
    " pos_embed=rope2d pool=seq head=mlp optim.name=adam",
    "vit/linformer-kv": f"{PLAIN} attention=linformer linformer_rank=8 linformer_share=kv"
    " attn_clamp=true pos_embed=sincos1d reg_tokens=2 train.precision=bf16",
    "vit/performer": f"{PLAIN} attention=performer performer_features=16 performer_redraw=2"
    " pos_embed=rope2d pool=mean train.ema_decay=0.9",
    "vit/performer-scale": f"{PLAIN} attention=performer layer_scale_init=0.1 attn_scale=learned"
    " train.precision=bf16 init=xavier_normal",
    "vit/linear": f"{PLAIN} attention=linear pos_embed=none reg_tokens=1 pos_embed_prefix=true"
    " ffn=swiglu aug.flip=alternating",
    "vit/strided": f"{PLAIN} attention=strided patch_size=4 pos_embed_prefix=true norm=rms_norm"
    " attn_scale=embed_dim optim.name=sgd optim.nesterov=true optim.lr=0.05",
    "vit/local": f"{PLAIN} attention=local patch_size=4 pool=mean reg_tokens=2 attn_drop=0.1"
    " attn_window=5 aug.erasing=0.5",
    "vit/relative-post": f"{PLAIN} pos_embed=relative norm_position=post attn_drop=0.1"
    " proj_drop=0.1 pos_drop=0.1 train.grad_checkpointing=true",
    "vit/conv-stem": f"{PLAIN} patch_embed=conv_stem stem_width=8 norm=batch_norm pool=mean"
    " aug.mixup=0.8",
    "vit/conv-tokenizer": f"{PLAIN} patch_embed=conv_tokenizer pool=seq init=mimetic"
    " patch_post_norm=true aug.cutmix=1.0 optim.name=muon",
    "vit/conv": f"{PLAIN} patch_embed=conv norm=none ffn=relu aug.policy=rand_augment",
    "vit/no-biases": f"{PLAIN} patch_pre_norm=true patch_post_norm=true patch_bias=false"
    " qkv_bias=false proj_bias=false attn_proj=false aug.policy=trivial_augment",
    "vit/no-residual": f"{PLAIN} ffn=none residual=none init=xavier_normal train.accumulate=2",
    "vit/drop-path": f"{PLAIN} drop_path=0.3 layer_scale_init=0.1 attn_scale=embed_dim"
    " attn_clamp=true train.label_smoothing=0.1 train.kernels=torch",
    "vit/final-norm": f"{PLAIN} norm_position=post final_norm=true norm_eps=1.0e-5 ffn=swiglu"
    " mlp_dim=48 optim.schedule=linear optim.warmup_epochs=0.5 optim.min_lr_ratio=0.1",
    "vit/rms-post": f"{PLAIN} norm_position=post norm=rms_norm final_norm=false head=mlp"
    " optim.schedule=constant optim.max_grad_norm=null optim.decay_all=true",
    "vit/no-blocks": f"{PLAIN} depth=0 head=mlp pool=mean optim.name=sgd",
    "vit/oblong": f"{PLAIN} data.resize=[16,24] pos_embed=sincos2d data.val_split=500"
    " train.eval_every=2 seed=7",
    "vit/all-at-once": f"{PLAIN} aug.mixup=0.8 aug.cutmix=1.0 aug.mix_off_epoch=1 aug.mix_prob=0.8"
    " aug.policy=rand_augment aug.rand_num_ops=1 aug.erasing=0.3 aug.flip=random train.accumulate=2"
    " drop_path=0.2 train.ema_decay=0.99 train.precision=bf16 train.grad_checkpointing=true",
    "vit/auto": f"{PLAIN} pool=mean train.precision=auto train.kernels=auto",
    "vit/compiled": f"{PLAIN} depth=1 train.compile=true",
    "vit/folder": f"{PLAIN} {FOLDER} data.mean=[0.4,0.5,0.5] data.std=[0.2,0.2,0.3]"
    " data.val_split=6",
    "resnet18/folder": f"family=resnet18 {FOLDER} optim.name=sgd train.ema_decay=0.9",
    "resnet18/bf16": f"family=resnet18 {FOLDER} train.precision=bf16 aug.cutmix=1.0",
    "swin/plain": SWIN,
    "swin/post": f"{SWIN} norm_position=post patch_embed=conv patch_post_norm=true drop_path=0.2"
    " optim.name=muon window_size=2 train.grad_checkpointing=true",
    "coatnet/plain": COATNET,
    "coatnet/drop": f"{COATNET} drop_path=0.2 proj_drop=0.1 layer_scale_init=0.1 optim.name=muon"
    " aug.mixup=0.2 train.precision=bf16",
    "pit/cls": f"{PIT} pool=cls train.grad_checkpointing=true",
    "pit/linformer": f"{PIT} pool=mean attention=linformer linformer_rank=4 reg_tokens=1"
    " pos_embed=sincos2d pos_embed_prefix=true optim.name=muon",
}
INTERRUPTED = """import json, pathlib, shutil
run = pathlib.Path('run')
shutil.rmtree(run / 'checkpoints/6')
for name in ('result.json', 'predictions.npz'):
    (run / name).unlink()
(run / 'status.json').write_text(json.dumps({'state': 'interrupted', 'step': 3, 'reason': ''}))
"""
INTERFACE = f"""import hashlib, json, torch, vitcli, yaml
said = {{}}
def keep(name, state):
    said[name] = {{k: hashlib.sha256(v.contiguous().numpy().tobytes()).hexdigest()
        for k, v in state.items()}}
data = vitcli.load_data('imagefolder:images', resize=32)
images = data.normalize(data.test.pixels[:4])
keep('data', {{'images': images, 'labels': data.train.labels}})
for text in {["family=vit " + PLAIN, "family=resnet18", SWIN, COATNET, PIT]!r}:
    fields = {{k: yaml.safe_load(v) for k, v in (word.split('=') for word in text.split())}}
    family = fields['family']
    model = vitcli.build_model(seed=3, num_classes=3, **fields)
    keep(family, model.state_dict())
    said[family + ' fit'] = list(vitcli.fit(model, data, epochs=2, batch_size=8, seed=1))
    keep(family + ' fitted', model.state_dict() | {{'logits': model(images).detach()}})
    if family == 'vit':
        keep('maps', {{str(k): v for k, v in vitcli.attention_maps(model, images).items()}})
keep('quickstart', vitcli.build_model('quickstart').state_dict())
torch.save(vitcli.build_model('exp.yaml', seed=5).state_dict(), 'weights.pt')
print(json.dumps(said))
"""
STUDY = {
    "base": "exp.yaml", "seeds": [0, 1], "threads": 1,
    "variants": {
        "baseline": {}, "positions": {"model.pos_embed": "none"},
        "linformer": {"model.attention": "linformer", "model.linformer_rank": 8},
    },
}  # fmt: skip
REFUSED = """-s model.depth=-1/-s model.embed_dim=33/-s model.no_such=1/-s model.attention=exact
/-s model.residual=none -s model.drop_path=0.1/-s model.family=swin/-s model.patch_size=5
/-s train.accumulate=3/-s data.name=nowhere/-s optim.lr=0.0/--epochs -1/--resume nowhere"""
TRAIN = "json: train exp.yaml -o run --device cpu --json"
MAP = "json: attn-map photo.png --run run --json"
REFUSED_MAP = "none!: attn-map photo.png --run run"
COMMANDS = {
    "train/native": (f"{PLAIN} train.kernels=native train.precision=bf16",
        [TRAIN.replace(":", "?:", 1)]),
    "train/set": (PLAIN, ["json: train quickstart -s model.depth=1 -s optim.lr=0.01 --seed 3"
        " --epochs 1 --limit-batches 2 --precision bf16 -o run --json"]),
    "train/init": (PLAIN, [TRAIN, "json: train exp.yaml --init run --seed 4 -o other --json",
        "json: train exp.yaml --init run --data imagefolder:images -s data.resize=32"
        " -s train.batch_size=8 -o third --json"]),
    "train/interrupted": (f"{PLAIN} drop_path=0.2 aug.mixup=1.0 train.ema_decay=0.9", [TRAIN,
        f"none: python -c {shlex.quote(INTERRUPTED)}", "json: train --resume run --json"]),
    "train/longer": (PLAIN, [TRAIN, "json: train --resume run --epochs 3 --allow-inexact --json"]),
    "train/dry-run": (PLAIN, [f"json: train {name} --dry-run --json" for name in
        ("exp.yaml", "quickstart", "cifar10-tiny")]),
    "train/refused": (PLAIN, ["none!: train exp.yaml --dry-run " + words
        for words in REFUSED.split("/")]),
    "eval": (f"{PLAIN} data.val_split=200", [TRAIN, "json: eval run --json",
        "json: eval run --tta --split val --json",
        "json: eval run --split train --limit-batches 2 --step 3 --predictions p.npz --json",
        "table: eval run --limit-batches 1 --format csv",
        "table!: eval run --limit-batches 1 --format md --min-accuracy 0.9"]),
    "predict": (f"{PLAIN} {FOLDER}", [TRAIN, "json: predict photo.png --run run --json",
        "json: predict photo.png images/a/1.png --run run --top 2 --fit pad --json",
        "json: predict photo.png --run cifar10-pocket --fit stretch --json"]),
    "maps/vit": (f"{PLAIN} {FOLDER} reg_tokens=1", [TRAIN, f"{MAP} -o a.png",
        f"{MAP} --method cls --layer 1 --head 2 -o b.png", f"{MAP} --method raw -o c.npz",
        f"{MAP} --method grad-rollout --class b --smooth -o d.png",
        f"{MAP} --method gradcam -o e.json",
        f"{MAP} --method head --head mean --layer 1,2 --query 0.3,0.6 --fit pad -o f.png"]),
    "maps/shipped": (PLAIN, ["json: attn-map photo.png --run cifar10-pocket --json -o a.npz"]),
    "maps/linformer": (f"{PLAIN} {FOLDER} attention=linformer linformer_rank=8 pool=mean",
        [TRAIN, REFUSED_MAP, f"{MAP} --method gradcam -o b.npz"]),
    **{f"maps/{family.split()[0][7:]}": (f"{family} {FOLDER}",
        ["json: train exp.yaml --dry-run --json", TRAIN, REFUSED_MAP,
        "json: visualize run --what curves,confusion,mistakes,filters,embeddings --num-images 12"
        " --json"]) for family in ("family=resnet18", SWIN, COATNET, PIT)},
    "visualize": (f"{PLAIN} {FOLDER}", [TRAIN, "json: visualize run --num-images 12 --json"]),
    "visualize/shapes": (f"{PLAIN} pos_embed=relative pool=mean",
        [TRAIN, "json: visualize run --what heads,distance,pos-embed,faithfulness --num-images 8"
        " --json"]),
    "runs": (f"{PLAIN} {FOLDER}", [
        "json: train mine --json", "json: train mine --seed 1 --json",
        "json: train mine -s optim.lr=0.01 --json", "json: runs ls --json",
        "json: runs ls --top 1 --json", "json: runs show mine/train/seed1 --json",
        "json: runs diff mine/train/seed0 mine/train/seed1 --json",
        "json: runs verify mine/train/seed0 --json",
        "json: runs record mine/train/seed0 mine/train/seed1 -o recorded.json --json"]),
    "study": (f"{PLAIN} train.precision=bf16", ["json: ablate study.yaml -j 1 --format json -o s",
        *(f"table: ablate study.yaml --table-only --format {form} -o s"
        for form in ("csv", "md", "latex")),
        "json: ablate study.yaml --table-only --only linformer --seeds 1 --format json -o s"]),
    "experiments": (PLAIN, ["json: experiments ls --json", "schema: experiments schema",
        "json: experiments show exp.yaml --resolved --json"]),
    "data": (PLAIN, ["json: data ls --json", "json: data info shapes --picture shapes.png --json",
        "json: data info imagefolder:images --json"]),
    "bench": (PLAIN, [f"keys: bench {name} --rounds 1 --seconds 0 --json" for name in
        ("train exp.yaml", "data exp.yaml", "inference exp.yaml", "attention --lengths 64")]),
    "doctor": (PLAIN, ["keys: doctor --json"]),
    "interface": (PLAIN, [f"json: python -c {shlex.quote(INTERFACE)}",
        "json: import weights.pt -e exp.yaml -o imported --json",
        "json: eval imported --limit-batches 1 --json"]),
}  # fmt: skip


def experiment(words: str) -> str:
    """Return an experiment file (JSON) from words such as depth=2, optim.lr=0.1, aug.mixup=1."""
    usual = "data.name=shapes train.epochs=2 train.limit_batches=3 train.batch_size=16"
    out: dict[str, Any] = {}
    for word in f"{usual} train.precision=fp32 {words}".split():
        name, _, value = word.replace("aug.", "data.augment.").partition("=")
        place = out
        *above, last = name.split(".") if "." in name or name == "seed" else ("model", name)
        for part in above:
            place = place.setdefault(part, {})
        place[last] = yaml.safe_load(value)
    return json.dumps(out)


def all_cases(shipped: list[dict[str, Any]]) -> list[Case]:
    """Return the cases above, and cases that hash the configurations of shipped experiments."""
    found = [Case(f"train/{name}", fields, [TRAIN]) for name, fields in TRAININGS.items()]
    found += [Case(name, *rest) for name, rest in COMMANDS.items()]
    names = [about["name"] for about in shipped]
    studies = {about["name"] for about in shipped if about["kind"] == "study"}
    for first in range(0, len(names), 9):
        group = names[first : first + 9]
        files = [name if name in studies else f"of-{name}.yaml" for name in group]
        hashes = [f"json!: ablate {file} --table-only --format json -o none" for file in files]
        checked = f"json: experiments validate {' '.join(group)} --json"
        found.append(Case(f"shipped/{group[0]}...{group[-1]}", PLAIN, [*hashes, checked]))
    return found


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:24]


def flat(value: Any, prefix: str) -> Pairs:
    """Yield dotted keys and values, except varying fields. A plain list is one value."""
    text = json.dumps(value)
    if isinstance(value, (dict, list)) and value and "{" in text:
        for name, below in value.items() if isinstance(value, dict) else enumerate(value):
            if not UNCOMPARED.fullmatch(str(name)):
                yield from flat(below, f"{prefix}.{name}")
    else:
        yield prefix, text if len(text) < 120 else f"{len(text)} characters {sha256(text.encode())}"


def keys(value: Any, prefix: str) -> Pairs:
    """Yield the names of all fields, without their values."""
    for name, below in value.items() if isinstance(value, dict) else ():
        yield f"{prefix}.{name}", "there"
        yield from keys(below, f"{prefix}.{name}")
    for below in value if isinstance(value, list) else ():
        yield from keys(below, prefix)


def schema(value: Any, prefix: str) -> Pairs:
    """Yield the allowed values of each field. Fields with the same name are combined."""
    pooled: dict[str, set[str]] = {}
    for definition in [value, *value["$defs"].values()]:
        for name, field in definition.get("properties", {}).items():
            said = {k: v for k, v in field.items() if k not in ("description", "title", "$ref")}
            pooled.setdefault(name, set()).add(json.dumps(said, sort_keys=True))
    yield from ((f"{prefix}.schema.{name}", " ".join(sorted(pooled[name]))) for name in pooled)


def table(text: str, prefix: str) -> Pairs:
    """Yield the cells of a table in CSV, Markdown or LaTeX, except times and speeds."""
    mark = " & " if r"\toprule" in text else "|" if "| ---" in text or "| :--" in text else ","
    heads, *rows = [line.split(mark) for line in text.splitlines() if mark in line]
    for row, cells in enumerate(rows):
        for head, cell in zip(heads, cells, strict=False):
            head = re.sub(r"\\shortstack\[.\]|\\\\|[{}\s]", "", head)
            if not UNCOMPARED.fullmatch(head):
                yield f"{prefix}.{row}.{head}", cell.strip()


def file_values(path: Path, prefix: str) -> Pairs:
    """Yield the content of a file. A safetensors file is a JSON header, followed by bytes."""
    if path.suffix == ".png":
        with Image.open(path) as picture:
            yield prefix, f"{picture.mode} {picture.size} {sha256(picture.tobytes())}"
    elif path.suffix == ".npz":
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                yield f"{prefix}.{name}", sha256(archive.read(name))
    elif path.suffix == ".safetensors":
        content = path.read_bytes()
        start = 8 + int.from_bytes(content[:8], "little")
        for name, about in json.loads(content[8:start]).items():
            if name != "__metadata__":
                first, last = (start + place for place in about["data_offsets"])
                kind = f"{about['dtype']} {about['shape']}"
                yield f"{prefix}.tensor.{name}", f"{kind} {sha256(content[first:last])}"
    elif path.suffix == ".jsonl":
        for number, line in enumerate(path.read_text().splitlines()):
            yield from flat(json.loads(line), f"{prefix}.{number}")
    else:
        yield from flat(json.loads(path.read_text()), prefix)


def run_values(run: Path, prefix: str) -> Pairs:
    """Yield all values of a run folder that configuration and seed determine."""
    folders = sorted(run.glob("checkpoints/*"), key=lambda path: int(path.name))
    yield f"{prefix}.checkpoints", " ".join(path.name for path in folders)
    for file in sorted(folders[-1].glob("*.safetensors")):
        yield from file_values(file, prefix)
    state = json.loads((folders[-1] / "manifest.json").read_text())["state"]
    yield from flat(state | {"circumstances": None}, f"{prefix}.state")
    yield from flat(yaml.safe_load((run / "config.yaml").read_text()), f"{prefix}.config")
    meta = json.loads((run / "meta.json").read_text())
    yield f"{prefix}.meta.keys", " ".join(sorted(meta))
    yield from ((f"{prefix}.meta.{k}", str(meta[k])) for k in ("config_hash", "data_hash", "seed"))
    for name in ("metrics.jsonl", "result.json", "status.json", "predictions.npz"):
        if (run / name).exists():
            yield from file_values(run / name, f"{prefix}.{name}")


def write_inputs(folder: Path, fields: str) -> None:
    """Write the input files of a case: experiments, a study, an image folder and a picture."""
    (folder / "exp.yaml").write_text(experiment(fields))
    (folder / "experiments").mkdir()
    (folder / "experiments" / "mine.yaml").write_text(experiment(fields))
    (folder / "study.yaml").write_text(json.dumps(STUDY))
    noise = Random(0)
    for name in [f"images/{kind}/{number}.png" for kind in "abc" for number in range(20)]:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.frombytes("RGB", (5, 6), noise.randbytes(90)).resize((30, 36)).save(folder / name)
    Image.frombytes("RGB", (8, 6), noise.randbytes(144)).resize((64, 48)).save(folder / "photo.png")


class Checkout:
    """A version of the code and the folder where its cases run."""

    def __init__(self, path: Path, work: Path) -> None:
        self.path, self.work = path.resolve(), work.resolve()
        self.work.mkdir()
        kept = {k: v for k, v in os.environ.items() if not k.startswith("VITCLI_")}
        self.env = kept | {
            **{"PYTHONPATH": str(self.path), "VITCLI_CACHE": str(self.work / "cache")},
            **{"VITCLI_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"},
            "COLUMNS": "120",
        }
        asked = """import json, torch, vitcli; print(json.dumps([vitcli.__file__, torch.__version__,
            torch.backends.cpu.get_cpu_capability(), torch.get_num_threads()]))"""
        done = self.call(f"python -c {shlex.quote(asked)}", self.work)
        if done.returncode:
            raise SystemExit(done.stderr)
        found, *facts = json.loads(done.stdout)
        if not Path(found).resolve().is_relative_to(self.path):
            raise SystemExit(f"{found} was imported, which is not in {self.path}")
        self.facts = dict(zip(("torch", "cpu_capability", "threads"), facts, strict=True))
        self.shipped = json.loads(self.call("experiments ls --json", self.work).stdout)

    def call(self, command: str, folder: Path) -> "subprocess.CompletedProcess[str]":
        first, *rest = shlex.split(command)
        args = rest if first == "python" else ["-m", "vitcli", first, *rest]
        return subprocess.run(
            [sys.executable, *args], cwd=folder, env=self.env, capture_output=True, text=True
        )

    def values(self, case: Case) -> Values:
        """Run a case in a new folder, remove the folder, and return the values."""
        folder = self.work / case.name.replace("/", "-")
        folder.mkdir()
        write_inputs(folder, case.fields)
        for about in self.shipped if case.name.startswith("shipped") else ():
            study = {"base": about["name"], "seeds": [0], "variants": {"baseline": {}}}
            (folder / f"of-{about['name']}.yaml").write_text(json.dumps(study))
        given = set(folder.rglob("*"))
        found: Values = {}
        for number, text in enumerate(case.commands, start=1):
            kind, _, command = text.partition(": ")
            label = f"{number} {' '.join(command.split()[:2])}"
            done = self.call(command, folder)
            if done.returncode and kind.endswith("?"):
                return {"left out": done.stderr.strip().splitlines()[-1]}
            if bool(done.returncode) != kind.endswith("!") or "Traceback" in done.stderr:
                found[f"FAILED {label}"] = f"status {done.returncode}: {done.stderr[-400:]}"
                break
            found[f"{label}.status"] = str(done.returncode)
            found |= dict(READERS[kind.rstrip("!?")](done.stdout, label))
        else:
            runs = {path.parent for path in folder.rglob("meta.json")}
            for run in runs:
                found |= dict(run_values(run, str(run.relative_to(folder))))
            for path in set(folder.rglob("*")) - given:
                if path.suffix in (".png", ".npz", ".json") and not runs & set(path.parents):
                    name = str(path.relative_to(folder))
                    is_figure = path.suffix == ".png" and "figures" in path.parts
                    found |= dict(file_values(path, f"figure.{name}" if is_figure else name))
        shutil.rmtree(folder)
        return {self.anywhere(k): self.anywhere(v) for k, v in found.items()}

    def anywhere(self, text: str) -> str:
        text = text.replace(str(self.work), "WORK").replace(str(self.path), "CODE")
        return re.sub(r"tfevents\.[\w.-]+", "tfevents", text)


READERS: dict[str, Callable[[str, str], Pairs]] = {
    "json": lambda text, label: flat(json.loads(text), label),
    "keys": lambda text, label: keys(json.loads(text), label),
    "schema": lambda text, label: schema(json.loads(text), label),
    "table": table,
    "none": lambda text, label: iter(()),
}


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def is_same(name: str, old: Values, new: Values) -> bool:
    """Print the differences of a case, and return whether its values are equal."""
    differences: list[str] = []
    notes: list[str] = []
    for key in sorted(old.keys() | new.keys()):
        parts = set(key.split("."))
        mild = parts & NOTED or ((key in old) != (key in new) and parts & OFTEN_ONE_SIDED)
        if key.startswith("FAILED") or old.get(key) != new.get(key):
            line = f"{key}: {old.get(key, '(nothing)')} -> {new.get(key, '(nothing)')}"
            (notes if mild else differences).append(line)
    if "left out" in old and "left out" in new:
        say(f"left out   {name}: {new['left out']}")
        return True
    tensors = sum(".tensor." in key for key in new)
    word = "DIFFERENT" if differences else "recorded" if old is new else "same"
    say(f"{word:10} {name}  {tensors} tensors, {len(new)} values")
    for line in [*differences, *(f"(note) {note}" for note in notes)]:
        say(f"    {line}")
    return not differences


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("checkouts", nargs="+", type=Path, metavar="CHECKOUT")
    kept = parser.add_mutually_exclusive_group()
    kept.add_argument("--record", type=Path, metavar="FILE", help="keep the values of a checkout")
    kept.add_argument("--against", type=Path, metavar="FILE", help="compare with kept values")
    parser.add_argument("--only", default="", metavar="WORD", help="cases whose name matches")
    parser.add_argument("--work", type=Path, metavar="FOLDER", help="where to try; emptied after")
    options = parser.parse_args()
    if len(options.checkouts) != (1 if options.record or options.against else 2):
        parser.error("give two checkouts, or one with --record or --against")
    with tempfile.TemporaryDirectory(dir=options.work) as work, ThreadPoolExecutor(2) as pool:
        sides = [Checkout(c, Path(work) / str(n)) for n, c in enumerate(options.checkouts)]
        before = json.loads(options.against.read_text()) if options.against else None
        if before and before["facts"] != sides[0].facts:
            raise SystemExit(f"these round differently: {before['facts']}, {sides[0].facts}")
        cases = [c for c in all_cases(sides[0].shipped) if re.search(options.only, c.name)]
        taken = [[pool.submit(side.values, case) for side in sides] for case in cases]
        values, wrong = {}, 0
        for case, futures in zip(cases, taken, strict=True):
            *old, new = [future.result() for future in futures]
            values[case.name] = new
            known = before["cases"].get(case.name, {}) if before else (old or [new])[0]
            wrong += not is_same(case.name, known, new)
    if options.record:
        kept_values = {"facts": sides[0].facts, "cases": values}
        options.record.write_text(json.dumps(kept_values, indent=0, sort_keys=True))
    say(f"{len(cases)} cases, {wrong or 'nothing'} {'went wrong' if options.record else 'differs'}")
    return 1 if wrong or not cases else 0


if __name__ == "__main__":
    sys.exit(main())
