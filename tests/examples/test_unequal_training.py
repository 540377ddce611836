"""The example trains what it promises, and its report's ranks end together."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "unequal-training"
sys.path.insert(0, str(EXAMPLE))
try:
    import torch
    from tasks import TASKS, loss_of
finally:
    sys.path.remove(str(EXAMPLE))


@pytest.mark.parametrize("task", TASKS)
def test_a_task_can_be_learnt(task: str) -> None:
    torch.manual_seed(0)
    make_model, make_dataset = TASKS[task]
    model, dataset = make_model(), make_dataset()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for step in range(25):
        inputs, answers = dataset[step * 32 : (step + 1) * 32]
        loss = loss_of(model(inputs), answers)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    assert sum(losses[-5:]) < 0.97 * sum(losses[:5])


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        [sys.executable, EXAMPLE / "train.py", "--task", "pictures", "--speeds", "1,3"],
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
         EXAMPLE / "train.py", "--speeds", "1,3"],
    ],
    ids=["by itself", "torchrun"],
)  # fmt: skip
def test_shares_follow_the_speeds_and_are_in_the_report(command: list, tmp_path: Path) -> None:
    command = [*command, "--steps", "12", "--out", "run"]
    made = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=400, check=False)
    assert made.returncode == 0, made.stdout + made.stderr
    lines = (tmp_path / "run" / "events.jsonl").read_text().splitlines()
    spans = [event for event in map(json.loads, lines) if event["event"] == "Span"]
    assert sum(span["n_items"] for span in spans) == 11 * 48, "all but the first step, which has no beginning"
    shares = [(slow["n_items"], fast["n_items"]) for slow, fast in zip(spans[::2], spans[1::2], strict=True)]
    assert shares[0] == (24, 24)
    assert any(fast > 2 * slow for slow, fast in shares), (
        "a device three times as fast has more, pauses aside"
    )
    assert "modelled device of speed 3" in (tmp_path / "run" / "report.html").read_text()
