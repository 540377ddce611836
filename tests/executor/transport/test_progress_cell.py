"""Where a worker is, seen from both sides."""

import os
import random
import sys

import pytest

from evenload.executor.transport.progress_cell import (
    NOT_BEGUN,
    PACKING,
    UNPACKING,
    ProgressCell,
    make_progress_file,
    seal_progress_file,
)


def test_both_sides_see_the_same() -> None:
    fd = make_progress_file()
    worker, executor = ProgressCell(fd), ProgressCell(fd)
    os.close(fd)
    assert executor.position_in(1) == (NOT_BEGUN, 0.0)
    worker.begin(1)
    assert executor.position_in(1)[0] == UNPACKING
    assert executor.position_in(2)[0] == NOT_BEGUN
    worker.at(4)
    position, seconds = executor.position_in(1)
    assert position == 4
    assert 0 <= seconds < 60
    worker.at(PACKING)
    assert executor.position_in(1)[0] == PACKING
    worker.begin(2)
    assert executor.position_in(1)[0] == PACKING, "it has gone on to the next"
    worker.close()
    executor.close()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has seals")
def test_what_a_task_writes_into_its_descriptors_does_not_change_what_was_begun() -> None:
    fd = make_progress_file()
    worker, executor = ProgressCell(fd), ProgressCell(fd)
    seal_progress_file(fd)
    worker.begin(5)
    worker.at(3)
    rng = random.Random(1)
    for n_bytes in (1, 8, 24, 100):
        os.lseek(fd, rng.randrange(40), os.SEEK_SET)
        with pytest.raises(PermissionError):
            os.write(fd, rng.randbytes(n_bytes))
    with pytest.raises(PermissionError):
        os.ftruncate(fd, 0)
    assert executor.position_in(5)[0] == 3
    worker.at(4)
    assert executor.position_in(5)[0] == 4
    os.close(fd)
    worker.close()
    executor.close()
