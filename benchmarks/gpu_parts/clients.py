"""Part ``clients``: many small trainings on one GPU: one by one, fused, in streams and in processes.

A row's time is that of a round by the clock, with reading rows from the host, divided by clients and steps;
its distance is the largest difference of a weight of the first clients from serial training on the GPU,
beside the way that weights go in a round. Convolutions are in full float32.
"""

import contextlib
import functools
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from client_cases import KEPT, Case, cases, comparable, distance, plain, states_of
from cuda_timing import median_s
from part import NotHere, Part, main, sharing

COMPILE_S = START_S = 25.0  # with fewer seconds left nothing is compiled, and no process is started
REPEATS = 3
STREAMS, PROCESSES = (2, 4, 8), (2, 4)  # one is what the other rows have
PEERS_S = 60.0


class Cohort:
    """n clients of a case, and what is known of their serial training.

    serial_ms  a step of a client, trained serially on the device
    truth      states of the first clients so trained;  way: the largest change of a weight
    """

    def __init__(self, part: Part, case: Case, n: int) -> None:
        self.part, self.case, self.n = part, case, n
        self.data = case.clients(n)
        self.serial_ms, self.truth, self.way = float("nan"), {}, float("nan")
        self.name = f"{case.name}, {n} clients"

    def serially(self) -> None:
        """Serial training on the device, by evenload and in plain torch."""
        n = min(self.n, KEPT)
        self.serial_ms, run = self._trained(
            plain("streams*1/eager", pretend=self.part.pretend), self.data[:n]
        )
        self.truth = states_of(run)
        start = dict.fromkeys(self.truth, self._start())
        self.way = distance(self.truth, start)
        self.part.row(
            f"{self.name}, serial", client_step_ms=self.serial_ms, way=self.way, trained=n,
            plain_torch_ms=self._plain_torch_ms(n),
        )  # fmt: skip

    def by(self, label: str, text: str, devices: Any = None) -> None:
        """The same clients by the strategy ``text``."""
        import torch

        began = time.perf_counter()
        ms, run = self._trained(plain(text, pretend=self.part.pretend), self.data, devices)
        whole_s = time.perf_counter() - began
        others = {"reasons": str(dict(run.plan.reasons))[:300]} if run.plan.reasons else {}
        self.part.row(
            f"{self.name}, {label}", client_step_ms=ms, x_serial=self.serial_ms / ms,
            distance=distance(self.truth, states_of(run)), way=self.way, ran=str(run.plan.strategy),
            whole_s=whole_s, **others,
        )  # fmt: skip
        del run
        if not self.part.pretend:
            torch.cuda.empty_cache()

    def _trained(self, text: str, data: list[Any], devices: Any = None) -> tuple[float, Any]:
        """Milliseconds of a client's step, and the first round with all states."""
        from evenload.clients import Trainer

        recipe = self.case.recipe
        with Trainer(self.case.model, strategy=text, devices=devices or self.part.device) as trainer:
            run = trainer.train(data, recipe)
            work = functools.partial(trainer.train, data, recipe, round=1, reduce="mean")
            seconds = median_s(self.part, work, REPEATS)
        return 1e3 * seconds / (len(data) * self.case.steps), run

    def _start(self) -> dict[str, Any]:
        from evenload.clients import Trainer

        with Trainer(self.case.model, strategy="serial") as trainer:
            return trainer.start

    def _plain_torch_ms(self, n: int) -> float:
        """The loop that everybody writes, with its rows on the device already."""
        from clients_models import serial

        place = self.part.device
        model = self.case.model().to(place)
        start = {name: t.clone() for name, t in model.state_dict().items()}
        data = [(x.to(place), y.to(place)) for x, y in self.data[: min(n, KEPT)]]
        serial(model, start, data[:1], self.case.batch)
        seconds = median_s(self.part, lambda: serial(model, start, data, self.case.batch), REPEATS)
        return 1e3 * seconds / (len(data) * self.case.steps)


def fused(cohort: Cohort) -> None:
    n, part = cohort.n, cohort.part
    part.tried(f"{cohort.name}, fused", lambda: cohort.by("fused", f"streams*1/fused:{n}"))


def compiled(cohort: Cohort) -> None:
    """Fused and compiled by torch."""
    n, part, what = cohort.n, cohort.part, "fused-compiled"
    if part.pretend or part.left_s < COMPILE_S:
        part.note(f"{cohort.name}, {what}: not tried where this only pretends, or too little time is left")
        return
    part.tried(f"{cohort.name}, {what}", lambda: cohort.by(what, f"streams*1/{what}:{n}"))


