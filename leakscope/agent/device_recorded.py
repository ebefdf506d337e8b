"""A device that is only recorded: DIR/device.json, in the form of devices.json, which the program under test writes again and
again (atomically). For tests, and for replays of what a real device did; what is simulated says so in it.
"""

import os

from . import jsontext
from .device_torch import Blocks
from .thread import read_small

FILE = "device.json"
_MOST_BYTES = 64 << 20


class Recorded:
    """A provider as those of device_torch.py. `folder`: DIR. A file that names another process by "pid" is not ours."""

    prefix = "cuda"

    def __init__(self, folder):
        self._path = os.path.join(folder, FILE)
        self._mark, self.said = None, {}

    @property
    def name(self):
        """recorded, whatever the file says it was recorded of."""
        return "recorded"

    def is_up(self):
        """Whether there is a whole file; reads it if it is another than the last time."""
        try:
            state = os.stat(self._path)
            mark = (state.st_mtime_ns, state.st_ino, state.st_size)
            if mark != self._mark:
                said = jsontext.read(read_small(self._path, _MOST_BYTES).decode())
                self._mark, self.said = mark, said if type(said) is dict else {}
        except (OSError, ValueError, StopIteration):  # not yet; or not written atomically, and read in the middle
            pass
        return type(self.said.get("devices")) is list and self.said.get("pid") in (None, os.getpid())

    def devices(self):
        """The entries of the devices in it."""
        return [each for each in self.said["devices"] if type(each) is dict and type(each.get("name")) is str]

    def host_stats(self):
        """As the file says."""
        found = self.said.get("host_stats")
        return found if type(found) is dict else {}

    def snapshot(self, mode):
        """As the file says."""
        segments, settings = self.said.get("segments"), self.said.get("settings")
        return Blocks(list(segments) if type(segments) is list else [], settings=settings if type(settings) is dict else None)

    def backend(self):
        """As the file says."""
        return str(self.said.get("backend", "native"))
