"""A snapshot at the moment at which a device runs out of memory: who had it, and how much was asked for.

torch's own allocator for CUDA tells observers just before it raises (c10/cuda/CUDACachingAllocator.cpp; it lets go of its lock
first). There is no way to take one back, so it is attached once and does nothing any more after the end of the recording.
"""

import os

from . import classes

# A program that tries batch after batch until one fits runs out of memory on purpose; ours.
MOST = 3


class Observer:
    """What torch calls, in the thread that asked for memory: with the GIL, in a thread of C++ maybe. It never raises.

    `take(oom)`: takes the snapshot, or returns None at once where it cannot; `note`: takes a sentence.
    """

    def __init__(self, take, note):
        self._take = take
        self._note = note
        self._pid = os.getpid()
        self._count = 0
        self._is_attached = self._is_busy = False

    def attach(self, provider):
        """Have torch call us, once; only its own allocator for CUDA and ROCm does."""
        attach = classes.space_named("torch._C").get("_cuda_attach_out_of_memory_observer")
        if self._is_attached or attach is None or provider.prefix != "cuda":
            return
        if provider.backend() != "native":
            self._note("Nothing will be seen of the moment at which the device runs out of memory: the allocator behind torch "
                       "does not tell of it.")
            return
        self._is_attached = True
        attach(self)

    def close(self):
        """Do nothing from now on."""
        self._take = None

    def __call__(self, device, requested_bytes, total_bytes, free_bytes):
        """Arguments as in attachOutOfMemoryObserver: ordinal; bytes asked for, that the device has, that are free."""
        try:
            take = self._take
            if take is None or self._is_busy or self._count >= MOST or os.getpid() != self._pid:
                return
            self._count += 1
            self._is_busy = True
            try:
                self._note("Memory of cuda:%d ran out for %.1f MiB, with %.1f MiB free on the device."
                           % (device, requested_bytes / 1048576, free_bytes / 1048576))
                take({"device": "cuda:%d" % device, "requested_bytes": int(requested_bytes), "free_bytes": int(free_bytes),
                      "total_bytes": int(total_bytes)})
            finally:
                self._is_busy = False
        except Exception:
            pass
