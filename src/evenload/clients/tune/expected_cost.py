"""What strategies are expected to cost before anything is measured: from a step's operations and sizes alone.

A step costs its operations' start and its arithmetic. A fused step starts each operation once for all of its
clients, for which vmap takes longer, and has to be compared with serial training first. The constants are
those of a common CPU core; where they are off by half, the choice below is still one that gains, as fusing is
expected only where it saves a fifth.
"""

import math
from dataclasses import dataclass

from evenload.clients.tune.step_work import StepWork
from evenload.clients.values.strategy import Strategy

SHARE = 0.016  # of the job's seconds, that samples may take: less than the choice is off without them
FEW = 3  # steps in the shortest sample, and samples of a strategy in turns: the least with one in the middle
OP_S, FUSED_OP_S = 3.5e-6, 1.2e-5  # seconds for starting an operation: of one client, of many under vmap
FLOP_S = 1 / 7e10  # seconds for an operation within a product
CACHED = 8 << 20  # numbers that the clients of one step write at most, unless there are two
DOUBT = 0.6  # of its cost, that a strategy may cost more which was sampled by itself; turns divide it


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

    pays_measuring    is the job long enough that measuring strategies takes a small share of it?
    chunk             clients in a fused step, where measuring begins
    n_ops             torch's operations in a step, of which most are compiled
    """

    strategy: Strategy
    why: str
    pays_measuring: bool = False
    chunk: int = Strategy().chunk
    n_ops: int = 100

    def compiling(self, chunk: int, step_s: float) -> float:
        """The part of ``step_s`` of each of ``chunk`` clients that compiling their step saves.

        The larger the part of starting operations, the more; where that is little, fused loops save more:
        78, 64, 50, 46 and 21 % were saved where it was 48, 4, 33, 3 and 10 %.
        """
        started = min(1.0, FUSED_OP_S * self.n_ops / (chunk * step_s))
        return min(0.75, math.sqrt(started))


def expect(work: WorkSize) -> Expectation:
    """What to choose for such work if nothing is measured. Pure."""
    serial, n_steps = Strategy(), work.n_steps * work.rounds
    if work.n_clients < 2:
        return Expectation(serial, "there is one client only")
    if n_steps * SHARE < 1:
        return Expectation(serial, f"{n_steps} steps are too few to gain anything")
    if work.step is None:
        return Expectation(serial, "its steps could not be counted", pays_measuring=True)
    step_s, chunk = serial_step_s(work.step), chunk_for(work)
    serial_s = n_steps * step_s
    fused_s = fused_step_s(work.step, chunk) if work.is_fusable else step_s
    best_s = n_steps * fused_s + check_s(work)
    # The first, cold step and two samples of serial training and of two others, at least.
    cost_s = (1 + 2 * FEW) * (step_s + 2 * (chunk if work.is_fusable else 2) * fused_s)
    strategy = serial
    if not work.is_fusable:
        why = "what fusing such a model takes is not known"
    elif best_s * (1 + DOUBT / 2) <= serial_s:  # an expectation is worth one turn
        why = (
            f"expected to take {best_s / serial_s:.0%} of serial's time, by the model's operations and sizes"
        )
        strategy = Strategy(inner="fused", chunk=chunk)
    else:
        why = "fusing so much is not expected to save a fifth, by the model's operations and sizes"
    return Expectation(
        strategy,
        f"{why}; measuring would not pay",
        cost_s <= SHARE * n_steps * min(step_s, fused_s),
        chunk,
        work.step.n_ops,
    )


def serial_step_s(step: StepWork) -> float:
    """Expected seconds of one client's step, alone."""
    return OP_S * step.n_ops + FLOP_S * step.flops


def fused_step_s(step: StepWork, chunk: int) -> float:
    """Expected seconds for each client of a fused step of ``chunk`` clients."""
    return FUSED_OP_S * step.n_ops / chunk + FLOP_S * step.flops


def check_s(work: WorkSize) -> float:
    """Expected seconds for starting, and for showing that fusing gives what serial training gives.

    Three batches of three clients are trained both ways; each short size of a batch is probed in six steps.
    """
    assert work.step is not None
    serial_s = (9 + 6 * work.n_short) * serial_step_s(work.step)
    return work.start_s + serial_s + 3 * FUSED_OP_S * work.step.n_ops


def chunk_for(work: WorkSize) -> int:
    """Clients in a step: as many as there are, and whose numbers fit into the caches."""
    assert work.step is not None
    elements = max(1, work.step.elements)
    # Beside a shared base a client's own is little, and no operation writes more than the next reads: a few.
    n_cached = work.step.n_ops / 16 if work.is_shared else 1
    cached = int(CACHED * n_cached) // elements
    chunk = min(work.n_clients, max(2, cached))
    return even_chunk(chunk, work.n_clients) if work.is_even else chunk


def even_chunk(chunk: int, n_clients: int) -> int:
    """A chunk near ``chunk`` that divides ``n_clients``, so that no step is half empty; else ``chunk``."""
    near = [c for c in range(1, n_clients + 1) if n_clients % c == 0 and chunk / 1.5 <= c <= chunk * 1.5]
    return min(near, key=lambda c: (max(c / chunk, chunk / c), -c), default=chunk)
