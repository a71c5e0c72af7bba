"""Plant the bugs that experiment runners have had, one at a time, and see a test catch each.

Usage: python -m tests.faults.mutants [--record] [NAME...]
Each mutant is a copy of this checkout with one edit; what must fail is the command beside it. A
command that does not fail means that the tests have a hole: exit 1.
"""

import json
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests.faults.results import keep

ROOT = Path(__file__).parents[2]
COUNTS = {"kills": 40, "crash_points": 150, "power_loss": 3, "races": 5, "stops": 8}
"""How often a campaign tries, with random seed 1."""
PLANTED = r"""
= saves in place | vitcli/runner/files.py | crash_points
-descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
+descriptor, temporary = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), path
= does not sync the file | vitcli/runner/files.py | power_loss
-            os.fsync(file.fileno())
= does not sync the folder | vitcli/runner/files.py | power_loss
-    sync_folder(path.parent)
-
-
-def temporary_files_of
+
+
+def temporary_files_of
= does not sync the folder of a new checkpoint | vitcli/runner/run/checkpoint.py | power_loss
-    files.sync_folder(folder)
= writes the manifest first | vitcli/runner/run/checkpoint.py | crash_points
-    files.commit(path / TENSORS, content)
-    files.commit(path / MANIFEST, _manifest(checkpoint, TENSORS, content))
-    return path
+    files.commit(path / MANIFEST, _manifest(checkpoint, TENSORS, content))
+    files.commit(path / TENSORS, content)
+    return path
= prunes before it saves | vitcli/runner/train/trainer.py | crash_points
-        save_checkpoint(self.run.checkpoints, checkpoint)
+        prune(self.run.checkpoints, ())
+        save_checkpoint(self.run.checkpoints, checkpoint)
= does not check the tensors' hash | vitcli/runner/run/checkpoint.py | tests/runner/run/test_checkpoint.py
-or files.sha256(content) != expected["sha256"]
= does not check the manifest's hash | vitcli/runner/run/checkpoint.py | tests/runner/run/test_checkpoint.py
-if has_hash and not files.is_unchanged(
+if False and not files.is_unchanged(
= does not restore the optimiser | vitcli/core/train/training.py | kills
-        optim.load_state_tensors(self.optimizers, part("optim"))
= does not restore the average of the weights | vitcli/core/train/training.py | kills
-            self.ema.model.load_state_dict(part("ema"))
+            pass
= begins the schedule anew | vitcli/core/train/training.py | stops
-            rates = self.rates(self.step)
+            rates = self.rates(self.step - first)
= draws other random numbers after a resume | vitcli/core/train/training.py | kills
-            seed_step(self.device, self.spec.seed, self.step, ranks.own_rank())
+            self.step or seed_step(self.device, self.spec.seed, 0)
= forgets how far into the epoch it was | vitcli/core/train/training.py | stops
-        first = self.step - epoch * self.steps_per_epoch
+        first = 0
= forgets the sums of a half epoch | vitcli/core/train/training.py | stops
-        self.sums.zero_()[: len(sums)].copy_(sums)
= is one step off | vitcli/core/train/training.py | kills
-        self.step = step
+        self.step = step + 1
= saves in the middle of a step | vitcli/core/train/training.py | stops
-            self.step += 1
-            yield Step(step=self.step, lr=rates[-1], scalars=scalars)
+            yield Step(step=self.step + 1, lr=rates[-1], scalars=scalars)
+            self.step += 1
= keeps the metrics of steps that were lost | vitcli/runner/train/trainer.py | kills
-[record for record in before.metrics if record["step"] <= self.step]
+[*before.metrics]
= takes no lock | vitcli/runner/run/folder.py | races
-        lock.acquire()
+        pass
= trains on after a NaN | vitcli/runner/train/trainer.py | tests/runner/train/test_resume.py -k divergence
-        if all(map(math.isfinite, numbers)):
+        if True:
= tries a diverged trial again | vitcli/runner/run/folder.py | tests/runner/study/test_run.py
-RESULT_STATES: tuple[Status, ...] = ("finished", "diverged")
+RESULT_STATES: tuple[Status, ...] = ("finished",)
= does not try a killed trial again | vitcli/runner/engines/local.py | tests/runner/study/test_run.py -k killed_or_hung
-MAX_ATTEMPTS = 3
+MAX_ATTEMPTS = 1
= reads pickles of strangers | vitcli/plugins/weights/tensors.py | tests/plugins/weights/test_import.py -k hostile
-map_location="cpu", weights_only=True
+map_location="cpu", weights_only=False
= continues on other hardware without a word | vitcli/runner/train/prepare.py | tests/runner/train/test_exactness.py
-        exactness.refuse_inexact(plan.run, inexact)
+        pass
= starts over when every checkpoint is damaged | vitcli/runner/run/checkpoint.py | tests/runner/run/test_checkpoint.py
-    if damage:
-        again
+    if False:
+        again
= stops an evaluation too late | vitcli/runner/train/hooks.py | tests/runner/train/test_early_stopping.py -k ends_with_the_best
-values.index(best) >= self.patience
+values.index(best) > self.patience
= keeps the last weights, not the best | vitcli/runner/train/hooks.py | tests/runner/train/test_early_stopping.py -k ends_with_the_best
-        training.load(best, checkpoint.part, checkpoint.state["scaler"])
= does not compare with the probe | vitcli/runner/train/hooks.py | tests/runner/train/test_early_stopping.py -k no_epoch_beats
-            trainer.close_epoch({"step": 0, "epoch": 0})
+            pass
= prefers an epoch that is as good as the probe | vitcli/runner/train/trainer.py | tests/runner/train/test_early_stopping.py -k no_epoch_beats
-step > 0 and value == best
+value == best
= calibrates on test images | vitcli/runner/train/finish.py | tests/runner/train/test_early_stopping.py -k thresholds
-trainer.outputs_of(trainer.data.val)
+trainer.test_outputs()
= tests all folds on one part | vitcli/runner/data/folds.py | tests/runner/data/test_folds.py
-    is_test = divide(linked, digests, images.labels.tolist(), folds, number) == part
+    is_test = divide(linked, digests, images.labels.tolist(), folds, number) == 0
= lets copies into two folds | vitcli/runner/data/folds.py | tests/runner/data/test_folds.py
-first.setdefault(digest, row)
+row
= trains on test pictures without a word | vitcli/runner/train/prepare.py | tests/runner/train/test_own_pictures.py
-    if data.leaks and not spec.data.allow_leaks:
+    if False:
= does not scale the scores | vitcli/core/ops/backend.py | tests/core/nn/test_attention.py
-    scale = query.shape[-1] ** -0.5 if scale is None else scale
+    scale = 1.0 if scale is None else scale
= normalises after the sum | vitcli/core/nn/block.py | tests/core/models/test_vit.py
-        return self.join(x, self.after(branch))
+        return self.norm(self.join(x, self.after(branch)))
= labels a mixed image by its drawn share | vitcli/core/data/augment.py | tests/core/data
-    return lam * (1 - area / (size[0] * size[1]))
+    return lam
= counts equal captions as found | vitcli/plugins/clip/clip.py | tests/plugins/clip/test_clip.py -k retrieve_nothing
-((similar >= best) & ~is_own)
+((similar > best) & ~is_own)
= takes negative gradients | vitcli/core/inspect/maps.py | tests/core/inspect/test_maps.py
-.clamp(min=0).mean(1) @ relevance
+.mean(1) @ relevance
= trains a student on the labels alone | vitcli/plugins/distil/distil.py | tests/plugins/distil
-            loss = (1 - task.share) * found["loss"] + task.share * distance
+            loss = found["loss"]
= adjusts no p-value for the number of rows | vitcli/runner/study/significance.py | tests/runner/study/test_statistics.py
-min(1.0, (m - rank) * p)
+p
= keeps the line that a killed search began | vitcli/plugins/search/trials.py | tests/plugins/search
-        if not content.endswith(b"\n"):
+        if False:
= sends a driver to a machine without its GPUs | vitcli/plugins/ray/cluster.py | tests/plugins/ray -k cores_and_gpus
-    count = int(sum(map(min, by_cores, by_gpus)))
+    count = int(sum(by_cores))
= reads inverted pictures as they are stored | vitcli/runner/data/pictures.py | tests/runner/data/test_deep.py
-    if is_inverted and is_wide(image):  # Pillow inverts 8 bits itself
+    if False:
"""  # noqa: E501
"""Each bug: its name, its file, and what must notice it, a campaign or pytest's arguments; then the
lines that are replaced, and those that replace them."""


