"""The runner that calls a stage in a worker: its outputs are checked and encoded, its reads noted."""

import asyncio
import inspect
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from evenload._waiting import waiting
from evenload.errors import ConfigError, quoted
from evenload.executor.task.failure import is_memory_error
from evenload.pipeline.artifacts import digest_of, output_path, part_id, write_output
from evenload.pipeline.event_loop import EventLoop
from evenload.pipeline.file_types import encode_artifact, is_file_type
from evenload.pipeline.json_values import PLAIN, batch_key_text, is_plain, json_value
from evenload.pipeline.part_keys import part_keys
from evenload.pipeline.plan import Fit
from evenload.pipeline.stage import WHOLE, Item, StageContext, StageOutput, StageSetup
from evenload.pipeline.stage_reads import UNSETTLED, SeenInputs, see_context, see_item
from evenload.pipeline.target import has_sources, load_target, note_sources

_VALUE_TYPES = {"number": (int, float), "text": (str,), "boolean": (bool,)}


class StageRunner:
    """A stage in a worker: constructs it, calls it, notes its reads, and checks and encodes its outputs."""

    def __init__(self, setup: StageSetup, device: Any, fit: Fit = WHOLE, n_devices: int = 1):
        """Construct the stage on ``device``; raises what its constructor raises."""
        self.setup = setup
        stage_class = load_target(setup.target, setup.sources)
        # What the constructor reads, all results depend on; so does what a call gets from the context.
        self._own_reads: set[str] = set() if has_sources(setup.sources) else {UNSETTLED}
        self._loop: EventLoop | None = None
        if not isinstance(stage_class, type):
            raise ConfigError(
                f"{setup.target.name} in {setup.target.module} is not a class",
                hint="a stage is a class with __call__(self, inputs, item); a function: kind: function",
            )
        if stage_class.__init__ is object.__init__:
            self._stage: Any = stage_class()
        else:
            context = StageContext(
                setup.stage, device, setup.folder, setup.seed, setup.model, fit, n_devices,
                setup.may_use_cpu, setup.run_folder,
            )  # fmt: skip
            self._stage = stage_class(see_context(context, self._own_reads), **setup.params)
        note_sources(setup.sources)

    def lane(self) -> "StageRunner | None":
        """Return a runner for one more item at the same time; None if the stage takes one at a time."""
        make = getattr(self._stage, "lane", None)
        if make is None:
            return None
        twin = object.__new__(StageRunner)
        twin.setup, twin._stage, twin._own_reads, twin._loop = self.setup, make(), self._own_reads, None
        return twin

    @property
    def stage(self) -> Any:
        """The user's object."""
        return self._stage

    @property
    def is_async(self) -> bool:
        """Whether the stage's calls are coroutines, so that many items can wait at once on ``loop``."""
        is_own = getattr(self._stage, "is_async", False) is True
        return is_own or inspect.iscoroutinefunction(type(self._stage).__call__)

    @property
    def loop(self) -> EventLoop:
        """The event loop that the stage's coroutines run on."""
        if self._loop is None:
            self._loop = EventLoop()
        return self._loop

    @property
    def can_batch(self) -> bool:
        """Whether the stage has a method ``batch``, which takes several items in one call."""
        return callable(getattr(self._stage, "batch", None))

    @property
    def gives_keys(self) -> bool:
        """Whether the stage has a method ``batch_key``, which says what must be equal in a batch."""
        return self.can_batch and callable(getattr(self._stage, "batch_key", None))

    def key(self, inputs: Mapping[str, Any], item: Item) -> str | None:
        """What must be equal in the item's batch, as text; None if it is to run alone.

        Raises what ``batch_key`` raises, and ConfigError if it gives something that cannot be compared.
        """
        said = self._stage.batch_key(SeenInputs(inputs, set()), item)
        try:
            return None if said is None else batch_key_text(said)
        except ConfigError as error:
            raise self._refused(f"gave a batch_key that is {error.message}", error.hint or "") from None

    def call(self, inputs: Mapping[str, Any], item: Item, place: str = "") -> StageOutput:
        """Call the stage for an item. ``place`` comes before the item's id in the names of files.

        A failed call is repeated as often as the setup allows, unless memory ran out.
        """
        if self.is_async:
            return self.loop.result_of(self.call_async(inputs, item, place))
        seen: set[str] = set()
        for attempt in range(self.setup.retries + 1):
            try:
                outputs = self._stage(SeenInputs(inputs, seen), see_item(item, seen), **self.setup.call)
                return self._checked(outputs, inputs, item, place)._replace(reads=self._reads(seen))
            except Exception as error:
                if attempt == self.setup.retries or is_final(error):
                    raise
            with waiting():
                time.sleep(pause_s(attempt))
        raise AssertionError

    async def call_async(self, inputs: Mapping[str, Any], item: Item, place: str = "") -> StageOutput:
        """Call an async stage as ``call`` does; to be awaited on ``loop``."""
        seen: set[str] = set()
        for attempt in range(self.setup.retries + 1):
            try:
                outputs = await self._stage(SeenInputs(inputs, seen), see_item(item, seen), **self.setup.call)
                return self._checked(outputs, inputs, item, place)._replace(reads=self._reads(seen))
            except Exception as error:
                if attempt == self.setup.retries or is_final(error):
                    raise
            await asyncio.sleep(pause_s(attempt))
        raise AssertionError

    def _reads(self, seen: set[str]) -> tuple[str, ...]:
        return tuple(sorted(seen | self._own_reads))

    def call_batch(
        self, calls: Sequence[tuple[Mapping[str, Any], Item, str]]
    ) -> list[StageOutput | Exception]:
        """Call the stage's ``batch`` for several items: ``(values, item, place)`` of each.

        An exception in the place of an item's outputs has come of that item alone. What the stage reads of
        one item counts as read of each.
        """
        seen: set[str] = set()
        inputs, items = (
            [SeenInputs(one, seen) for one, _, _ in calls],
            [see_item(one, seen) for _, one, _ in calls],
        )
        outputs = list(self._stage.batch(inputs, items, **self.setup.call))
        if len(outputs) != len(calls):
            raise self._refused(
                f"returned {len(outputs)} outputs of a batch of {len(calls)}", "return one dict for each item"
            )
        return [
            one if isinstance(one, Exception) else self._checked(one, *call)._replace(reads=self._reads(seen))
            for one, call in zip(outputs, calls, strict=True)
        ]

    def close(self) -> None:
        """Call the stage's ``close``, if it has one: on its event loop, if it has one of those."""
        close = getattr(self._stage, "close", None)
        if self._loop is None:
            return None if close is None else close()
        try:
            if close is not None:
                self._loop.result_of(_result_of(close))
        finally:
            self._loop.close()

    def _checked(self, outputs: Any, inputs: Mapping[str, Any], item: Item, place: str) -> StageOutput:
        declared = self.setup.outputs
        if not isinstance(outputs, Mapping):
            raise self._refused(f"returned {type(outputs).__name__}", "return a dict of outputs by name")
        if odd := [name for name in outputs if not isinstance(name, str)]:
            what = f"returned an output called {quoted(odd[0])}, of type {type(odd[0]).__name__}"
            raise self._refused(what, "give each output a text for a name")
        if self.setup.expand:
            return self._expanded(outputs, inputs, item, place)
        if missing := sorted(declared.keys() - outputs.keys()):
            raise self._refused(f"did not return {', '.join(missing)}", "return every declared output")
        self._refuse_taken(inputs, outputs)
        made = StageOutput({}, {}, [])
        self._add(made, outputs, item.id, place)
        return made

    def _add(
        self, made: StageOutput, outputs: Mapping[str, Any], item: str, place: str, before: str = ""
    ) -> None:
        """Add ``outputs`` to what was made; ``before`` comes before their names."""
        for name, value in outputs.items():
            if is_file_type(self.setup.outputs.get(name)):
                path, content = self._encoded(name, value, item, place)
                made.outputs[before + name] = path
                made.files[before + name] = [len(content), digest_of(content)]
                made.contents.append((self.setup.run_folder / path, content))
            else:
                made.outputs[before + name] = self._plain(name, value)

    def _expanded(
        self, outputs: Mapping[str, Any], inputs: Mapping[str, Any], item: Item, place: str
    ) -> StageOutput:
        """Check and encode the parts that the stage made, each as the outputs of an item."""
        expand, made = self.setup.expand, StageOutput({}, {}, [])
        if expand not in outputs:
            raise self._refused(f"did not return {expand}", "return the list that `expand` names")
        whole = {name: value for name, value in outputs.items() if name != expand}
        self._refuse_taken(inputs, [*whole, expand])
        if dotted := next((name for name in whole if "." in str(name)), None):
            raise self._refused(f"returned {quoted(str(dotted))}", "take the dot out of the name")
        keys, parts = part_keys(outputs[expand], self._refused, expand)
        self._add(made, whole, item.id, place)
        made.outputs[expand] = keys
        for key, part in zip(keys, parts, strict=True):
            if missing := sorted(self.setup.outputs.keys() - part.keys() - whole.keys()):
                raise self._refused(
                    f"gave {expand} {key} no {', '.join(missing)}", "give every declared output"
                )
            self._refuse_taken({**inputs, **whole, expand: keys, "id": key}, part)
            self._add(made, part, part_id(item.id, expand, key), place, f"{key}.")
        return made

    def _refuse_taken(self, inputs: Mapping[str, Any], outputs: Iterable[str]) -> None:
        if taken := sorted(inputs.keys() & set(outputs)):
            raise self._refused(
                f"returned {', '.join(taken)}, which the item has already",
                "return only what is new, or rename the output",
            )

    def _plain(self, name: str, value: Any) -> Any:
        """Return ``value`` as JSON can hold it; without lists and dicts if it is not declared as json."""
        kind = self.setup.outputs.get(name, "")
        if kind == "json":
            try:
                return json_value(value)
            except ConfigError as error:
                raise self._refused(f"returned {quoted(name)} {error.message}", error.hint or "") from error
        if getattr(value, "ndim", None) == 0:  # a NumPy or torch scalar
            value = value.item()
        if isinstance(value, int) and not is_plain(value):
            raise self._refused(
                f"returned {quoted(name)}, an integer of more than 4299 digits", "return it as text"
            )
        is_number = not isinstance(value, bool)
        if not isinstance(value, _VALUE_TYPES.get(kind, PLAIN)) or (kind == "number" and not is_number):
            found = f"{type(value).__name__}, not {kind}" if kind else f"of type {type(value).__name__}"
            fitting = "json" if isinstance(value, list | tuple | dict) else "png, npy, json, ..."
            hint = f"return a number or text, or declare it: outputs: {{{name}: {fitting}}}"
            raise self._refused(f"returned {quoted(name)} that is {found}", hint)
        return value

    def _encoded(self, name: str, value: Any, item: str, place: str) -> tuple[str, bytes]:
        declared = self.setup.outputs
        relative = output_path(self.setup.stage, declared, name, item, place)
        try:
            content = encode_artifact(value, declared[name])
        except ConfigError as error:
            what = f"returned {quoted(name)} that is no {declared[name]}: {error.message}"
            raise self._refused(what, error.hint or "") from error
        return relative, content

    def _refused(self, what: str, hint: str) -> ConfigError:
        return ConfigError(f"stage {quoted(self.setup.stage)} {what}", hint=hint)


async def _result_of(function: Callable[[], Any]) -> Any:
    returned = function()
    return await returned if inspect.isawaitable(returned) else returned


def is_final(error: Exception) -> bool:
    """Whether the same call would fail again: memory ran out, or the error says so."""
    return is_memory_error(error) or getattr(error, "is_final", False) is True


def pause_s(attempt: int) -> float:
    """Seconds before a failed call is repeated: what was missing may come back, a server or a file."""
    return min(0.1 * 2**attempt, 5.0)


def save(made: StageOutput) -> None:
    """Write the files of an output; returns when they are on disk."""
    for path, content in made.contents:
        write_output(path, content)
