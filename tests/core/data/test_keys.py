"""Random numbers by content: known values, independence and uniformity."""

import torch
from torch.testing import assert_close

from vitcli.core.data.keys import BANK, content_keys, noise, scramble, uniform

ALL = (1 << 64) - 1


def splitmix(key: int) -> int:
    """The last step of SplitMix64, as its authors' C code has it."""
    key = ((key ^ (key >> 30)) * 0xBF58476D1CE4E5B9) & ALL
    key = ((key ^ (key >> 27)) * 0x94D049BB133111EB) & ALL
    return key ^ (key >> 31)


def test_it_is_splitmix():
    keys = torch.tensor([0, 1, -1, 2**62, -(2**63), 123456789])
    found = [value & ALL for value in scramble(keys).tolist()]
    assert found == [splitmix(key & ALL) for key in keys.tolist()]


def test_a_key_depends_on_the_content_only():
    pixels = torch.randint(256, (8, 3, 4, 4), dtype=torch.uint8)
    keys = content_keys(pixels)
    assert len(set(keys.tolist())) == 8
    assert content_keys(pixels.flip(0)).equal(keys.flip(0))
    changed = pixels.clone()
    changed[0, 0, 0, 0] ^= 1
    assert (content_keys(changed) != keys).tolist() == [True] + [False] * 7


def test_numbers_are_uniform():
    found = uniform(scramble(torch.arange(20_000)), 3)
    assert 0 <= found.min() < found.max() < 1
    for column in found.unbind(1):
        counts = torch.histc(column, bins=10, min=0, max=1)
        assert_close(counts, torch.full((10,), 2000.0), rtol=0.1, atol=0)
    assert (torch.corrcoef(found.T) - torch.eye(3)).abs().max() < 0.03


def test_noise_is_white_and_a_function_of_its_key():
    keys = scramble(torch.arange(4))
    found = noise(keys, 4096)
    assert_close(found.std(1), torch.ones(4), rtol=0.05, atol=0)
    assert_close(found.mean(1), torch.zeros(4), rtol=0, atol=0.08)
    assert (torch.corrcoef(found) - torch.eye(4)).abs().max() < 0.08
    assert noise(keys[2:3], 4096).equal(found[2:3])
    assert noise(torch.tensor([BANK - 2]), 4).isfinite().all(), "the bank is a ring"
