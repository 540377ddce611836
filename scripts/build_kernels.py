"""Make the object files that come with the package, for each baseline; after a kernel's code has changed.

    python scripts/build_kernels.py            make what is missing, remove what is stale
    python scripts/build_kernels.py --check    only say what that would be; exit code 1 if there is anything

Runs on any x86-64 machine with the extra ``kernels``: code for a baseline is compiled, never run. The Python
kernels are made for the types that ``evenload.moe.warming`` calls them with.
"""

import argparse
import importlib
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cloudpickle

from evenload.native import machine, objects

# Kernels written in Python count and compare; wider vectors make none of them faster (measured on Zen 5).
FOR_PYTHON = ("x86-64-v3", "armv8-a")


@dataclass(frozen=True)
class Wanted:
    """An object file that must be there, and what it is made from: a recipe, or a kernel and its types."""

    path: Path
    key: str
    baseline: str
    source: Any


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    wanted = everything()
    missing = [one for one in wanted if not is_whole(one)]
    stale = sorted(set(objects.FOLDER.glob("*/*")) - {one.path for one in wanted})
    for title, paths in (("missing", [one.path for one in missing]), ("stale", stale)):
        for path in paths:
            print(f"{title}: {path.relative_to(objects.FOLDER)}")
    if check:
        return 1 if missing or stale else 0
    for path in stale:
        path.unlink()
    for baseline in machine.BASELINES:  # numba compiles for one processor in each process
        mine = [one for one in missing if one.baseline == baseline]
        if mine:
            with tempfile.NamedTemporaryFile() as file:
                cloudpickle.dump(mine, file)
                file.flush()
                code = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import build_kernels"
                call = f"build_kernels.make({baseline!r}, {file.name!r})"
                subprocess.run([sys.executable, "-c", f"{code}; {call}"], check=True)
    return 0


def everything() -> list[Wanted]:
    """All objects that must be there, for all baselines."""
    from evenload.moe.warming import warm
    from evenload.native.kernel import kernels_used

    warm()
    found = []
    for kernel, signature in kernels_used:
        name, source = kernel.entry_name(signature), kernel.code_hash(signature)
        for baseline in FOR_PYTHON:
            path, key = objects.shipped_file(name, source, baseline, frozenset())
            found.append(Wanted(path, key, baseline, (kernel.__module__, kernel.__name__, signature)))
    for recipe in recipes():
        for baseline in recipe.baselines:
            path, key = objects.shipped_file(recipe.name, recipe.code_hash(), baseline, recipe.needs)
            found.append(Wanted(path, key, baseline, recipe))
    return sorted(found, key=lambda one: one.path)


def recipes() -> list[Any]:
    """Of the programs for proofs and trees, each at every level that comes with the package."""
    from evenload.gpu.hashing.rules import RULES
    from evenload.gpu.llvm import programs
    from evenload.gpu.llvm.hash import hash_kernels, poseidon_kernels

    found = [programs.scalar_recipe()]
    for level in programs.LEVELS:
        found += [programs.bulk_recipe(level), poseidon_kernels.poseidon_recipe(level)]
    for rule in RULES:
        levels = (512, 256, 128, *((hash_kernels.SHA,) if rule in hash_kernels.SHA_RULES else ()))
        found += [hash_kernels.hash_recipe(rule, level) for level in levels]
    return found


def is_whole(one: Wanted) -> bool:
    return one.path.exists() and objects.read_shipped(one.path, one.key) is not None


def make(baseline: str, listed: str) -> None:
    """Compile what the file ``listed`` names, in a process of its own."""
    from evenload.native import emit

    kind = machine.BASELINES[baseline]
    machine.initialize_all_targets()
    machine.binding().get_process_triple = lambda: kind.triple  # numba knows no other than its own process's
    emit.set_processor(kind.cpu, machine.features_of(baseline))
    for one in cloudpickle.loads(Path(listed).read_bytes()):
        if isinstance(one.source, tuple):
            module, name, signature = one.source
            code = emit.emit(getattr(importlib.import_module(module), name).as_piece(), signature)
        else:
            code = one.source.compile_for(machine.machine_for(baseline, one.source.needs))
        one.path.parent.mkdir(parents=True, exist_ok=True)
        one.path.write_bytes(objects.packed(one.key, code))
        print(f"made: {one.path.relative_to(objects.FOLDER)} ({one.path.stat().st_size} bytes)", flush=True)


if __name__ == "__main__":
    sys.exit(main())
