"""What is in the way, on machines that are not this one."""

from typing import Any

import pytest

from tests.runner.machine.processors import products
from vitcli.runner.machine.obstacles import Circumstances, mkl_version, obstacles

MKL = (2024, 2)


def seen(**changes) -> Circumstances:
    """A machine with nothing in the way, but for the changes."""
    usual: dict[str, Any] = {"cores": 2, "usable": 2, "physical": 2}
    usual |= {
        "products": products(t1=80, t2=155),
        "load": 0.2,
        "peak": 83e9,
        "mkl": MKL,
        "is_amd": True,
    }
    return Circumstances(**(usual | changes))


def test_a_machine_with_nothing_in_the_way():
    assert obstacles(seen()) == []
    assert obstacles(seen(load=None, peak=None, mkl=None, physical=None)) == []


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            {"environment": {"OMP_NUM_THREADS": "1"}},
            "OMP_NUM_THREADS=1 lets torch use 1 of 2 cores; type: unset OMP_NUM_THREADS",
        ),
        (
            {"quota": 1.5, "usable": 1},
            "a CPU quota allows this container 1.5 of 2 cores; raise it (docker run --cpus 2),"
            " or type: export OMP_NUM_THREADS=1",
        ),
        (
            {"load": 2.7},
            "other programs use the CPU (load average 2.7 on 2 cores); to see which, type: top",
        ),
        (
            {"products": products(t1=80, t2=88)},
            "2 threads are only 1.1 times as fast as 1, so another program may use a core;"
            " to see which, type: top",
        ),
        (
            {"products": products(t1=20, t2=40)},
            "MKL takes a slow path on this AMD CPU (20 of about 83 GFLOP/s on a core); type: echo ",
        ),
        (
            {"products": products(bf16=1.5, t1=80, t2=155), "emulates_bf16": True},
            "this CPU emulates bf16: a product takes 60 times as long as in fp32; train with"
            " --precision auto or fp32",
        ),
    ],
)
def test_each_obstacle_has_one_line_that_says_what_to_type(changes, told):
    (line,) = obstacles(seen(**changes))
    assert line.startswith(told)


@pytest.mark.parametrize(
    "changes",
    [
        {"environment": {"OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "many"}},
        {"environment": {"OMP_NUM_THREADS": "1"}, "usable": 1},
        {"quota": 4.0},
        {"products": products(t1=80, t2=88), "physical": 1},  # two threads of one core
        {"products": products(t1=80)},
        {"products": products(t1=20, t2=40), "is_amd": False},
        {"products": products(t1=20, t2=40), "mkl": None},
        {"products": products(t1=20, t2=40), "mkl": (2025, 3)},
        {"products": products(t1=20, t2=40), "peak": None},
        {"products": products(bf16=1.5, t1=80, t2=155)},  # slow, but in hardware
    ],
)
def test_no_advice_where_it_would_not_help(changes):
    assert obstacles(seen(**changes)) == []


def test_the_version_of_mkl():
    build = "  - Intel(R) oneAPI Math Kernel Library Version 2024.2-Product Build 20240605"
    assert mkl_version(build) == (2024, 2)
    assert mkl_version("Math Kernel Library Version 2020.0.4 Product") == (2020, 0, 4)
    assert mkl_version("BLAS_INFO=open") is None
