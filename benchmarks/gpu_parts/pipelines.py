"""Part ``pipelines``: models of several GB, edit and score: memory and time as predicted, and as measured.

The edit is diffusers' QwenImageEditPipeline, the scorer transformers' Qwen2.5-VL, both with random weights
that are made here, saved, loaded by the stages that ship, and removed in the end. Without diffusers a second
Qwen2.5-VL takes the place of the edit; a note says so.
"""

import functools
import gc
import importlib.util
import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from part import NotHere, Part, main

STEPS, N_ITEMS = (8, 2), (8, 3)  # real, pretended
GB = 1e9
FIRST = """
from evenload.pipeline.stages.vlm_score import VlmScore

class First(VlmScore):
    def __call__(self, inputs, item):
        return {"first": super().__call__(inputs, item)["score"]}
"""
QUESTION = "How sharp is the picture? Answer with one digit from 0 to 9."


def job(has_diffusers: bool, steps: int) -> dict[str, Any]:
    """The job as a job file has it: encode, denoise, decode and score, or two scorers in a row."""
    if has_diffusers:
        import yaml
        from pipeline_prediction import JOB

        return yaml.safe_load(JOB.format(models="models", steps=steps))
    reads = {"images": ["path"], "question": QUESTION}
    score = {"name": "score", "kind": "vlm_score", "model": {"path": "models/scorer"}, "params": reads}
    first = {"name": "first", "target": "first.py:First", "model": {"path": "models/first"}, "params": reads}
    return {
        "version": 1,
        "job": {"name": "tiny", "inputs": {"jsonl": "pairs.jsonl"}},
        "stages": [first | {"outputs": {"first": "number"}}, score | {"outputs": {"score": "number"}}],
    }


