"""Membership in a Poseidon Merkle tree: the prover knows a leaf and a path to the public root."""

from collections.abc import Sequence

from evenload.gpu.poseidon import parameters, poseidon
from evenload.zk.circuits.builder import CircuitBuilder, Linear


def poseidon_gadget(circuit: CircuitBuilder, inputs: Sequence[Linear]) -> Linear:
    """The Poseidon hash of ``inputs``: three constraints for each x^5."""
    chosen = parameters(len(inputs) + 1)
    state = [Linear({}), *inputs]
    for number, constants in enumerate(chosen.constants):
        state = [value + constant for value, constant in zip(state, constants, strict=True)]
        n_boxes = chosen.width if chosen.is_full(number) else 1
        for k in range(n_boxes):
            square = circuit.product(state[k], state[k])
            state[k] = circuit.product(circuit.product(square, square), state[k])
        state = [Linear.sum(state, row) for row in chosen.matrix]
    return state[0]


def poseidon_inclusion(depth: int) -> CircuitBuilder:
    """Private inputs ``leaf``, ``sibling0`` ... and ``side0`` ... (1: we are the right child); the output is
    the root."""
    circuit = CircuitBuilder()
    node = circuit.private_input("leaf")
    for level in range(depth):
        sibling, side = (circuit.private_input(f"{name}{level}") for name in ("sibling", "side"))
        circuit.enforce(side, side - 1, Linear({}))
        swap = circuit.product(side, sibling - node)
        node = poseidon_gadget(circuit, [node + swap, sibling - swap])
    circuit.output(node)
    return circuit


def inclusion_inputs(leaf: int, siblings: Sequence[int], position: int) -> tuple[dict[str, int], int]:
    """Inputs for ``poseidon_inclusion`` and the root that they lead to."""
    inputs, node = {"leaf": leaf}, leaf
    for level, sibling in enumerate(siblings):
        side = position >> level & 1
        inputs |= {f"sibling{level}": sibling, f"side{level}": side}
        node = poseidon([sibling, node] if side else [node, sibling])
    return inputs, node
