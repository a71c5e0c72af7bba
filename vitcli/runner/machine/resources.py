"""Errors for exhausted memory and disk that suggest a setting to try."""

import contextlib
import errno
from collections.abc import Iterator

import torch

from vitcli.runner.errors import ResourceError

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextlib.contextmanager
def resource_errors() -> Iterator[None]:
    """Turn errors of memory and disk into a ResourceError."""
    try:
        yield
    except (OSError, MemoryError, RuntimeError) as error:
        if isinstance(error, OSError) and error.errno in FULL:
            raise ResourceError(
                f"disk full while writing {error.filename or 'the run folder'};"
                " free some space and continue with --resume auto"
            ) from error
        if isinstance(error, torch.OutOfMemoryError | MemoryError) or (
            "can't allocate memory" in str(error)
        ):
            raise ResourceError(
                "out of memory; try -s train.accumulate=2 (the batch in smaller parts),"
                " -s train.grad_checkpointing=true or a smaller model"
            ) from error
        raise