def in_streams(cohort: Cohort) -> None:
    """Clients one by one, and a share of them fused, in each of k streams."""
    n, part = cohort.n, cohort.part
    for k in STREAMS[:1] if part.pretend else STREAMS:
        each = -(-n // k)
        for text in (f"streams*{k}/eager", f"streams*{k}/fused:{each}"):
            part.tried(f"{cohort.name}, {text}", lambda text=text: cohort.by(text, text))
    if cohort.case.name in ("LeNet-5", "CIFAR"):
        part.tried(f"{cohort.name}, rules", lambda: cohort.by("rules", f"streams*1/rules:{n}"))


def in_processes(cohort: Cohort, k: int, how: str = "") -> None:
    """Clients over ``k`` processes that share the device, as evenload does it over ``k`` devices."""
    inners = "eager", f"fused:{-(-cohort.n // k)}"
    for inner in inners[1:] if cohort.part.pretend else inners:  # each starts processes
        if cohort.part.left_s < START_S:
            raise NotHere("too little time is left to start processes")
        place = sharing(cohort.part, k)
        cohort.by(f"processes*{k}{how}/{inner}", f"devices/{inner}", devices=place)


@contextlib.contextmanager
def mps() -> Iterator[None]:
    """NVIDIA's server that lets processes use a GPU at the same time, ended after the block."""
    control = shutil.which("nvidia-cuda-mps-control")
    if control is None:
        raise NotHere("nvidia-cuda-mps-control is not installed")
    with tempfile.TemporaryDirectory(prefix="mps-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        names = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
        os.environ |= dict.fromkeys(names, folder)
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "timeout": 30}
        try:
            if subprocess.run([control, "-d"], **quiet).returncode:
                raise NotHere("the MPS daemon did not start")
            yield
        finally:
            subprocess.run([control], input=b"quit\n", **quiet)
            for name in names:
                del os.environ[name]


def processes(part: Part, cohorts: list[Cohort]) -> None:
    """With the GPU's time shared among processes, and with MPS, if it can be started."""

    def all_of(how: str) -> None:
        for k in PROCESSES[:1] if part.pretend else PROCESSES:
            for cohort in cohorts:
                what = f"{cohort.name}, processes*{k}{how}"
                part.tried(what, functools.partial(in_processes, cohort, k, how))

    def with_mps() -> None:
        with mps():
            all_of(" with MPS")

    all_of("")
    part.tried("processes with MPS", with_mps)


def jax(part: Part, cohort: Cohort) -> None:
    """JAX's vmap over the same network: every client and step in one compiled program."""
    if importlib.util.find_spec("jax") is None:
        raise NotHere("JAX is not installed")
    script = Path(__file__).resolve().parents[1] / "clients_peers" / "jax_round.py"
    env = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}

    def said(*command: str) -> str:
        done = subprocess.run(
            [sys.executable, *command], env=env, capture_output=True, text=True, timeout=PEERS_S, check=True
        )
        return done.stdout.strip().splitlines()[-1]

    devices = said("-c", "import jax; print(jax.devices())")
    for way, found in json.loads(said(str(script), cohort.case.name, str(cohort.n), "5")).items():
        if "round_s" in found:
            ms = 1e3 * found["round_s"] / (cohort.n * cohort.case.steps)
            part.row(f"{cohort.name}, {way}", client_step_ms=ms, x_serial=cohort.serial_ms / ms, on=devices)
        else:
            part.note(f"{way}: {found.get('error', '')}")


def on_cpu(cohort: Cohort) -> None:
    """Serial training on this machine's CPU, and how far it ends from the GPU's."""
    cohort.by("serial on the CPU", "serial")


def each(part: Part, cohorts: list[Cohort], measure: Callable[[Cohort], None]) -> None:
    """Measure one thing of all cohorts that have been trained serially."""
    for cohort in cohorts:
        if cohort.truth:
            measure(cohort)
        else:
            part.note(f"{cohort.name}: not trained serially, so there is nothing to compare with")


def begun(part: Part, known: dict[str, Case], n: int, names: list[str]) -> list[Cohort]:
    cohorts = [Cohort(part, known[name], n) for name in names]
    for cohort in cohorts:
        part.tried(f"{cohort.name}, serial", cohort.serially)
    return cohorts


def measure(part: Part) -> None:
    import torch

    if not part.pretend and not torch.cuda.is_available():
        raise NotHere("torch finds no CUDA GPU")
    comparable()
    known = cases(pretend=part.pretend)
    if part.pretend:
        del known["CIFAR"]  # seconds, even so
    many, few, most = (3, 2, 3) if part.pretend else (100, 20, 1000)
    cohorts = begun(part, known, many, list(known))
    each(part, cohorts, fused)
    others = [] if part.pretend else [name for name in known if name != "CIFAR"]  # 1000 are 7 GB of weights
    each(part, begun(part, known, most, others), fused)
    each(part, cohorts, compiled)
    each(part, cohorts[-1:] if part.pretend else cohorts, in_streams)
    processes(part, [cohort for cohort in cohorts[: 1 if part.pretend else 2] if cohort.truth])
    part.tried("JAX", lambda: jax(part, cohorts[0]))
    last = begun(part, known, few, list(known)[: 1 if part.pretend else None])
    each(part, last, fused)
    each(part, last, lambda cohort: part.tried(f"{cohort.name}, CPU", lambda: on_cpu(cohort)))


if __name__ == "__main__":
    main(measure)
