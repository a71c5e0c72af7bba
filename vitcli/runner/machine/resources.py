"""Errors for an exhausted memory or disk and for a failed GPU, with what to type."""

import contextlib
import errno
from collections.abc import Iterator

import torch

from vitcli.runner.errors import ResourceError

DISK_ADVICE = {
    errno.ENOSPC: "disk full while writing {}; free some space",
    errno.EDQUOT: "quota used up while writing {}; remove some of your files",
    errno.EFBIG: "{}: larger than a file may be here; raise the limit (ulimit -f)",
    errno.EMFILE: "{}: this process has too many open files; raise the limit (ulimit -n)",
    errno.ENFILE: "{}: this machine has too many open files; end other programs",
    errno.ENOLCK: "{}: the file system gives no lock; choose a folder on another one (-o)",
    errno.ESTALE: "{}: the network file system has lost the file; look at its server",
    errno.EBUSY: "{}: the file system is busy with the file; wait for it",
}
"""Error of the system -> what happened to a file, and what to do."""
GPU_MARKS = (
    *("CUDA error", "CUDA driver", "NVIDIA driver", "CUDA GPU", "cudaGetDeviceCount"),
    *("cuDNN error", "cuDNN Frontend error", "unable to find an engine", "Triton Error [CUDA]"),
)
"""Words in torch's messages about a GPU, its driver or a library of CUDA."""
MEMORY_MARKS = ("can't allocate memory", "CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
"""Words in messages about exhausted memory that are not an OutOfMemoryError."""
SMALLER = (
    "try -s train.accumulate=2 (the batch in smaller parts), -s train.grad_checkpointing=true or a"
    " smaller model"
)
"""What to do if a training has no memory left."""
INSTALLATION = "https://pytorch.org/get-started/locally"
UPDATE = f"update NVIDIA's driver, or install a torch for an older CUDA ({INSTALLATION})"
GPU_ADVICE = {
    "no kernel image": f"install a torch that has kernels for this GPU ({INSTALLATION})",
    "driver version": UPDATE,
    "NVIDIA driver": UPDATE,
    "CUDA GPU": "nvidia-smi lists the GPUs",
}
"""Words of a message -> what to do."""
LOST = "nvidia-smi shows its state; try again in a new process (a training: with --resume auto)"


@contextlib.contextmanager
def resource_errors(advice: str = "close other programs") -> Iterator[None]:
    """Turn errors of disk, GPU and memory, for which there is advice, into a ResourceError."""
    try:
        yield
    except (OSError, MemoryError, RuntimeError) as error:
        if resource_error := as_resource_error(error, advice):
            raise resource_error from error
        raise


def as_resource_error(
    error: BaseException, advice: str = "close other programs"
) -> ResourceError | None:
    """Return what an error of Python or torch says about a resource; None for any other error."""
    if isinstance(error, OSError) and error.errno in DISK_ADVICE:
        what = DISK_ADVICE[error.errno].format(error.filename or "the run folder")
        return ResourceError(f"{what} and continue with --resume auto")
    if isinstance(error, torch.OutOfMemoryError | MemoryError) or any(
        mark in str(error) for mark in MEMORY_MARKS
    ):
        return ResourceError(f"out of memory; {advice}")
    if is_gpu_error(error):
        text = str(error).strip()
        reason = text.partition("\n")[0].partition(". ")[0].rstrip(".")
        advice = next((advice for words, advice in GPU_ADVICE.items() if words in text), LOST)
        return ResourceError(f"the GPU cannot be used: {reason}; {advice}, or type --device cpu")
    return None


def is_gpu_error(error: BaseException) -> bool:
    """Return whether a GPU, its driver or a library of CUDA failed.

    A failed assertion on the GPU is a bug, such as an index out of range.
    """
    text = str(error)
    is_known = isinstance(error, torch.AcceleratorError) or (
        isinstance(error, RuntimeError) and any(mark in text for mark in GPU_MARKS)
    )
    return is_known and "device-side assert" not in text
