"""All rewrites of a traced step: narrow products are transposed, and plain descent is by products of factors.

A weight's gradient is one product of small factors, and plain descent adds it to the weight. So in place of

    gradient = a @ b                                   writes as many numbers as the weight has
    weight = where(alive, weight + rate * gradient, weight)     reads both, writes one

the graph gives ``rate * a`` and ``b``, and ``ProductUpdates`` adds their product to the weight, in the time
of the product alone. What does not look like this (momentum, decay, clipping, other layers) stays in the
graph.
"""

import copy
import functools
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule, Node
from torch.fx.passes.fake_tensor_prop import FakeTensorProp

from evenload._terminal import log_of
from evenload.errors import EvenloadError
from evenload.gpu.llvm.products import ProductShape, panel_bytes, product_program
from evenload.gpu.llvm.program import Program

MOST_BYTES = 256 << 10  # of the columns of a right factor that are read again for each tile of rows
DTYPES = (torch.float32, torch.float64)
ALL_ALIVE = 0

log = log_of(__name__)

Steps = tuple[int, ...]


def add_product(weight: Tensor, left: Tensor, right: Tensor) -> None:
    """weight [K, m, n] += left [K, m, depth] @ right [K, depth, n], all on the CPU and of one dtype."""
    program = None
    if torch.get_num_threads() == 1:  # torch shares a product out among its threads
        program = program_for(
            weight.shape, left.shape[2], weight.stride(), left.stride(), right.stride(), weight.dtype
        )
    if program is None:
        weight.baddbmm_(left, right)
    else:
        program.multiply(left.data_ptr(), right.data_ptr(), weight.data_ptr(), len(weight), ALL_ALIVE)


@functools.cache
def program_for(
    shape: tuple[int, ...],
    depth: int,
    into: Steps,
    left: Steps,
    right: Steps,
    dtype: torch.dtype,
    adds: bool = True,
) -> Program | None:
    """The program for a product [K, rows, columns] = ``shape`` of factors with these strides.

    None if torch is as fast, or it cannot be had.
    """
    _, rows, columns = shape
    is_turned = right[2] != 1
    is_usable = dtype in DTYPES and into[2] == 1 and 1 in right[1:] and rows and columns and depth
    if not is_usable:
        return None
    steps = (right[0], right[2] if is_turned else right[1])
    product = ProductShape(rows, columns, depth, left, steps, into[:2], is_turned, adds)  # pyrefly: ignore
    try:
        from evenload.gpu.llvm.field.floats import lanes_for

        lanes = lanes_for(columns, dtype.itemsize)
        if panel_bytes(product, lanes, dtype.itemsize) > MOST_BYTES:
            return None
        return product_program(product, lanes, dtype.itemsize)
    except ImportError:  # without the kernels extra; MissingExtra is one
        return None
    except EvenloadError as error:
        log.warning(f"products of small matrices are left to torch, which is slower: {error}")
        return None


NARROW = 16  # columns: fewer do not fill a vector

aten = torch.ops.aten


def turn_narrow(graph: GraphModule, example: list[Tensor]) -> GraphModule:
    """Write ``a @ b`` with few columns as ``(bT @ aT)T``; the batched product then takes a third of the time.

    The losses that follow are then computed for sixteen rows at a time, not for the ten classes of one row.
    If an operation cannot take a transposed product, all of them are copied into plain order.
    """
    turned_products = []
    bmm, turn = aten.bmm.default, aten.transpose.int
    for node in graph.graph.find_nodes(op="call_function", target=bmm):
        rows, columns = node.meta["tensor_meta"].shape[-2:]
        if not columns < NARROW <= rows:
            continue
        with graph.graph.inserting_before(node):
            a, b = (graph.graph.call_function(turn, (t, 1, 2)) for t in node.args)
            product = graph.graph.call_function(bmm, (b, a))
            turned = graph.graph.call_function(turn, (product, 1, 2))
        node.replace_all_uses_with(turned)
        graph.graph.erase_node(node)
        turned_products.append(turned)
    if turned_products and not _is_possible(graph, example):
        for turned in turned_products:
            with graph.graph.inserting_after(turned):
                copied = graph.graph.call_function(aten.clone.default, (turned,))
            turned.replace_all_uses_with(copied)
            copied.args, copied.kwargs = (turned,), {"memory_format": torch.contiguous_format}  # pyrefly: ignore
    graph.recompile()
    return graph