@dataclass(frozen=True)
class Mutant:
    """A bug: in ``file``, ``old`` becomes ``new``; ``command`` must notice."""

    name: str
    file: str
    old: str
    new: str
    command: tuple[str, ...]

    @classmethod
    def of(cls, text: str) -> "Mutant":
        """Return the bug that a part of ``PLANTED`` describes."""
        title, *lines = text.strip().splitlines()
        name, file, words = title.split(" | ")
        old, new = ("\n".join(x[1:] for x in lines if x[0] == sign) for sign in "-+")
        if words in COUNTS:
            command = [f"tests.faults.{words}", "--seed", "1", "--count", str(COUNTS[words])]
        else:
            command = ["pytest", "-q", "-x", "-p", "no:cacheprovider", *words.split()]
        return cls(name, file, old, new, ("-m", *command))


MUTANTS = [Mutant.of(text) for text in PLANTED.split("\n= ")[1:]]


def plant(mutant: Mutant, copy: Path) -> None:
    """Edit the copy; the text must be there once."""
    path = copy / mutant.file
    text = path.read_text()
    if text.count(mutant.old) != 1:
        raise SystemExit(f"{mutant.name}: its place is not found once in {mutant.file}")
    path.write_text(text.replace(mutant.old, mutant.new))


def is_caught(mutant: Mutant, scratch: Path) -> bool:
    """Whether its command fails, as it must; and not for want of a module."""
    copy = scratch / "checkout"
    shutil.rmtree(copy, ignore_errors=True)
    for name in ("vitcli", "tests", "experiments", "pyproject.toml"):
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, copy / name)
    plant(mutant, copy)
    command = [sys.executable, *mutant.command]
    done = subprocess.run(command, cwd=copy, capture_output=True, text=True, timeout=900)
    if "ModuleNotFoundError" in done.stderr:
        raise SystemExit(f"{mutant.name}: {done.stderr}")
    return done.returncode == 1


def main() -> None:
    names = [word for word in sys.argv[1:] if word != "--record"]
    chosen = [m for m in MUTANTS if not names or m.name in names]
    began, missed = time.monotonic(), []
    with tempfile.TemporaryDirectory() as scratch:
        for mutant in chosen:
            caught = is_caught(mutant, Path(scratch))
            missed += [] if caught else [mutant.name]
            words = "caught" if caught else "MISSED"
            print(f"{words}  {mutant.name}", file=sys.stderr, flush=True)  # noqa: T201
    seconds = round(time.monotonic() - began)
    found = {"campaign": "mutants", "mutants": len(chosen), "missed": len(missed)}
    print(json.dumps(found | {"seconds": seconds}))  # noqa: T201
    if "--record" in sys.argv:
        keep(found | {"seconds": seconds})
    if missed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
