"""Run a plain Python function as a stage."""

from collections.abc import Mapping
from typing import Any

from evenload.pipeline.stage import Item, StageContext
from evenload.pipeline.target import load_target, locate_target

__all__ = ["Function"]


class Function:
    """A stage that calls ``function(inputs, item, **call)``: a dict of outputs, or one value for ``output``.

    function  file.py:name, relative to the job file, or package.module:name
    """

    def __init__(self, context: StageContext, *, function: str, output: str = "output"):
        self._function = load_target(locate_target(function, context.folder))
        self._output = output

    def __call__(self, inputs: Mapping[str, Any], item: Item, **call: Any) -> Mapping[str, Any]:
        returned = self._function(inputs, item, **call)
        return returned if isinstance(returned, Mapping) else {self._output: returned}
