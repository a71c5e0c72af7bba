"""The commands that same_bits.py compares: every family, slot, optimiser and command."""

import json
import shlex
from typing import Any, NamedTuple

import yaml


class Case(NamedTuple):
    """Commands in a folder of their own, around the experiment exp.yaml with these fields."""

    name: str
    fields: str
    commands: list[str]


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
TRAIN = "json: train exp.yaml -o run --device cpu --json"
MAP = "json: attn-map run photo.png --json"
REFUSED_MAP = "none!: attn-map run photo.png"
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
    "eval": (f"{PLAIN} data.val_split=200", [TRAIN, "json: eval run --json",
        "json: eval run --split val --json",
        "json: eval run --split train --limit-batches 2 --step 3 --json"]),
    "predict": (f"{PLAIN} {FOLDER}", [TRAIN, "json: predict run photo.png --json",
        "json: predict run photo.png images/a/1.png --top 2 --fit pad --json",
        "json: predict cifar10-pocket photo.png --fit stretch --json"]),
    "maps/vit": (f"{PLAIN} {FOLDER} reg_tokens=1", [TRAIN, f"{MAP} -o a.png",
        f"{MAP} --method cls --layer 1 --head 2 -o b.png", f"{MAP} --method raw -o c.npz",
        f"{MAP} --method grad-rollout --class b -o d.png",
        f"{MAP} --method gradcam -o e.json",
        f"{MAP} --method head --head mean --layer 1,2 --query 0.3,0.6 --fit pad -o f.png"]),
    "maps/shipped": (PLAIN, ["json: attn-map cifar10-pocket photo.png --json -o a.npz"]),
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
        "json: runs verify mine/train/seed0 --json"]),
    "study": (f"{PLAIN} train.precision=bf16", ["json: ablate study.yaml -j 1 --format json -o s",
        "json: ablate study.yaml --table-only --only linformer --seeds 1 --format json -o s"]),
    "experiments": (PLAIN, ["json: experiments show exp.yaml --json"]),
    "data": (PLAIN, ["json: data ls --json", "json: data info shapes --json",
        "json: data info imagefolder:images --json"]),
    "interface": (PLAIN, [f"json: python -c {shlex.quote(INTERFACE)}",
        "json: import weights.pt exp.yaml -o imported --json",
        "json: eval imported --limit-batches 1 --json"]),
}  # fmt: skip


def experiment(words: str) -> str:
    """An experiment's file (JSON is YAML) of words such as depth=2, optim.lr=0.1, aug.mixup=1."""
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
    """Those above, and for each shipped experiment the hashes of its configurations."""
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