def _is_possible(graph: GraphModule, example: list[Tensor]) -> bool:
    """Can every operation take its inputs? Found from shapes and strides, without computing."""
    try:
        FakeTensorProp(copy.deepcopy(graph), FakeTensorMode(allow_non_fake_inputs=True)).propagate(*example)
    except Exception:
        return False
    return True


RESHAPES = (aten.view.default, aten._unsafe_view.default, aten.expand.default)
TURN = aten.transpose.int
# Views that begin where the tensor begins: size and stride say all.
PLAIN_VIEWS = (*RESHAPES, TURN, aten.permute.default, aten.unsqueeze.default, aten.squeeze.dim)
WORTHWHILE = 1  # numbers of a factor written anew, at most, for each number of a gradient that is not


@dataclass(frozen=True, slots=True)
class ProductFactor:
    """One side [K, m, n] of a product: an argument of the graph, or an output that it has for the updates.

    place  its position among the arguments, or among these outputs
    size   and ``stride`` with which an argument is viewed, if these are not its own
    """

    is_argument: bool
    place: int
    size: tuple[int, ...] | None = None
    stride: tuple[int, ...] = ()

    def of(self, arguments: Sequence[Tensor], outputs: Sequence[Tensor]) -> Tensor:
        if not self.is_argument:
            return outputs[self.place]
        t = arguments[self.place]
        return t if self.size is None else t.as_strided(self.size, self.stride, t.storage_offset())


@dataclass(frozen=True, slots=True)
class Update:
    """An addition ``arguments[param] += left @ right`` to those clients that ``arguments[alive]`` names."""

    param: int
    alive: int
    left: ProductFactor
    right: ProductFactor