class Bench:
    """The models on disk, the job, and what was measured of its stages so far."""

    def __init__(self, part: Part, folder: Path) -> None:
        self.part, self.folder = part, folder
        self.has_diffusers = importlib.util.find_spec("diffusers") is not None
        self.steps, self.n_items = STEPS[part.pretend], N_ITEMS[part.pretend]
        self.probed: dict[str, dict[str, float]] = {}  # seconds of an item and of a load, by stage
        self.facts: dict[str, Any] = {}  # what the planner knows of each stage before it runs
        self.limit = 0  # bytes that hold each stage by itself, but not all of them together
        self.outputs: dict[str, bytes] = {}

    def build(self) -> None:
        import random_models
        from pipeline_prediction import _row

        free = shutil.disk_usage(self.folder).free
        if not self.part.pretend and free < random_models.NEEDED_BYTES:
            raise NotHere(
                f"{free / GB:.0f} GB are free on the disk, {random_models.NEEDED_BYTES / GB:.0f} are needed"
            )
        if not self.has_diffusers:
            self.part.note("diffusers is not here: a second Qwen2.5-VL takes the place of the edit pipeline")
        began = time.perf_counter()
        random_models.build(self.folder / "models", self.has_diffusers, self.part.pretend, self.part.device)
        seconds = time.perf_counter() - began
        rows = [_row(self.folder, number)[0] | {"id": f"p{number}"} for number in range(self.n_items)]
        (self.folder / "pairs.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        (self.folder / "first.py").write_text(FIRST)
        n_bytes = sum(file.stat().st_size for file in self.folder.rglob("*.safetensors"))
        self.part.row("models made and saved", models_bytes=n_bytes, seconds=seconds)

    def spec(self, name: str = "job.yaml", **changes: Any) -> Any:
        """The job file ``name``, written and read."""
        from evenload.pipeline.job.job_file import load_spec

        path = self.folder / name
        path.write_text(json.dumps(job(self.has_diffusers, self.steps) | changes))
        return load_spec(path)

    def runs(self) -> Any:
        from pipeline_prediction import Runs

        class Place:
            id = self.part.device if not self.part.pretend else "cpu:0"
            torch = self.part.device

        return Runs(self.spec().stages, self.folder, Place)


def clean() -> None:
    """Give freed memory back to the driver."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


def timed(work: Callable[[], Any]) -> float:
    import torch

    began = time.perf_counter()
    work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - began


def peak_bytes(bench: Bench, runs: Any, stage: Any, work: Callable[[], Any]) -> int:
    """Bytes of weights and of what lives at once in ``work``: by torch's allocator, on a CPU by counting."""
    import torch

    from evenload.pipeline.planning.estimates.work_estimate import peak_tensor_bytes

    if not bench.part.pretend:
        torch.cuda.reset_peak_memory_stats()
        work()
        return torch.cuda.max_memory_allocated()
    weights = runs.tensors_of(stage)
    return peak_tensor_bytes(work, weights) + sum(
        {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in weights}.values()
    )


def bytes_of(fact: Any) -> int:
    """Bytes that the planner expects a stage to take, without the driver's context."""
    return (fact.weight_bytes or 0) + fact.activation_bytes


def predictions(bench: Bench) -> list[Any]:
    """What the planner knows of each stage before anything runs: from configs and data sheets."""
    from evenload.devices.rates.hardware import find_hardware, hardware_named
    from evenload.pipeline.planning.job_plan import build_job_problem
    from evenload.pipeline.planning.modelled_fleet import FleetDevice

    if bench.part.pretend:
        device = FleetDevice("cuda:0", "h100", 80 << 30, hardware_named("h100"))
    else:
        import torch

        name = torch.cuda.get_device_name(0)
        device = FleetDevice("cuda:0", name, torch.cuda.mem_get_info()[0], find_hardware(name))
        if device.hardware is None:
            bench.part.note(f"no data sheet of {name} is known: times are not predicted")
    asked = build_job_problem(bench.spec(), bench.n_items, bench.folder, [device], trace=bench.has_diffusers)
    facts = asked.stages
    bench.facts = {fact.name: fact for fact in facts}
    together = sum(fact.weight_bytes or 0 for fact in facts) + max(fact.activation_bytes for fact in facts)
    context = 0 if bench.part.pretend else asked.problem.context_bytes
    bench.limit = context + (max(map(bytes_of, facts)) + together) // 2
    return list(facts)


def stages(bench: Bench) -> None:
    """Each stage by itself: bytes, seconds to load, seconds for an item."""
    from pipeline_prediction import _row

    facts, runs = predictions(bench), bench.runs()
    inputs = [_row(bench.folder, number) for number in range(2)]
    for stage, fact in zip(runs.stages, facts, strict=True):
        clean()
        load_s = timed(lambda stage=stage: runs.load(stage))
        first = functools.partial(runs.run, stage, *inputs[0])
        peak = peak_bytes(bench, runs, stage, first)
        item_s = timed(functools.partial(runs.run, stage, *inputs[1]))
        bench.probed[stage.name] = {"item_s": item_s, "load_s": load_s}
        predicted = bytes_of(fact)
        bench.part.row(
            f"stage {stage.name}", predicted_bytes=predicted, measured_bytes=peak, x_bytes=predicted / peak,
            bytes_from=fact.activation_from, weight_bytes=fact.weight_bytes,
            predicted_item_s=fact.item_s, item_s=item_s, x_item=fact.item_s and fact.item_s / item_s,
            predicted_load_s=fact.load_s, load_s=load_s,
        )  # fmt: skip
        del runs.loaded[stage.name]
    clean()


def largest(bench: Bench, runs: Any) -> Any:
    return max(runs.stages, key=lambda stage: bytes_of(bench.facts[stage.name]))


def output_of(bench: Bench, runs: Any, stage: Any) -> tuple[float, Any]:
    """Seconds of the second of two equal items, and the bytes (or the number) of its last output."""
    from pipeline_prediction import _row

    inputs, item = _row(bench.folder, 0)
    for before in runs.stages[: runs.stages.index(stage)]:  # what they gave is on disk from the first look
        for name, kind in before.outputs.items():
            path = bench.folder / f"{item.id}.{name}.{kind}"
            inputs |= {name: str(path)} if path.exists() else {}
    runs.run(stage, inputs, item)
    seconds = timed(lambda: runs.run(stage, inputs, item))
    name, kind = next(iter(stage.outputs.items()))
    value = inputs[name]
    return seconds, value if kind == "number" else Path(value).read_bytes()


def park(bench: Bench) -> None:
    """The largest stage parked in pinned memory and back, beside a plain copy and what is assumed."""
    import torch

    from evenload.pipeline.worker.parking import PIN_BYTES_S, UPLOAD_BYTES_S, HostCopy

    runs = bench.runs()
    stage = largest(bench, runs)
    runs.load(stage)
    _, before = output_of(bench, runs, stage)
    clean()
    host = HostCopy(runs.loaded[stage.name])
    full = 0 if bench.part.pretend else torch.cuda.memory_allocated()
    park_s = timed(host.park)
    freed = full if not full else full - torch.cuda.memory_allocated()
    unpark_s = timed(host.unpark)
    again_s = timed(host.park)
    host.unpark()
    _, after = output_of(bench, runs, stage)
    bench.part.row(
        f"park {stage.name}", weight_bytes=host.n_bytes, freed_bytes=freed, park_s=park_s, unpark_s=unpark_s,
        park_again_s=again_s, load_s=bench.probed[stage.name]["load_s"], is_equal=before == after,
        park_gb_s=host.n_bytes / park_s / GB, assumed_park_gb_s=PIN_BYTES_S / GB,
        unpark_gb_s=host.n_bytes / unpark_s / GB, assumed_unpark_gb_s=UPLOAD_BYTES_S / GB,
        plain_copy_gb_s=plain_copy(bench.part) / GB,
    )  # fmt: skip
    runs.loaded.clear()
    clean()


def plain_copy(part: Part) -> float:
    """Bytes a second of one large copy from pinned memory to the device."""
    import torch

    n_bytes = 1 << (20 if part.pretend else 30)
    host = torch.empty(n_bytes, dtype=torch.uint8, pin_memory=not part.pretend)
    host.to(part.device)
    return n_bytes / min(timed(lambda: host.to(part.device, non_blocking=True)) for _ in range(3))


def streamed(bench: Bench) -> None:
    """The largest stage with all, half and none of its blocks resident: memory and time beside the plan's."""
    from evenload.pipeline.plan import Fit

    runs = bench.runs()
    stage = largest(bench, runs)
    weights = bench.facts[stage.name].size.weights
    n_passes = bench.steps if stage.name == "denoise" else 1
    whole_s, whole = 0.0, None
    for n_resident in (weights.n_blocks, weights.n_blocks // 2, 0):
        clean()
        runs.load(
            stage,
            Fit() if n_resident == weights.n_blocks else Fit("resident_stream", resident_blocks=n_resident),
        )
        found: list[Any] = []
        peak = peak_bytes(bench, runs, stage, lambda found=found: found.extend(output_of(bench, runs, stage)))
        whole_s, whole = (whole_s, whole) if whole is not None else (found[0], found[1])
        moved = (weights.n_blocks - n_resident) * weights.block_bytes
        least_s = n_passes * moved / link_bytes_s(bench)
        bench.part.row(
            f"stream {stage.name}", resident_blocks=n_resident, blocks=weights.n_blocks, measured_bytes=peak,
            item_s=found[0], predicted_item_s=max(whole_s, least_s), x_whole=found[0] / whole_s,
            is_equal=found[1] == whole,
        )  # fmt: skip
        runs.loaded.clear()
    clean()


def link_bytes_s(bench: Bench) -> float:
    """What the planner takes blocks to be streamed at on this device."""
    from evenload.devices.rates.hardware import find_hardware
    from evenload.pipeline.planning.job_plan import BUS_SHARE

    known = None
    if not bench.part.pretend:
        import torch

        known = find_hardware(torch.cuda.get_device_name(0))
    return BUS_SHARE * (known.bus_bytes_s if known else 31.5e9)


def whole_job(bench: Bench) -> None:
    """The job as users run it, on a device that cannot hold all its models at once: planned, and then run."""
    from pipeline_run import last_s

    from evenload.events import read_events
    from evenload.pipeline import Pipeline

    device = "cpu:0" if bench.part.pretend else bench.part.device
    given = job(bench.has_diffusers, bench.steps)["stages"]
    changed = [stage | {"estimate": bench.probed[stage["name"]]} for stage in given]
    use = {"use": "cpu*1" if bench.part.pretend else device, "reserve": "0GiB"}
    use["limits"] = {device: f"{bench.limit // 1024}KiB"}
    bench.spec("limited.yaml", stages=changed, devices=use)
    clean()
    began = time.perf_counter()
    backend = "inline" if bench.part.pretend else None  # a process would import all of it once more
    done = Pipeline.from_yaml(bench.folder / "limited.yaml").run(out=bench.folder / "run", backend=backend)
    seconds = time.perf_counter() - began
    events = list(read_events(bench.folder / "run"))
    planned = next(event for event in events if type(event).__name__ == "Planned")
    wall_s = last_s(events) - min(event.t for event in events if type(event).__name__ == "WorkerStarted")
    bench.part.row(
        f"job on {device}", items=bench.n_items, done=done.n_done, mode=planned.mode,
        limit_bytes=bench.limit, predicted_s=planned.makespan_s, measured_s=wall_s,
        x_predicted=planned.makespan_s and wall_s / planned.makespan_s, bound_s=planned.bound_s,
        with_start_s=seconds,
    )  # fmt: skip
    report = bench.folder / "run" / "report.html"
    if report.is_file():
        shutil.copyfile(report, bench.part.report)
    if done.n_done != bench.n_items:
        raise RuntimeError(f"{done.n_done} of {bench.n_items} items are done: {done.failures}"[:1000])


def measure(part: Part) -> None:
    if not part.pretend:
        import torch

        if not torch.cuda.is_available():
            raise NotHere("torch finds no CUDA GPU")
    folder = part.out.parent / "pipelines-scratch"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        bench = Bench(part, folder)
        bench.build()
        part.tried("stages", lambda: stages(bench))
        if bench.probed:
            part.tried("park", lambda: park(bench))
            part.tried("stream", lambda: streamed(bench))
            part.tried("job", lambda: whole_job(bench))  # the longest last: what is cut short is it alone
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(measure)
