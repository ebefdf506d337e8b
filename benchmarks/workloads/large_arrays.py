"""Few large allocations: arrays of numpy; a result in 10 stays."""

import resource
import sys
import time

import numpy as np

scale = float(sys.argv[1])
start = time.perf_counter()
kept, total = [], 0.0
for number in range(int(300 * scale)):
    array = np.arange(1_500_000, dtype=np.float64) * number
    total += float(array.sum())
    ordered = np.sort(np.random.default_rng(number).random(100_000))
    if number % 10 == 0:
        kept.append(ordered)
print("work_s", time.perf_counter() - start)
print("peak_kib", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
