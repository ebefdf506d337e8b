"""The folder of one process in the session: whole files, whole lines, notes, and the share of the disk it may take.

No descriptor is held between two writes: a target that closes every descriptor (a daemon) and opens files of its own
must never find our rows in them.
"""

import errno
import os
import time

from . import format as fmt
from . import jsontext

# After these the recording of this process ends. Anything else (no descriptor left, interrupted) costs one row.
_FATAL = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EFBIG, errno.EIO, errno.ENOENT,
          errno.ENOTDIR, errno.ESTALE}
_MOST_NOTES = 200


class ProcessFolder:
    """<session>/<pid>/ of this process.

    `path` is None until `create` was called: notes made before are kept and written then. `is_closed` is True after
    the disk has refused us; from then on every method does nothing.
    """

    def __init__(self, session, started_ns):
        self.session = session
        self.path = None
        self.is_closed = False
        self.bytes_by_file = {}
        self._started_ns = started_ns
        self._notes = []
        self._noted = set()

    def create(self, pid):
        """Make <pid>, or <pid>.2, <pid>.3 ... when it is there; return the names of the earlier folders of this pid."""
        earlier = []
        name = str(pid)
        while True:
            try:
                os.mkdir(os.path.join(self.session, name), 0o755)
                break
            except FileExistsError:
                earlier.append(name)
                name = f"{pid}.{len(earlier) + 1}"
        self.path = os.path.join(self.session, name)
        os.mkdir(os.path.join(self.path, fmt.SNAPSHOT_FOLDER), 0o755)
        for note in self._notes:
            self.append(fmt.NOTES_FILE, note)
        return earlier

    def write(self, name, value):
        """Write one file as a whole: a reader sees all of it or none."""
        if self.path is None or self.is_closed:
            return
        partial = os.path.join(self.path, f".{name}.part")
        try:
            self._write(partial, jsontext.write(value) + "\n", os.O_TRUNC)
            os.replace(partial, os.path.join(self.path, name))
        except OSError as error:
            self._refused(error)

    def append(self, name, value):
        """Write one line with one system call, so that a SIGKILL leaves whole lines."""
        if self.path is None or self.is_closed:
            return
        line = jsontext.write(value) + "\n"
        try:
            self._write(os.path.join(self.path, name), line, os.O_APPEND)
            self.bytes_by_file[name] = self.bytes_by_file.get(name, 0) + len(line)
        except OSError as error:
            self._refused(error)

    def note(self, sentence):
        """Write down what could not be done, once."""
        if sentence in self._noted or len(self._noted) >= _MOST_NOTES:
            return
        self._noted.add(sentence)
        note = {"t_ns": time.monotonic_ns() - self._started_ns, "note": sentence}
        if self.path is None:
            self._notes.append(note)
        else:
            self.append(fmt.NOTES_FILE, note)

    def snapshot_path(self, index):
        """Return the folder of a snapshot."""
        return os.path.join(self.path, fmt.SNAPSHOT_FOLDER, f"{index:04d}")

    def is_there(self):
        """Return whether the folder is still there; one that somebody removed is not made again, and the recording ends."""
        if not self.is_closed and not os.path.isdir(self.path):
            self.is_closed = True
        return not self.is_closed

    def remove_snapshot(self, index):
        """Delete a snapshot; done.json goes first, so that a half-deleted one does not exist for a reader."""
        folder = self.snapshot_path(index)
        try:
            names = os.listdir(folder)
            for name in sorted(names, key=lambda name: name != fmt.DONE_FILE):
                os.unlink(os.path.join(folder, name))
            os.rmdir(folder)
        except OSError:
            pass

    def snapshot_bytes(self, index):
        """Return the bytes of one snapshot on disk."""
        return _size(self.snapshot_path(index))

    def used_bytes(self):
        """Return the bytes of the whole folder."""
        return 0 if self.path is None else _size(self.path)

    def share_bytes(self, max_disk_bytes):
        """Return what this process may take of the session's bytes: an equal part for each that has not ended."""
        running = 0
        try:
            with os.scandir(self.session) as entries:
                for entry in entries:
                    if entry.name[:1].isdigit() and not os.path.exists(os.path.join(entry.path, fmt.EXIT_FILE)):
                        running += 1
        except OSError:
            pass
        return max_disk_bytes // max(1, running)

    def _write(self, path, text, flag):
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | flag, 0o644)
        try:
            data = text.encode("ascii")
            written = os.write(handle, data)
            if written != len(data):
                raise OSError(errno.ENOSPC, "the disk took only a part of a line")
        finally:
            os.close(handle)

    def _refused(self, error):
        if error.errno not in _FATAL:
            return
        self.is_closed = True
        sentence = f"The recording of this process ended, because its folder could not be written: {error.strerror}."
        note = {"t_ns": time.monotonic_ns() - self._started_ns, "note": sentence}
        try:
            self._write(os.path.join(self.path, fmt.NOTES_FILE), jsontext.write(note) + "\n", os.O_APPEND)
        except OSError:
            pass


def _size(folder):
    total = 0
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    total += _size(entry.path)
                else:
                    total += entry.stat(follow_symlinks=False).st_size
    except OSError:
        pass
    return total
