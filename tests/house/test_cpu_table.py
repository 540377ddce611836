"""Tests that ``make cpu`` counts processes below a test once, while they live and after they have ended.

The oracle is the child's own clock of its CPU time.
"""

import subprocess
import sys
import time

import pytest
from cpu_table import TICKS, cpu_s

BUSY = "import time\nwhile time.process_time() < 0.2: pass\nprint(time.process_time(), flush=True)\ninput()"


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere children count when they end")
def test_a_child_counts_once_while_it_lives_and_when_it_has_ended(popen):
    before_s, own_s = cpu_s(), time.process_time()
    child = popen([sys.executable, "-c", BUSY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    said_s = float(child.stdout.readline())
    living_s = cpu_s() - before_s
    assert living_s >= said_s - 2 / TICKS
    child.communicate("\n")
    ended_s = cpu_s() - before_s
    assert said_s <= ended_s
    assert ended_s < 2 * said_s + time.process_time() - own_s  # not once living and once more as ended
