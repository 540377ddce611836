"""Steps that engines log, from lines that they wrote, and from logs that grow, are cut and are no logs."""

import os

import pytest
from examples_count import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from evenload.cli.moe.watch import LogFollower, balance_of
from evenload.errors import ConfigError

# Verbatim of a run of vLLM 0.32 on two ranks; that of an older version by its format.
VLLM = (
    "(Worker_TP0_EP0 pid=23858) INFO 11-28 01:04:47 [eplb_state.py:634] EPLB step: 6 for model /models/tiny:"
    " avg_tokens=16.00, max_tokens=26, balancedness=0.6154, steps until the next rearrangement: 2"
)
OLDER = "INFO 08-01 10:00:00 EPLB step: avg_tokens=%.2f, max_tokens=%d, balancedness=%.4f"


def sglang(number, ratio, count):
    """As SGLang's recorder formats it (expert_distribution.py), with its three means."""
    means = {10: ratio, 100: ratio, 1000: ratio}
    return (
        f"[Expert Balancedness] "
        f"forward_pass_id={number} "
        f"current_pass_balancedness={ratio:.03f} "
        f"{''.join(f'last_{size}_average_balancedness={value:.03f} ' for size, value in means.items())} "
        f"gpu_physical_count_sum={count}"
    )


def test_lines_of_engines_are_read():
    """Oracle: what the lines say to a reader."""
    line = balance_of(VLLM)
    assert (line.engine, line.model, line.step, line.tokens) == ("vllm", "/models/tiny", 6, 16.0)
    assert line.balancedness == pytest.approx(16 / 26)
    assert balance_of(OLDER % (12.5, 25, 0.5)).balancedness == 0.5
    line = balance_of("[2026-11-28 01:04:47 DP0 TP0 EP0] " + sglang(41, 0.853, 49152))
    assert (line.engine, line.step, line.balancedness, line.tokens) == ("sglang", 41, 0.853, 49152)


@pytest.mark.parametrize(
    "line",
    [
        "", "Rearranging experts sync mode ...", OLDER % (0, 0, 0), OLDER % (30, 10, 3), sglang(1, 0, 5),
        "EPLB step: 1 for model x: avg_tokens=nan, max_tokens=1, balancedness=1",
        "EPLB step: 1 for model x: avg_tokens=" + "9" * 400 + ", max_tokens=1, balancedness=1",
        "EPLB step: " + "1 for model " * 9000,
    ],
)  # fmt: skip
def test_other_lines_and_steps_without_tokens_are_none(line):
    assert balance_of(line) is None


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(1, 10**6), st.integers(1, 10**6), st.integers(0, 10**9))
def test_any_step_is_read_as_it_was_written(mean, more, step):
    """Oracle: the numbers that were formatted."""
    said = VLLM.replace("step: 6", f"step: {step}").replace("16.00", f"{mean:.2f}")
    line = balance_of(said.replace("max_tokens=26", f"max_tokens={mean + more}"))
    assert line.step == step
    assert line.balancedness == pytest.approx(mean / (mean + more))


def test_a_log_that_grows_is_read_once_and_from_the_start_when_it_is_replaced(tmp_path):
    path = tmp_path / "engine.log"
    path.write_text(f"{VLLM}\nnoise\n{VLLM[:60]}")
    follower = LogFollower(path)
    assert [step.step for step in follower.read()] == [6]
    with path.open("a") as file:
        file.write(VLLM[60:].replace("26", "32") + "\n")
    assert [step.balancedness for step in follower.read()] == [0.5]
    assert (follower.read(), follower.is_behind) == ([], False)
    path.write_text(VLLM + "\n")
    assert len(follower.read()) == 1


def test_what_is_no_log_is_refused_or_skipped(tmp_path):
    path = tmp_path / "engine.log"
    path.write_bytes(os.urandom(1 << 16) + b"\n" + b"x" * (1 << 18) + b"\n" + VLLM.encode() + b"\n")
    assert len(LogFollower(path).read()) == 1
    with pytest.raises(OSError, match="engine"):
        LogFollower(tmp_path / "no-engine.log").read()
    os.mkfifo(tmp_path / "pipe.log")
    with pytest.raises((ConfigError, OSError)):
        LogFollower(tmp_path / "pipe.log").read()
