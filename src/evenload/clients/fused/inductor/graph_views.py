"""Views in a traced graph: of which tensor a node is a view, and which operations write into that tensor."""

import operator
from typing import Any

import torch
from torch.fx import GraphModule, Node

__all__ = ["TURN", "base_of", "erase", "is_single", "peeled", "shape_of", "writers_of"]

aten = torch.ops.aten
RESHAPES = (aten.view.default, aten._unsafe_view.default, aten.expand.default)
TURN = aten.transpose.int
# Views that begin where the tensor begins: size and stride say all.
PLAIN_VIEWS = (*RESHAPES, TURN, aten.permute.default, aten.unsqueeze.default, aten.squeeze.dim)


def peeled(node: Any, only_single: bool = False) -> tuple[Node, bool]:
    """The node below views of the same shape and transposes of the last two axes; is it transposed?"""
    is_turned = False
    while not only_single or len(node.users) == 1:
        if node.target in RESHAPES and shape_of(node) == shape_of(node.args[0]):
            pass
        elif node.target is TURN and _axes(node) == {1, 2} and len(shape_of(node)) == 3:
            is_turned = not is_turned
        else:
            break
        node = node.args[0]
    return node, is_turned


def _axes(turn: Any) -> set[int]:
    return {axis % len(shape_of(turn)) for axis in turn.args[1:]}


def base_of(node: Any) -> tuple[Node, bool]:
    """What ``node`` is a view of (itself if it is none), and whether by ``PLAIN_VIEWS`` alone."""
    is_plain = True
    while node.op == "call_function" and _is_view(node):
        is_plain = is_plain and node.target in PLAIN_VIEWS
        node = node.args[0]
    return node, is_plain


def _is_view(node: Any) -> bool:
    if node.target in (aten._unsafe_view.default, operator.getitem):
        return True
    schema = getattr(node.target, "_schema", None)
    return schema is not None and any(r.alias_info is not None for r in schema.returns)


def is_single(node: Any, target: Any) -> bool:
    """Is it a call of ``target`` whose result is used at most once?"""
    return isinstance(node, Node) and node.target is target and len(node.users) <= 1


def shape_of(node: Any) -> torch.Size:
    return node.meta["tensor_meta"].shape


def writers_of(graph: GraphModule) -> dict[Node, list[Node]]:
    """The operations that write in place, by the tensor that they write into."""
    writers: dict[Node, list[Node]] = {}
    for node in graph.graph.nodes:
        if isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable:
            writers.setdefault(base_of(node.args[0])[0], []).append(node)
    return writers


def erase(graph: GraphModule, node: Node) -> None:
    """Remove ``node`` and what only it has used."""
    waiting = [node]
    while waiting:
        node = waiting.pop()
        if node.users or node.op == "placeholder":
            continue
        inputs = node.all_input_nodes
        graph.graph.erase_node(node)
        waiting += [n for n in inputs if n not in waiting]
