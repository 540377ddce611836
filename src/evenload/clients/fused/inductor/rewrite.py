"""All rewrites of a traced step, in their order."""

from torch import Tensor
from torch.fx import GraphModule

from evenload.clients.fused.inductor.narrow_products import turn_narrow
from evenload.clients.fused.inductor.product_updates import ProductUpdates, take_out_updates


def rewrite(graph: GraphModule, example: list[Tensor]) -> tuple[GraphModule, ProductUpdates | None]:
    """The faster graph, and the updates of weights that follow each of its runs; None if there are none.

    Updates are taken out on CPUs only: to see whether all clients are alive, a GPU would have to wait.
    """
    is_on_cpu = all(t.device.type == "cpu" for t in example)
    updates = take_out_updates(graph) if is_on_cpu else []
    return turn_narrow(graph, example), ProductUpdates(tuple(updates)) if updates else None
