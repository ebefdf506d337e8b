"""When snapshots are taken, and which of them are kept.

Nobody says how long the program will run. So the times grow geometrically, which gives a five-second script half a
dozen snapshots and a five-day server a few dozen, and of those taken only a few are kept: the first after the warm-up,
the last, and between them those that leave the most even gaps in time. They grow from the end of the imports on: a job
that imports for five seconds and works for five is a job of five seconds.
"""

_SECOND = 1_000_000_000
FIRST_NS = 800_000_000
_SHORTEST_STEP_NS = 400_000_000
# The same where a snapshot takes the program a millisecond: a script of two seconds then has five of them.
_NATIVE_FIRST_NS, _NATIVE_SHORTEST_STEP_NS = 400_000_000, 200_000_000
# The ratio of one time to the one before: dense while most scripts end, thinner once the program has shown that it
# stays.
_RATIO, _LATER_RATIO, _LATER_NS = 1.38, 1.5, 600 * _SECOND
# A server that is killed after days should leave a last snapshot that is not days old.
_LONGEST_STEP_NS = 4 * 3600 * _SECOND
# After a walk the program runs undisturbed for this many times as long as the walk took: in the first minute, where a
# short run has to get its three snapshots, and later.
_REST, _LATER_REST, _LATER_REST_NS = 0.5, 20.0, 60 * _SECOND
# The same for a native walk, in times of what it took from the program: 3 % of a long run. In the first minute most of what
# is counted is the time of a child on another core, which costs the program next to nothing, and a short run needs it.
_NATIVE_REST, _NATIVE_LATER_REST = 8.0, 33.0


class Ladder:
    """Times are nanoseconds since the process came up.

    Args:
        keep: how many snapshots of the ladder stay on disk (at least 2); one more while the newest is being added.
        warmup_ns: what is earlier is not looked at; None: the ladder begins at once, and `warmed` may tell later.
        every_ns: a fixed period instead of the growing one.
        is_native: whether snapshots cost as little as natively.
    """

    def __init__(self, keep=6, warmup_ns=None, every_ns=None, is_native=False):
        first_ns = _NATIVE_FIRST_NS if is_native else FIRST_NS
        self.next_ns = warmup_ns if warmup_ns is not None else every_ns or first_ns
        self.kept = []
        self._keep = max(2, keep)
        self._warm_ns = warmup_ns or 0
        self._every_ns = every_ns
        self._shortest_step_ns = _NATIVE_SHORTEST_STEP_NS if is_native else _SHORTEST_STEP_NS

    def is_due(self, now_ns):
        """Return whether the next snapshot should be taken now."""
        return now_ns >= self.next_ns

    def warmed(self, at_ns):
        """The warm-up is now known to have lasted until `at_ns` or longer: earlier snapshots are the first to go."""
        self._warm_ns = max(self._warm_ns, at_ns)

    def taken(self, index, begun_ns):
        """A snapshot was taken; return the indices of those to delete."""
        self.kept.append((begun_ns, index))
        dropped = []
        while len(self.kept) > self._keep:
            dropped.append(self.thin())
        return dropped

    def postponed(self, begun_ns, ended_ns, cost_ns=None):
        """A walk from `begun_ns` to `ended_ns` was tried, or given up: set the time of the next.

        `cost_ns`: of a native walk, how much of its time the program lost; None: a walk in Python took it all.
        """
        if self._every_ns:
            step_ns = self._every_ns
        else:
            ratio = _RATIO if begun_ns < _LATER_NS else _LATER_RATIO
            start_ns = self._warm_ns if self._warm_ns < min(begun_ns, _LATER_REST_NS) else 0
            step_ns = min(max(self._shortest_step_ns, int((begun_ns - start_ns) * (ratio - 1))), _LONGEST_STEP_NS)
        is_early = ended_ns < _LATER_REST_NS
        if cost_ns is None:
            rest_ns = (_REST if is_early else _LATER_REST) * (ended_ns - begun_ns)
        else:
            rest_ns = (_NATIVE_REST if is_early else _NATIVE_LATER_REST) * cost_ns
        self.next_ns = max(begun_ns + step_ns, ended_ns + int(rest_ns))

    def thin(self):
        """Give up one snapshot and return its index, or None when only the first and the last are left."""
        times = [time for time, _ in self.kept]
        if len(times) > 1 and times[0] < self._warm_ns:
            return self.kept.pop(0)[1]
        if len(times) < 3:
            return None
        # Without number i the gap is times[i + 1] - times[i - 1]: the smallest new gap disturbs the evenness least.
        least = min(range(1, len(times) - 1), key=lambda i: times[i + 1] - times[i - 1])
        return self.kept.pop(least)[1]
