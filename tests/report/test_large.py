"""Ten million events open in bounded memory: reports, traces and the live page do not grow with the run."""

import subprocess
import sys

import pytest

N = 10_000_000
READ = """
import resource, sys
from evenload.report.html import write_report
summary = write_report(sys.argv[1], sys.argv[2])
print(summary.n_done, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""
FOLLOW = """
import resource, sys
from pathlib import Path
from evenload.dashboard.board import Board
from evenload.report.source import Follower
follower, board = Follower(Path(sys.argv[1]) / "events.jsonl"), Board(None)
while (events := follower.read()) or follower.is_behind:
    for event in events or ():
        board.add(event)
print(board.view.tally.summary().n_done, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("large")
    with (folder / "events.jsonl").open("w") as file:
        file.write('{"event":"RunStarted","t":0,"name":"large","unix_s":0,"devices":{"a":{},"b":{}}}\n')
        for i in range(N):
            device = "ab"[i & 1]
            file.write(
                f'{{"event":"Span","stage":"map","device":"{device}","worker":"{device}","index":{i},'
                f'"n_items":1,"start_s":{i / 1000},"stop_s":{(i + 1.5) / 1000},"busy_s":0.001}}\n'
            )
        file.write(f'{{"event":"RunFinished","t":{N / 1000},"status":"done"}}\n')
    yield folder
    (folder / "events.jsonl").unlink()


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("program", [READ, FOLLOW], ids=["report", "live page"])
def test_ten_million_events_in_bounded_memory(folder, tmp_path, program):
    page = tmp_path / "report.html"
    command = [sys.executable, "-c", program, str(folder), str(page)]
    told = subprocess.run(command, check=True, capture_output=True, text=True, timeout=550).stdout.split()
    n_done, peak_mib = map(int, told)
    assert n_done == N
    assert peak_mib < 400, "a byte an item, 200,000 slices, and Python with its modules"
    if program is READ:
        assert page.stat().st_size < 1_500_000 + 5_000_000
