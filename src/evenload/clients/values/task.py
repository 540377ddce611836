"""One client's training, ready to run: its start, its batches, and what is added to its gradients."""

from dataclasses import dataclass

from evenload.clients.values.batches import Batches
from evenload.clients.values.data import Rows
from evenload.clients.values.options import State
from evenload.clients.values.recipe import Recipe


@dataclass(frozen=True, slots=True, eq=False)
class ClientTask:
    """One client's training.

    client      its id, which with the seed decides all randomness
    recipe      its own
    rows        its examples; if it ``is_fresh``, those of each epoch after one another
    n_rows      examples of its dataset
    batches     which of them in which step
    start       state dict to start from
    anchor      parameters that the proximal term pulls to; the start's if None
    correction  added to every gradient (control variates); parameter name -> tensor, or None
    seed        of the generators that the whole process shares, if its model draws from them
    draws       it is known to do so
    is_keyed    the model calls functions that draw numbers, which are counted from the steps' keys
    """

    client: int
    recipe: Recipe
    rows: Rows
    n_rows: int
    batches: Batches
    start: State
    anchor: State | None = None
    correction: State | None = None
    seed: int = 0
    draws: bool = False
    is_keyed: bool = False
    is_fresh: bool = False
