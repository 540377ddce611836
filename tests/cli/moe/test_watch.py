"""``evenload moe watch``: figures of logs and traces while they grow, and how it ends."""

import json
import signal
import sys

import numpy as np
import pytest
from click.testing import CliRunner

from evenload.cli.moe.group import moe

LINE = "EPLB step: {} for model tiny: avg_tokens={:.2f}, max_tokens={}, balancedness=0, steps until"


def look(*args):
    done = CliRunner().invoke(moe, ["watch", *map(str, args)], catch_exceptions=False, standalone_mode=False)
    assert done.return_value == 0
    return [json.loads(line) for line in done.stdout.splitlines()]


def per_step(step, slots, n_gpus):
    """Busiest GPU over the mean by a plain loop: each expert's tokens dealt in turn to its slots."""
    loads = np.zeros(n_gpus)
    for expert, tokens in enumerate(step):
        mine = [i for i, held in enumerate(slots) if held == expert]
        for token in range(tokens):
            loads[mine[token % len(mine)] * n_gpus // len(slots)] += 1
    return loads.max() / loads.mean()


def test_a_log_tells_how_much_balance_could_save_at_most(tmp_path):
    """Oracle: sums by hand over the steps: 26 + 104 tokens of busiest ranks where ranks have 16 + 96."""
    path = tmp_path / "engine.log"
    path.write_text("".join(LINE.format(*step) + "\n" for step in ((6, 16, 26), (7, 96, 104))))
    (facts,) = look(path, "--for", 0, "--json")
    assert (facts["engine"], facts["model"], facts["step"], facts["n_steps"]) == ("vllm", "tiny", 7, 2)
    assert facts["imbalance"] == pytest.approx(130 / 112)
    assert facts["most_saved"] == pytest.approx(1 - 112 / 130)
    said = CliRunner().invoke(moe, ["watch", str(path), "--for", "0"], catch_exceptions=False).stdout
    assert "no placement saves more than 13.8 %" in said


def test_counts_tell_what_another_placement_gives(tmp_path):
    """Oracle: a plain loop over tokens, under the placement that engines begin with."""
    rng = np.random.default_rng(3)
    counts = rng.poisson(rng.lognormal(3, 1, 12), (6, 1, 12))
    np.savez(tmp_path / "loads.npz", counts=counts)
    (facts,) = look(tmp_path / "loads.npz", "--gpus", 4, "--slots", 16, "--for", 0, "--json")
    begins = [slot % 12 for slot in range(16)]
    assert facts["imbalance"] == pytest.approx(np.mean([per_step(step[0], begins, 4) for step in counts]))
    assert 1 <= facts["bound"] <= facts["best"] < facts["imbalance"]
    assert facts["moves"] > 0
    assert facts["foreseen"] is None


def test_a_growing_trace_is_followed_until_ctrl_c(tmp_path, popen, line_of):
    """Oracle: the shell's code for a program that was interrupted; the loads that were appended."""
    path, even, odd = tmp_path / "loads.jsonl", [[5] * 8], [[40, 0, 0, 0, 0, 0, 0, 0]]
    path.write_text(json.dumps(even) + "\n")
    program = popen(
        [sys.executable, "-m", "evenload", "moe", "watch", path, "--gpus", "4", "--every", "0.1", "--json"],
        stdout=-1, stderr=-1, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    assert json.loads(line_of(program.stdout, "n_windows"))["imbalance"] == 1
    with path.open("a") as file:
        file.write(json.dumps(odd) + "\n")
    facts = json.loads(line_of(program.stdout, "n_windows"))
    assert (facts["n_windows"], facts["n_new"], facts["imbalance"], facts["foreseen"]) == (2, 1, 4, 4)
    program.send_signal(signal.SIGINT)
    assert program.wait(timeout=500) == 130


def test_whole_lines_are_told_while_the_last_one_is_half_written(tmp_path, popen, line_of):
    """Oracle: what was written: each line begins before the one ahead of it has been told."""
    path, step = tmp_path / "loads.jsonl", json.dumps([[40, 0, 0, 0, 0, 0, 0, 0]])
    path.write_text(step + "\n" + step[:9])
    program = popen(
        [sys.executable, "-m", "evenload", "moe", "watch", path, "--gpus", "4", "--every", "0.1", "--json"],
        stdout=-1, text=True,
    )  # fmt: skip
    for told in range(1, 4):
        assert json.loads(line_of(program.stdout, "n_windows"))["n_windows"] == told
        with path.open("a") as file:
            file.write(step[9:] + "\n" + step[:9])
    program.kill()


def test_layers_without_gain_fetch_nothing(tmp_path):
    """Oracle: no load, or even loads, have nothing to gain from another placement."""
    idle, even, odd = [0] * 16, [5] * 16, [40, 40, 40, 40] + [0] * 12
    path = tmp_path / "loads.jsonl"
    moves = []
    for layers in ([idle, idle], [idle, even], [odd, odd], [idle, odd]):
        path.write_text(json.dumps(layers) + "\n")
        (facts,) = look(path, "--gpus", 4, "--for", 0, "--json")
        moves.append(facts["moves"])
        assert facts["best"] == 1
    assert moves[:2] == [0, 0]
    assert 0 < moves[3] < moves[2]


@pytest.mark.parametrize(
    ("name", "text", "code", "words"),
    [
        ("engine.log", "nothing of interest\n", 1, "no line on balance"),
        ("loads.jsonl", "[[1, 2], [3, 4]]\n[[1, 2", 1, "line 2"),
        ("loads.jsonl", "[[1, 2], [3, 4]]\n", 2, "--gpus"),
        ("loads.jsonl", f"[[1, {10**400}]]\n", 1, "line 1: a count of 2**1024 or more"),
        ("loads.xyz", "", 2, "unknown kind"),
    ],
)
def test_what_cannot_be_watched_is_refused(tmp_path, command, name, text, code, words):
    (tmp_path / name).write_text(text)
    found, _, err = command("moe", "watch", tmp_path / name, "--for", "0")
    assert (found, words in err) == (code, True)
