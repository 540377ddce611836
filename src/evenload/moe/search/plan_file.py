"""Placements on disk, as ``evenload moe place -o`` writes them and engines read them."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evenload._optional import require
from evenload._private_files import plain_file, read_plain, whole_file
from evenload.errors import ConfigError, FormatError, MissingExtra, quoted, reason_of
from evenload.moe.placement.fleet import Fleet
from evenload.moe.placement.rebalance import logical_maps

FLEET = "# evenload: "  # a comment in TensorRT-LLM's file
MAKE_ONE = "write one with 'evenload moe place -o'"
_MOST_BYTES = 1 << 28


def write_plan(path: str | Path, phy2log: NDArray[np.int64], n_experts: int, fleet: Fleet) -> None:
    """Write a placement [layers, GPUs * width] and its fleet to a file that appears whole or not at all.

    .json  ``physical_to_logical_map`` [layers][slots], the key that SGLang's ``--init-expert-location`` reads
    .npz   ``phy2log``, ``log2phy`` and ``logcnt``
    .yaml  TensorRT-LLM's ``moe_load_balancer``, which never changes the placement: layers count from 0 here
    All hold the fleet, a .yaml in a comment. Raises ConfigError for another suffix, if the place cannot be
    written to, and for a .yaml of a fleet with an empty slot, which TensorRT-LLM has no sign for.
    """
    path = Path(path)
    facts = {"slots": fleet.slots, "speeds": fleet.speeds, "nodes": fleet.nodes, "dead": sorted(fleet.dead)}
    if path.suffix not in (".json", ".npz", ".yaml"):
        raise ConfigError(f"{path.name}: unknown kind of plan", hint="end its name in .json, .npz or .yaml")
    if path.suffix == ".yaml" and phy2log.min() < 0:
        raise ConfigError(f"{path.name}: a plan with an empty slot", hint="end its name in .json or .npz")
    try:
        with whole_file(path, 0o644, is_durable=False) as file:
            if path.suffix == ".json":
                page = {
                    "schema": 1,
                    "physical_to_logical_map": phy2log.tolist(),
                    "n_experts": n_experts,
                    "fleet": facts,
                }
                file.write(json.dumps(page).encode())
            elif path.suffix == ".yaml":
                page = {"n_experts": n_experts, "fleet": facts}
                rows = "".join(f"  {layer}: {row}\n" for layer, row in enumerate(phy2log.tolist()))
                head = (
                    f"{FLEET}{json.dumps(page)}\nnum_slots: {phy2log.shape[1]}\nlayer_updates_per_iter: 0\n"
                )
                file.write(f"{head}initial_global_assignments:\n{rows}".encode())
            else:
                log2phy, logcnt = logical_maps(phy2log, n_experts)
                arrays = {"phy2log": phy2log, "log2phy": log2phy, "logcnt": logcnt}
                arrays |= {name: np.array(fact) for name, fact in facts.items()}
                np.savez_compressed(file, allow_pickle=False, **arrays)
    except OSError as error:
        raise ConfigError(
            f"cannot write {quoted(str(path), 200)}: {error.strerror}", hint="choose another place with -o"
        ) from error


def read_plan(path: str | Path) -> tuple[NDArray[np.int64], int, Fleet]:
    """``phy2log`` [layers, GPUs * width], the number of experts and the fleet of a written plan.

    Raises ConfigError if there is no such file, FormatError if it is no plan.
    """
    path = Path(path)
    if not path.is_file():
        raise ConfigError(f"no plan at {quoted(str(path), 200)}", hint=MAKE_ONE)
    try:
        read = {".json": _read_json, ".yaml": _read_yaml}.get(path.suffix, _read_npz)
        phy2log, n_experts, facts = read(path)
        fleet = Fleet(
            tuple(facts["slots"]), tuple(facts["speeds"]), tuple(facts["nodes"]), frozenset(facts["dead"])
        )
    except MissingExtra:
        raise
    except Exception as error:  # numpy, zipfile and zlib have many kinds; all mean that it is damaged
        raise FormatError(f"{path.name} is no plan: {reason_of(error)}", hint=MAKE_ONE) from error
    if phy2log.ndim != 2 or phy2log.shape[1] != fleet.n_gpus * fleet.width or not phy2log.size:
        raise FormatError(
            f"{path.name}: slots of shape {phy2log.shape} do not fit its fleet of {fleet.n_gpus} GPUs",
            hint=MAKE_ONE,
        )
    least, most = int(phy2log.min()), int(phy2log.max())
    if least < -1 or most >= n_experts:
        raise FormatError(f"{path.name}: slots of experts {least} to {most}, of {n_experts}", hint=MAKE_ONE)
    return phy2log, n_experts, fleet


def _read_json(path: Path) -> tuple[NDArray[np.int64], int, dict[str, Any]]:
    page = json.loads(read_plain(path, _MOST_BYTES))
    return np.array(page["physical_to_logical_map"], dtype=np.int64), int(page["n_experts"]), page["fleet"]


def _read_yaml(path: Path) -> tuple[NDArray[np.int64], int, dict[str, Any]]:
    """TensorRT-LLM's file; its GPUs are those of the comment, one without it is of one GPU."""
    text = path.read_text(encoding="utf-8")
    page = require("yaml", extra="jobs", why="reading TensorRT-LLM's plans").safe_load(text)
    layers = page["initial_global_assignments"]
    phy2log = np.array([layers[layer] for layer in sorted(layers)], dtype=np.int64)
    if phy2log.shape[1] != page["num_slots"]:
        raise ValueError(f"{phy2log.shape[1]} slots of {page['num_slots']}")
    own: Any = next(
        (json.loads(line.removeprefix(FLEET)) for line in text.splitlines() if FLEET in line), None
    )
    if own is None:
        own = {"n_experts": int(phy2log.max()) + 1, "fleet": asdict(Fleet.even(1, phy2log.shape[1]))}
    return phy2log, own["n_experts"], own["fleet"]


def _read_npz(path: Path) -> tuple[NDArray[np.int64], int, dict[str, Any]]:
    with plain_file(path) as file, np.load(file, allow_pickle=False) as arrays:
        facts = {name: arrays[name].tolist() for name in ("slots", "speeds", "nodes", "dead")}
        return arrays["phy2log"].astype(np.int64), arrays["logcnt"].shape[1], facts
