"""What strategies are expected to cost before anything is measured: from a step's operations and sizes alone.

A step costs its operations' start and its arithmetic. A fused step starts each operation once for all of its
clients, for which vmap takes longer, and has to be compared with serial training first. The constants are
those of a common CPU core; where they are off by half, the choice below is still one that gains, as fusing is
expected only where it saves a fifth.
"""

from dataclasses import dataclass

from evenload.clients.tune.step_work import StepWork
from evenload.clients.values.strategy import Strategy

__all__ = ["FEWEST_STEPS", "Expectation", "WorkSize", "even_chunk", "expect"]

OP_S, FUSED_OP_S = 3.5e-6, 1.2e-5  # seconds for starting an operation: of one client, of many under vmap
FLOP_S, ELEMENT_S = 1 / 7e10, 2e-10  # seconds for an operation within a product, and for a number written
BATCHED = 1.15  # times as long takes arithmetic on stacks of small matrices
SHARED = 1.0  # times as long takes arithmetic with matrices that are the same for all clients
CACHE_BYTES = 32 << 20  # what the clients of one step write at most, unless there are two
SHARED_BYTES = 2 << 20  # what an operation of a step with shared matrices writes at most, for all clients
NUMBER_BYTES = 4
FUSED_START_S = 0.01  # for making a fused engine, and its first calls
FEWEST_STEPS = 60  # of a job; with fewer, comparing with serial training would take more than fusing saves
GAIN = 0.8  # of serial training's seconds, at most, are expected where fusing is chosen
CHECKED_STEPS, CHECKED_FUSED = 9, 3  # serial and fused steps of the comparison with serial training
PROBED_STEPS = 6  # serial steps that showing takes that a batch of one size may be padded
SAMPLE_STEPS = 7  # steps of each client for one measurement of a strategy, its first, cold one included
MEASURED = 3  # measurements at least, for a choice: serial, and two others
SHARE = 0.018  # of the job that measuring may take: as ``probe_timer`` has it
# Parts of a job that compiling is expected to save, by the share of a fused step that starting operations is:
# that share, and about twice as much again by fused loops, where it is small; else nearly all of it.
LOOPS, MOST_BY_LOOPS = 3.0, 0.6
STARTS, MOST_BY_STARTS = 0.7, 0.75


@dataclass(frozen=True, slots=True)
class WorkSize:
    """The size of a job: clients of one model, and rounds of them.

    step       one client's step, or None if it could not be counted
    n_clients  in a round; ``n_steps`` of all of these in a round, ``rounds`` to come
    n_short    sizes of batches that are not full, each of which is probed before it is padded
    is_even    do all clients have as many steps?
    start_s    seconds before the first fused step, for what has to be loaded for it
    is_fusable can clients be fused, and is a fused step torch's own operations under vmap?
    is_shared  is most of the model frozen, and the same for all clients, as the base of adapters?
    """

    step: StepWork | None
    n_clients: int
    n_steps: int
    rounds: int
    n_short: int = 0
    start_s: float = 0.0
    is_even: bool = True
    is_fusable: bool = True
    is_shared: bool = False


@dataclass(frozen=True, slots=True)
class Expectation:
    """The strategy that is expected to take least CPU time, and why.

    serial_s, best_s  expected seconds of the whole job: serially, and by the strategy with its checks
    pays_measuring    is the job long enough that measuring strategies takes a small share of it?
    """

    strategy: Strategy
    why: str
    serial_s: float
    best_s: float
    pays_measuring: bool


