"""A few hundred damaged inputs for each target, and every input that once broke a target."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.targets import CRASHES, TARGETS, seeds

FOUND = sorted(path for path in CRASHES.glob("*/*") if path.is_file())


@st.composite
def damaged(draw: st.DrawFn, name: str) -> bytes:
    content = bytearray(draw(st.sampled_from(seeds(name))))
    for _ in range(draw(st.integers(1, 8))):
        at = draw(st.integers(0, len(content)))
        to = min(len(content), at + draw(st.integers(0, 20)))
        content[at:to] = draw(st.binary(max_size=20) | st.just(bytes(content[at:to]) * 2))
    return bytes(content)


@pytest.mark.parametrize("name", TARGETS)
def test_good_inputs_are_read(name):
    for content in seeds(name):
        TARGETS[name](content)


@pytest.mark.parametrize("name", TARGETS)
def test_damaged_inputs_are_refused_or_read(name):
    @settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
    @given(damaged(name))
    def check(content: bytes) -> None:
        TARGETS[name](content)

    check()


@pytest.mark.parametrize("path", FOUND, ids=lambda path: path.name)
def test_an_input_that_once_broke_a_target_does_so_no_more(path):
    TARGETS[path.parent.name](path.read_bytes())
