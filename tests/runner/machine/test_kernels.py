"""Which backend is chosen, how its sources are compiled, and that a run keeps it."""

import ctypes
import shutil
from pathlib import Path

import pytest
import torch

from tests.core.specs import changed
from tests.runner.machine.processors import AVX512, ZEN4
from tests.runner.train.conftest import stops_after, train
from vitcli.core.models.vit import build_vit
from vitcli.core.ops.backend import PLAIN
from vitcli.core.ops.native.compiled import Kernels
from vitcli.runner.errors import ResourceError
from vitcli.runner.machine import kernels
from vitcli.runner.machine.kernels import SIMD, choose_kernels, load_kernels, native_backend_of
from vitcli.runner.run.checkpoint import latest_checkpoint
from vitcli.runner.run.folder import RunDir

pytestmark = pytest.mark.usefixtures("here")  # whose cache of compiled kernels all tests share
CPU, BF16 = torch.device("cpu"), torch.bfloat16
WIDE = {"embed_dim": 48, "num_heads": 3, "img_size": (16, 16), "patch_size": 4}


@pytest.mark.parametrize(
    ("kind", "autocast", "backend"),
    [
        *(("amx", BF16, "amx"), ("avx512", BF16, None), ("avx2", BF16, None)),
        *(("neon", BF16, None), ("amx", None, "simd"), ("avx512", None, "simd")),
        *(("avx2", None, "simd"), ("neon", None, "simd"), ("other", None, None)),
        ("amx", torch.float16, None),
    ],
)
def test_the_backend_follows_from_processor_and_precision(kind, autocast, backend, monkeypatch):
    monkeypatch.setattr("platform.system", lambda: "Linux")
    monkeypatch.setattr(kernels, "this_processor", lambda: AVX512)
    assert native_backend_of(kind, autocast) == backend
    monkeypatch.setattr(kernels, "this_processor", lambda: ZEN4)
    is_half = (kind, autocast) == ("avx512", BF16)
    assert native_backend_of(kind, autocast) == ("half" if is_half else backend)
    monkeypatch.setattr("platform.system", lambda: "Darwin")
    assert native_backend_of(kind, autocast) is None


@pytest.mark.parametrize("kind", SIMD)
def test_in_fp32_the_kernels_of_the_processor_are_chosen(kind, monkeypatch):
    compiled: list[tuple[str, ...]] = []

    def load(folder: str, *flags: str) -> Kernels:
        compiled.append((folder, *flags))
        return Kernels(lambda source, sizes: ctypes.CDLL(None))

    monkeypatch.setattr("platform.system", lambda: "Linux")
    monkeypatch.setattr(kernels, "cpu_kind", lambda: kind)
    monkeypatch.setattr(kernels, "load_kernels", load)
    model = build_vit(changed(**WIDE))
    assert choose_kernels(model, CPU, None) == "native"
    assert compiled == [("simd", *SIMD[kind])]
    assert choose_kernels(model, torch.device("meta"), None) == "torch"


@pytest.mark.parametrize("is_broken", [False, True])
def test_without_a_compiler_that_works_torch_computes_and_it_is_said(here, monkeypatch, is_broken):
    broken, test = here / "cc", "[ $1 = --version ] || { echo 'x.c: error: broken' >&2; exit 1; }"
    broken.write_text(f"#!/bin/sh\n{test}\n")
    broken.chmod(0o755)
    monkeypatch.setattr(kernels, "cpu_kind", lambda: "amx")
    monkeypatch.setattr(kernels, "load_kernels", load_kernels.__wrapped__)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("CC", str(broken) if is_broken else "")
    said: list[str] = []
    model, reason = build_vit(changed(**WIDE)), "error: broken" if is_broken else "no C compiler"
    assert choose_kernels(model, CPU, BF16, on_message=said.append) == "torch"
    assert reason in said[0]
    assert model.backend is model.blocks[0].attn.inner.backend is PLAIN
    assert not model.blocks[0].attn.inner.attend.fused
    with pytest.raises(ResourceError, match=reason):
        choose_kernels(model, CPU, BF16, "native")


@pytest.fixture
def compiler(here, monkeypatch) -> Path:
    """A compiler of libraries that contain nothing; it counts its calls in the file ``calls``."""
    real = shutil.which("gcc") or shutil.which("clang")
    if real is None:
        pytest.skip("no C compiler")
    path = here / "cc"
    path.write_text(f'#!/bin/sh\necho "$1" >> {here}/calls\nexec {real} "$@"\n')
    path.chmod(0o755)
    source = here / "native" / "empty"
    source.mkdir(parents=True)
    (source / "empty.c").write_text("int seven(void) { return 7; }\n")
    monkeypatch.setenv("CC", str(path))
    monkeypatch.setenv("VITCLI_CACHE", str(here / "cache"))
    monkeypatch.setattr(kernels, "FOLDER", here / "native")
    monkeypatch.setattr(kernels, "_cpu_flags", lambda: "")
    return path


def compile_empty(compiler: Path) -> int:
    """Load the library in this process's first use of it; return how often it was compiled."""
    library = load_kernels.__wrapped__("empty").compiled("empty")
    assert library.seven() == 7
    return (compiler.parent / "calls").read_text().split().count("-shared")


def test_a_compiled_library_is_used_again_only_if_it_is_unchanged(compiler):
    assert compile_empty(compiler) == compile_empty(compiler) == 1
    (stored,) = (compiler.parent / "cache" / "kernels").glob("*.so")
    whole = stored.read_bytes()
    for count, wrong in enumerate((whole[:-1], whole[:-32], b"", whole + b"x" * 32), start=2):
        stored.unlink()  # a library that is open must not change
        stored.write_bytes(wrong)
        assert compile_empty(compiler) == compile_empty(compiler) == count


def test_the_folder_of_compiled_libraries_is_private(compiler, monkeypatch):
    folder = compiler.parent / "cache" / "kernels"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    compile_empty(compiler)
    assert folder.stat().st_mode & 0o777 == 0o700
    monkeypatch.setattr("os.getuid", lambda: folder.stat().st_uid + 1)
    with pytest.raises(kernels.NoKernelsError, match="belongs to another user"):
        compile_empty(compiler)


@pytest.mark.parametrize("began_native", [True, False])
def test_a_run_goes_on_with_the_kernels_it_began_with(
    tiny, here, native_machine, monkeypatch, began_native
):
    folder = here / "run"

    def on_a_machine(has_kernels: bool, patch, **options):
        patch.setattr(kernels, "cpu_kind", lambda: "amx" if has_kernels else "other")
        return train(tiny, folder, **options)

    with monkeypatch.context() as patch, stops_after(6):
        on_a_machine(began_native, patch)
    stored = latest_checkpoint(RunDir(folder).checkpoints, print)
    assert stored.state["kernels"] == ("native" if began_native else "torch")
    if began_native:
        with monkeypatch.context() as patch, pytest.raises(ResourceError, match="native"):
            on_a_machine(False, patch, resume=True)
    with monkeypatch.context() as patch:
        on_a_machine(True, patch, resume=True)
    stored = latest_checkpoint(RunDir(folder).checkpoints, print)
    assert stored.state["kernels"] == ("native" if began_native else "torch")
