"""A request loop: JSON is parsed, matched with a regular expression and answered in a coroutine; a session in 20 stays."""

import asyncio
import json
import re
import resource
import sys
import time

scale = float(sys.argv[1])
pattern = re.compile(r"item-(\d+)")
text = json.dumps({"items": [{"name": f"item-{k}", "tags": ["a", "b"], "price": k * 1.5} for k in range(40)]})
sessions = {}


async def request(number):
    data = json.loads(text)
    await asyncio.sleep(0)
    if number % 20 == 0:
        sessions[number] = data["items"][:2]
    return sum(int(pattern.match(item["name"])[1]) for item in data["items"])


async def main():
    return sum([await request(number) for number in range(int(80_000 * scale))])


start = time.perf_counter()
asyncio.run(main())
print("work_s", time.perf_counter() - start)
print("peak_kib", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
