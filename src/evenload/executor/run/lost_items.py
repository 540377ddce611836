"""The errors of items whose workers were lost."""

from evenload.errors import TaskError, TaskTimeout, WorkerLost
from evenload.executor.task.messages import OVER_MEMORY, Gone

__all__ = ["error_of_lost_item"]


def error_of_lost_item(item: int, why: str, device: str, gone: Gone, timeout_s: float | None) -> TaskError:
    """What is delivered for ``item``. ``why``: overtime | unknown (it may not run again) | died."""
    if why == "overtime":
        return TaskTimeout(
            f"item {item} ran longer than {timeout_s:g} s; its worker was replaced",
            index=item,
            device=device,
            remote_traceback=gone.last_words,
            hint="raise timeout_s if it only needs longer",
        )
    how = gone.reason
    if why == "unknown":
        text = f"the worker with item {item} {how}; it may not be run again, its outcome is unknown"
        hint = None
    else:
        text = f"item {item} was given up: every worker that ran it {how}"
        hint = "run it alone, or inline"
        if gone.cause.startswith(OVER_MEMORY):
            hint = "raise memory_limit, or have an item (or batch) need less at once"
    error = WorkerLost(text, index=item, device=device, remote_traceback=gone.last_words, hint=hint)
    error.exit_code_of_worker = gone.exit_code
    return error
