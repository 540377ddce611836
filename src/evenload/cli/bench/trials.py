"""The trials of ``evenload bench`` by name; each is loaded when it runs."""

__all__ = ["TRIALS"]

# name -> (module:function in ``measure``, title, modules that it needs, the extra that brings them)
TRIALS: dict[str, tuple[str, str, tuple[str, ...], str]] = {
    "executor": ("executor:overhead", "What an executor costs per task that does nothing", (), ""),
    "transport": ("executor:transport", "Arrays to workers and back", (), ""),
    "scaling": ("scaling:scaling", "The same work on one device and on more", (), ""),
    "unequal": ("unequal:unequal", "Scheduling on unequal devices (simulated: speeds 1 : 2 : 4 : 8)", (), ""),
    "merkle": ("merkle:merkle", "Merkle tree", ("llvmlite",), "kernels"),
    "prove": ("prove:prove", "Groth16 proofs", ("llvmlite", "numba"), "kernels"),
    "experts": ("experts:experts", "Expert placement and routing", ("numba", "torch"), "moe"),
    "clients": ("clients:clients", "Many small trainings, fused", ("torch",), "torch"),
    "pipeline": ("pipeline:pipeline", "A pipeline of two stages", ("pydantic", "yaml"), "yaml"),
}
