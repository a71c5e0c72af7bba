"""Predictions are read, or refused; nothing in their bytes is more than a refusal."""

import contextlib
import io

import numpy as np
import pytest

from vitcli.core.spec.task import TASKS
from vitcli.runner.run.predictions import per_image, read_outputs

ROW = TASKS["classify"]


def archive(save=np.savez, **arrays) -> bytes:
    with io.BytesIO() as file:
        save(file, **arrays)
        return file.getvalue()


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_a_flipped_bit_is_refused_or_read(save):
    """It may say that the archive is encrypted, or compressed in another way."""
    content = archive(save, logits=np.eye(2, dtype=np.float32), labels=np.array([0, 0]))
    found = per_image(read_outputs(content), ROW)
    assert (found.mean, len(found.scores)) == (0.5, 2)
    for place in range(len(content)):
        for bit in range(8):
            flipped = bytearray(content)
            flipped[place] ^= 1 << bit
            with contextlib.suppress(ValueError):
                per_image(read_outputs(bytes(flipped)), ROW)


@pytest.mark.parametrize("labels", [[0, 2], [0, -1], [0], [], [[0], [1]]], ids=str)
def test_labels_that_do_not_belong_to_the_logits_are_refused(labels):
    content = archive(logits=np.eye(2), labels=np.array(labels, dtype=np.int64))
    with pytest.raises(ValueError, match="labels do not fit its logits"):
        per_image(read_outputs(content), ROW)


@pytest.mark.parametrize("content", [b"", b"x\n", b"PK\x03\x04nonsense"])
def test_what_is_no_archive_is_refused_without_advice_to_unpickle_it(content):
    with pytest.raises(ValueError, match=r"^not an archive of predictions$"):
        per_image(read_outputs(content), ROW)