def expect(work: WorkSize) -> Expectation:
    """What to choose for such work if nothing is measured. Pure."""
    serial, n_steps = Strategy(), work.n_steps * work.rounds
    if work.n_clients < 2:
        return Expectation(serial, "there is one client only", 0.0, 0.0, False)
    if n_steps < FEWEST_STEPS:
        return Expectation(serial, f"{n_steps} steps are too few to gain anything", 0.0, 0.0, False)
    if work.step is None:
        return Expectation(serial, "its steps could not be counted", 0.0, 0.0, True)
    step_s = serial_step_s(work.step)
    serial_s = n_steps * step_s
    if not work.is_fusable:
        pays, why = _pays(step_s, step_s, 2, n_steps), _few("what fusing such a model takes is not known")
        return Expectation(serial, why, serial_s, serial_s, pays)
    chunk = chunk_for(work)
    fused_s = fused_step_s(work.step, chunk, is_shared=work.is_shared)
    best_s = n_steps * fused_s + check_s(work)
    if best_s <= GAIN * serial_s:
        pays = _pays(step_s, fused_s, chunk, n_steps)
        share = f"{best_s / serial_s:.0%} of serial's time"
        why = _few(f"expected to take {share}, by the model's operations and sizes")
        return Expectation(Strategy(inner="fused", chunk=chunk), why, serial_s, best_s, pays)
    why = _few("fusing so much is not expected to save a fifth, by the model's operations and sizes")
    return Expectation(serial, why, serial_s, serial_s, _pays(step_s, fused_s, chunk, n_steps))


def serial_step_s(step: StepWork) -> float:
    """Expected seconds of one client's step, alone."""
    return OP_S * step.n_ops + arithmetic_s(step)


def fused_step_s(step: StepWork, chunk: int, *, is_shared: bool = False) -> float:
    """Expected seconds for each client of a fused step of ``chunk`` clients."""
    return FUSED_OP_S * step.n_ops / chunk + (SHARED if is_shared else BATCHED) * arithmetic_s(step)


def compile_gain(launch_share: float) -> float:
    """The part of a job by a fused strategy that compiling its step is expected to save. Pure.

    launch_share  of the step's time that starting its operations is expected to take; noise may make it > 1
    """
    return max(min(LOOPS * launch_share, MOST_BY_LOOPS), min(STARTS * launch_share, MOST_BY_STARTS))


def arithmetic_s(step: StepWork) -> float:
    return FLOP_S * step.flops + ELEMENT_S * step.elements


def check_s(work: WorkSize) -> float:
    """Expected seconds for starting, and for showing that fusing gives what serial training gives."""
    assert work.step is not None
    steps = CHECKED_STEPS + PROBED_STEPS * work.n_short
    checked_s = steps * serial_step_s(work.step) + CHECKED_FUSED * FUSED_OP_S * work.step.n_ops
    return work.start_s + FUSED_START_S + checked_s


def chunk_for(work: WorkSize) -> int:
    """Clients in a step: as many as there are, and whose numbers fit into the caches."""
    assert work.step is not None
    if work.is_shared:  # what is a client's own is little, and no operation writes more than the next reads
        cached = SHARED_BYTES * work.step.n_ops // max(1, NUMBER_BYTES * work.step.elements)
    else:
        cached = CACHE_BYTES // max(1, NUMBER_BYTES * work.step.elements)
    chunk = min(work.n_clients, max(2, cached))
    return even_chunk(chunk, work.n_clients) if work.is_even else chunk


def even_chunk(chunk: int, n_clients: int) -> int:
    """A chunk near ``chunk`` that divides ``n_clients``, so that no step is half empty; else ``chunk``."""
    near = [c for c in range(1, n_clients + 1) if n_clients % c == 0 and chunk / 1.5 <= c <= chunk * 1.5]
    return min(near, key=lambda c: (max(c / chunk, chunk / c), -c), default=chunk)


def _pays(serial_s: float, best_s: float, chunk: int, n_steps: int) -> bool:
    """Does a small share of the job pay for measuring serial training and others on chunks of clients?"""
    cost_s = SAMPLE_STEPS * (serial_s + (MEASURED - 1) * chunk * best_s)
    return cost_s <= SHARE * n_steps * min(serial_s, best_s)


def _few(why: str) -> str:
    return f"{why}; measuring would not pay"