@dataclass(frozen=True, slots=True)
class ProductUpdates:
    """The updates that were taken out of a graph, to be applied after each of its runs."""

    updates: tuple[Update, ...]

    def __call__(self, arguments: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        """Add the updates to ``arguments`` after a run of the graph, which gave ``outputs`` for this.

        Rows of clients that are not alive are put back afterwards: their factors may hold anything, and as
        0 * NaN is NaN, no factor of zero would leave a weight alone.
        """
        dead = None if outputs[0] else (~arguments[self.updates[0].alive]).nonzero().flatten()
        for u in self.updates:
            weight = arguments[u.param]
            left, right = u.left.of(arguments, outputs), u.right.of(arguments, outputs)
            if dead is None:
                add_product(weight, left, right)
            else:
                kept = weight[dead]
                add_product(weight, left, right)
                weight.index_copy_(0, dead, kept)


def take_out_updates(graph: GraphModule) -> ProductUpdates | None:
    """Take the updates that are plain descent out of ``graph``; None if there are none.

    Else the graph gets further outputs: a bool that says whether all clients are alive, then the factors.
    """
    places = {node: i for i, node in enumerate(graph.graph.find_nodes(op="placeholder"))}
    copies = graph.graph.find_nodes(op="call_function", target=aten.copy_.default)
    written = writers_of(graph)
    flags: dict[Any, Any] = {node.args[1]: node.args[0] for node in copies if node.args[0] in places}
    found = [f for node in copies if (f := _find(node, places, written)) is not None and f.alive in flags]
    if not found or len({f.alive for f in found}) > 1:
        return None
    output = graph.graph.output_node()
    updates = []
    with graph.graph.inserting_before(output):
        outputs = [graph.graph.call_function(aten.all.default, (found[0].alive,))]
        for f in found:
            factors = [_factor(graph, side, rate, places, outputs) for side, rate in f.scaled()]
            updates.append(Update(places[f.param], places[flags[f.alive]], *factors))
            erase(graph, f.copy)
    output.args = ([*output.args[0], *outputs],)  # pyrefly: ignore
    graph.recompile()
    return ProductUpdates(tuple(updates))


def _factor(
    graph: GraphModule, side: "_Side", rate: Node | None, places: dict[Node, int], outputs: list[Node]
) -> ProductFactor:
    """The factor ``side`` times ``rate``; what is no argument by itself is added to ``outputs``.

    A narrow factor keeps the order of numbers that ``turn_narrow`` gives to what it is made of.
    """
    if side.argument is not None and rate is None:
        seen, own = (n.meta["tensor_meta"] for n in (side.node, side.argument))
        size, stride = tuple(seen.shape), tuple(seen.stride)
        if side.is_turned:
            size, stride = (size[0], size[2], size[1]), (stride[0], stride[2], stride[1])
        is_own = (size, stride) == (tuple(own.shape), tuple(own.stride))
        return ProductFactor(True, places[side.argument], *(() if is_own else (size, stride)))
    call, node = graph.graph.call_function, side.node
    if rate is not None:
        node = call(aten.mul.Tensor, (node, rate))
    if side.is_turned:
        rows, columns = shape_of(side.node)[1:]
        node = call(TURN, (node, 1, 2))
        if rate is not None and columns < NARROW <= rows:
            node = call(aten.clone.default, (node,), {"memory_format": torch.contiguous_format})
    outputs.append(node)
    return ProductFactor(False, len(outputs) - 1)


@dataclass(frozen=True, slots=True)
class _Side:
    """A factor in the graph: ``node``, possibly transposed; ``argument`` is what it is a view of, if any."""

    node: Node
    is_turned: bool
    argument: Node | None


@dataclass(frozen=True, slots=True)
class _Found:
    """An update in the graph: ``copy`` writes ``where(alive, param + rate * (left @ right), param)``."""

    copy: Node
    param: Node
    alive: Node
    rate: Node
    left: _Side
    right: _Side

    def scaled(self) -> tuple[tuple[_Side, Node | None], ...]:
        """Both sides, the smaller with the rate; but never an argument, which would be written anew."""
        sizes = [shape_of(side.node).numel() for side in (self.left, self.right)]
        if self.right.argument is not None or (self.left.argument is None and sizes[0] <= sizes[1]):
            return (self.left, self.rate), (self.right, None)
        return (self.left, None), (self.right, self.rate)


def _find(copy: Any, places: dict[Node, int], written: dict[Node, list[Node]]) -> _Found | None:
    """The update that ends in ``copy``, or None if it is not one that can be taken out."""
    param, new = copy.args[:2]
    if param not in places or not is_single(new, aten.where.self):
        return None
    mask, changed, old = new.args
    if old is not param or not is_single(changed, aten.addcmul_.default) or changed.kwargs:
        return None
    fresh, gradient, rate = changed.args
    if not is_single(fresh, aten.clone.default) or fresh.args[0] is not param:
        return None
    meta = param.meta["tensor_meta"]
    if len(meta.shape) != 3 or meta.shape[2] < NARROW <= meta.shape[1]:  # these are for ``turn_narrow``
        return None
    product, is_turned = peeled(gradient, only_single=True)
    if not is_single(product, aten.bmm.default):
        return None
    left, right = (_side(factor, places) for factor in product.args)
    if left is None or right is None:
        return None
    if is_turned:
        left, right = (_Side(s.node, not s.is_turned, s.argument) for s in (right, left))
    for side in (left, right):
        # A factor is read after the graph: then another parameter, say, is no longer what it was.
        if side.node.meta["tensor_meta"].dtype != meta.dtype or any(
            side.argument is not None or product < writer for writer in written.get(base_of(side.node)[0], ())
        ):
            return None
    found = _Found(copy, param, base_of(mask)[0], rate, left, right)
    n_written = next(shape_of(side.node).numel() for side, rate in found.scaled() if rate is not None)
    return found if n_written <= WORTHWHILE * meta.shape.numel() else None


def _side(factor: Any, places: dict[Node, int]) -> _Side | None:
    node, is_turned = peeled(factor)
    base, is_plain = base_of(node)
    if base not in places:
        return _Side(node, is_turned, None)
    return _Side(node, is_turned, base) if is_plain else None


# --- of which tensor a node is a view ---------------------------------------------------------------


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


def rewrite(graph: GraphModule, example: list[Tensor]) -> tuple[GraphModule, ProductUpdates | None]:
    """The faster graph, and the updates of weights that follow each of its runs; None if there are none.

    Updates are taken out on CPUs only: to see whether all clients are alive, a GPU would have to wait.
    """
    is_on_cpu = all(t.device.type == "cpu" for t in example)
    updates = take_out_updates(graph) if is_on_cpu else None
    return turn_narrow(graph, example), updates
