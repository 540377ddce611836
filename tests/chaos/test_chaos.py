"""A short run of random programs, and a proof that the checker can fail: evidence that is damaged is refused.

`make chaos` runs many more; see docs/explanation/faults.md.
"""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
from chaos.checker import check
from chaos.evidence import Line
from chaos.programs import ACTS, DEEDS, STRIKES, Phase, Program, digest, program_of, value_of
from chaos.runner import run_program

SHORT = (6, 7, 8)
"""Seeds of programs that are over soon; together they have most kinds of faults."""


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", SHORT)
def test_a_random_program_breaks_no_promise(seed: int, tmp_path: Path) -> None:
    outcome = run_program(seed, tmp_path)
    evidence = tmp_path / str(seed) / "evidence"
    seen = evidence.read_text()[-3000:] if evidence.exists() else ""
    assert not outcome.violations, f"CHAOS_SEED={seed} make chaos repeats this\n{seen}"
    assert outcome.faults


def test_programs_are_the_same_for_a_seed_and_have_all_that_can_happen() -> None:
    assert program_of(3) == program_of(3)
    programs = [program_of(seed) for seed in range(300)]
    phases = [phase for program in programs for phase in program.phases]
    assert {deed.name for phase in phases for deed in phase.deeds.values()} >= set(DEEDS)
    assert {act.name for phase in phases for act in phase.acts} == set(ACTS)
    assert {strike.name for program in programs for strike in program.strikes} == set(STRIKES)
    assert {phase.kind for phase in phases} == {"map", "calls", "gang", "pipeline"}


# --- the checker ----------------------------------------------------------------------------------

N = 6


def made(**changes: object) -> tuple[Program, list[Line]]:
    """A program of one map, and the evidence of a run without fault."""
    phase = dataclasses.replace(Phase(0, "map", N), **changes)  # type: ignore[arg-type]
    program = Program(1, 2, "forkserver", None, 2, (phase,), ())
    lines = [Line("life", 0, 1, -1, -1, "begins"), Line("run", 0, 1, 0, -1, "")]
    for item in range(N):
        value = "= " + digest(value_of(1, 0, item, 0))
        lines += [Line("began", 0, 2, 0, item, ""), Line("ended", 0, 2, 0, item, "")]
        lines += [Line("got", 0, 1, 0, item, value)]
    lines += [Line("over", 0, 1, 0, -1, "as told done"), Line("alive", 0, 1, 0, -1, "")]
    return program, [*lines, Line("life", 0, 1, -1, -1, "ends")]


def without(kind: str, item: int) -> Callable[[list[Line]], list[Line]]:
    return lambda lines: [line for line in lines if (line.kind, line.item) != (kind, item)]


def replaced(kind: str, item: int, more: str) -> Callable[[list[Line]], list[Line]]:
    return lambda lines: [
        dataclasses.replace(line, more=more) if (line.kind, line.item) == (kind, item) else line
        for line in lines
    ]


def twice(kind: str, item: int) -> Callable[[list[Line]], list[Line]]:
    return lambda lines: [
        one for line in lines for one in [line] * (1 + ((line.kind, line.item) == (kind, item)))
    ]


DAMAGE: dict[str, tuple[Callable[[list[Line]], list[Line]], dict]] = {
    "an item is lost": (without("got", 3), {}),
    "one is delivered twice": (twice("got", 3), {}),
    "a value is wrong": (replaced("got", 3, "= (3, 1)"), {}),
    "a value that nobody made": (without("ended", 3), {}),
    "an error without a cause": (replaced("got", 3, "WorkerLost: gone"), {}),
    "a time limit that nobody passed": (replaced("got", 3, "TaskTimeout: late"), {}),
    "a second run of what may run once": (twice("began", 3), {"repeatable": False}),
    "the run ends with an error": (replaced("over", -1, "KeyError: 3"), {}),
    "the run never ends": (without("over", -1), {}),
    "the executor is dead": (without("alive", -1), {}),
    "a damaged item": (lambda lines: [*lines, Line("input", 0, 2, 0, 3, "ndarray")], {}),
    "a descriptor is left": (lambda lines: [*lines, Line("left", 0, 1, -1, -1, "pipe")], {}),
    "results out of order": (lambda lines: [*lines[:2], *lines[5:8], *lines[2:5], *lines[8:]], {}),
    "a journal's result is made again": (
        lambda lines: [*lines[:-1], Line("began", 1, 9, 0, 3, ""), lines[-1]], {"journal": True},
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", DAMAGE)
def test_the_checker_sees_that(what: str) -> None:
    damage, options = DAMAGE[what]
    program, lines = made(**options)
    assert check(program, lines) == []
    assert check(program, damage(lines)) != []


def test_each_stage_of_a_pipeline_may_lose_so_many_workers() -> None:
    program, lines = made(kind="pipeline")
    killed = [
        line
        for pid, phase in ((7, 0), (8, 100), (9, 100))
        for line in (Line("began", 0, pid, phase, 3, ""), Line("fault", 0, pid, phase, 3, "kill worker"))
    ]
    lost = [Line("got", 0, 1, 0, 3, "WorkerLost: failed") if (line.kind, line.item) == ("got", 3) else line
            for line in lines]  # fmt: skip

    def of_item_3(lines: list[Line]) -> list[str]:
        return [told for told in check(program, lines) if "item 3" in told]

    assert not of_item_3(killed + lost)
    assert of_item_3(killed[:4] + lost), "once in each stage"


def test_a_batch_that_may_run_once_is_lost_with_its_worker_as_a_whole() -> None:
    program, lines = made(batch=3, repeatable=False)
    dead = Line("fault", 0, 2, 0, 3, "kill")
    lines = [line for line in lines if (line.kind, line.item) not in (("began", 4), ("ended", 4))]
    lost = [Line("got", 0, 1, 0, 4, "WorkerLost: unknown") if (line.kind, line.item) == ("got", 4) else line
            for line in lines]  # fmt: skip
    assert not [told for told in check(program, [dead, *lost]) if "item 4" in told]
    assert [told for told in check(program, lost) if "item 4" in told], "nobody has killed it"


def test_the_end_of_a_fork_server_is_no_excuse_for_a_lost_item() -> None:
    program, lines = made()
    ends = [Line("fault", 0, pid, 0, 3, "kill fork server") for pid in (2, 7)]
    lost = replaced("got", 3, "WorkerLost: failed")(lines)
    assert [told for told in check(program, [lines[0], lines[1], *ends, *lost[2:]]) if "item 3" in told]


def test_a_disk_that_goes_with_its_driver_takes_its_journal_along() -> None:
    again = Line("began", 1, 9, 0, 3, "")
    for disk, is_wrong in (("limit", True), ("full", False)):
        program, lines = made(journal=True, repeatable=False, disk=disk)
        begun = [line for line in lines if line.kind not in ("got", "over")]
        assert any("began 2 times" in told for told in check(program, [*begun, again])) == is_wrong
