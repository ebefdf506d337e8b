"""An allocation loop: small objects come and go all the time, 50,000 stay."""

import resource
import sys
import time

scale = float(sys.argv[1])
start = time.perf_counter()
keep = {}
for number in range(int(7_000_000 * scale)):
    keep[number % 50_000] = [number, str(number)]
print("work_s", time.perf_counter() - start)
print("peak_kib", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
