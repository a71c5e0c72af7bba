"""Which signals stop a training."""

import os
import signal

import pytest

from vitcli.runner.train.signals import STOPPING, StopFlag


@pytest.mark.parametrize("number", STOPPING)
def test_a_signal_that_was_ignored_at_the_start_stays_ignored(number):
    before = signal.signal(number, signal.SIG_IGN)
    try:
        with StopFlag() as stop:
            os.kill(os.getpid(), number)
        assert stop.number is None
        assert signal.getsignal(number) is signal.SIG_IGN
    finally:
        signal.signal(number, before)
