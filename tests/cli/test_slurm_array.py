"""The script of the page on Slurm's arrays, started as ``sbatch --array`` would. No Slurm was asked."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "slurm-arrays.md"
CODE = """
import os, time

def embed(row):
    open(f"ran.{row['id']}.{os.getpid()}", "w").close()
    while row["id"] >= 5 and not os.path.exists("gate"):
        time.sleep(0.01)
    return row["id"] ** 2
"""


def test_a_task_that_was_stopped_goes_on_and_all_rows_are_in_order(tmp_path, popen, until):
    """Task 1 of 3 is told to stop, as before its time limit. Oracle: the plain loop over the items."""
    script = re.search(r"cat > array.sh <<'END'\n(.*?)END\n", PAGE.read_text(encoding="utf-8"), re.DOTALL)[1]
    (tmp_path / "array.sh").write_text(script)
    (tmp_path / "embed.py").write_text(CODE)
    ids = list(range(11))
    (tmp_path / "items.jsonl").write_text("".join(json.dumps({"id": n}) + "\n" for n in ids))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    slurm = {**os.environ, "PATH": path, "SLURM_ARRAY_TASK_COUNT": "3", "DEVICES": "cpu*1"}

    def task(number):
        setting = {**slurm, "SLURM_ARRAY_TASK_ID": str(number)}
        return popen(["bash", "array.sh"], cwd=tmp_path, env=setting, stderr=subprocess.DEVNULL)

    stopped = task(1)  # items 1, 4, 7 and 10, of which 7 waits for the gate
    until(lambda: list(tmp_path.glob("ran.7.*")), "item 7 begins")
    stopped.send_signal(signal.SIGINT)
    (tmp_path / "gate").touch()
    assert stopped.wait(500) == 130
    for number in (0, 1, 2):
        assert task(number).wait(500) == 0
    command = r"paste -d '\n' parts/rows.*.jsonl | grep ."
    assert command in PAGE.read_text(encoding="utf-8")
    merged = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=True)
    rows = [json.loads(line)["result"] for line in merged.stdout.splitlines()]
    assert rows == [n**2 for n in ids]
    assert [len(list(tmp_path.glob(f"ran.{n}.*"))) for n in (1, 4)] == [1, 1]  # not run again
