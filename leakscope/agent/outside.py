"""What a process keeps outside its own memory: child processes, and files in shared memory. Linux; absent elsewhere."""

import os
import sys

from .thread import read_small

SHARED_FOLDER = "/dev/shm"
_MOST_THREADS = 256  # whose children are asked for; children belong to the thread that made them
_MOST_CHILDREN = 256  # of which it is asked whether they have ended
_MOST_FILES = 10_000


def read_children(row, own=None):
    """Add `children`, the direct ones but `own`, and `children_ended`: those of them that have ended and nobody waited for."""
    found, is_known = [], False
    for thread in os.listdir("/proc/self/task")[:_MOST_THREADS]:
        try:
            found.extend(read_small(f"/proc/self/task/{thread}/children").split())
            is_known = True
        except OSError:  # the thread has ended
            continue
    if not is_known:
        raise OSError("the kernel was built without CONFIG_PROC_CHILDREN")
    if own is not None:
        found = [pid for pid in found if int(pid) != own]
    row["children"] = len(found)
    asked = found[:_MOST_CHILDREN]
    row["children_ended"] = sum(map(_has_ended, asked)) * len(found) // max(1, len(asked))


def _has_ended(pid):
    try:
        return read_small(f"/proc/{pid.decode()}/stat").rpartition(b")")[2][1:2] == b"Z"
    except OSError:
        return False


class SharedFiles:
    """Counts the files in shared memory that this user has made since the process came up; their names are not kept."""

    def __init__(self, folder=SHARED_FOLDER):
        self._folder = folder
        self._user = os.geteuid()
        self._before = frozenset()
        self._is_used = False
        try:
            self._before = frozenset(number for number, _ in self._files())
        except OSError:
            pass

    def read(self, row):
        """Add `shared_files` and `shared_file_bytes`, once this process has something to do with shared memory.

        A file does not say who made it: other programs of the user have theirs in the same folder.
        """
        if not row.get("shmem_bytes") and "_posixshmem" not in sys.modules and not self._is_used:
            return
        self._is_used = True
        sizes = [size for number, size in self._files() if number not in self._before]
        row["shared_files"], row["shared_file_bytes"] = len(sizes), sum(sizes)

    def _files(self):
        """Yield (inode, bytes of memory) of each file of this user; semaphores are none."""
        with os.scandir(self._folder) as entries:
            for count, entry in enumerate(entries):
                if count >= _MOST_FILES:
                    return
                if entry.name.startswith("sem."):
                    continue
                try:
                    state = entry.stat(follow_symlinks=False)
                except OSError:
                    continue
                if state.st_uid == self._user:
                    yield state.st_ino, state.st_blocks * 512
