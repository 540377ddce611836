"""The kinds of frames that the executor and a worker process send each other (``Frame.kind``)."""

import signal

# To the worker. SINGLY is RUN with items that are pickled and called one by one.
LOAD, RUN, SINGLY, UNLOAD, STOP = range(1, 6)
CHUNKS = frozenset((RUN, SINGLY))
# From the worker. DONE_SINGLY answers SINGLY. SPOILT: the chunk's items could not be unpickled.
UP, LOADED, REFUSED, DONE, DONE_SINGLY, SPOILT = range(11, 17)
CHUNK_ENDS = frozenset((DONE, DONE_SINGLY, SPOILT))  # the worker does not hold the chunk any more

# Has the worker print where its threads are, in C and without the interpreter's lock. No program of a task
# is likely to use it: a number in the middle of the real-time signals, where there are any.
STACK_SIGNAL = signal.SIGRTMIN + 11 if hasattr(signal, "SIGRTMIN") else signal.SIGUSR2
