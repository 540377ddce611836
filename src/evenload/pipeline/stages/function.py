"""Run a plain Python function as a stage."""

import inspect
from collections.abc import Awaitable, Mapping
from typing import Any

from evenload.pipeline.stage import Item, StageContext
from evenload.pipeline.target import load_target, locate_target

__all__ = ["Function"]


class Function:
    """A stage that calls ``function(inputs, item, **call)``: a dict of outputs, or one value for ``output``.

    function  file.py:name, relative to the job file, or package.module:name; it may be async
    """

    def __init__(self, context: StageContext, *, function: str, output: str = "output"):
        self._function = load_target(locate_target(function, context.folder))
        self._output = output
        self.is_async = inspect.iscoroutinefunction(self._function)

    def __call__(self, inputs: Mapping[str, Any], item: Item, **call: Any) -> Any:
        returned = self._function(inputs, item, **call)
        return self._awaited(returned) if self.is_async else self._named(returned)

    async def _awaited(self, returned: Awaitable[Any]) -> Mapping[str, Any]:
        return self._named(await returned)

    def _named(self, returned: Any) -> Mapping[str, Any]:
        return returned if isinstance(returned, Mapping) else {self._output: returned}
