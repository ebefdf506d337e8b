"""What a snapshot holds of the sampled blocks that live: the object of each, and the sites."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.agent.probes import stage_probe
from tests.agent.sampling import python, run  # noqa: F401
from tests.agent.staged import Stage

WALKED = '''
import os, struct
from collections import deque
class Order:
    def __init__(self, number):
        self.number, self.note = number, None
kept = {}
def orders(count): kept["orders"] = [Order(number + 1000) for number in range(count)]
def lists(count): kept["lists"] = [[number] * 80 for number in range(count)]
def one_list(count): kept["one"] = list(range(count))
def one_dict(count): kept["dict"] = dict.fromkeys(range(count))
def one_set(count): kept["set"] = set(range(count))
def queue(count): kept["queue"] = deque([None] * count)
def arrays(count): kept["arrays"] = [bytearray(5000) for number in range(count)]
assert _probe.sample_start(mean_bytes=2048, seed=7) is None
orders(3000); lists(500); one_list(100000); one_dict(20000); one_set(20000); queue(20000); arrays(50)
def column(name, letter):
    data = open(os.path.join(sys.argv[2], name + ".npy"), "rb").read()[128:]
    return struct.unpack("<%d%s" % (len(data) // struct.calcsize(letter), letter), data)
answer = _probe.walk(sys.argv[2], "{", "", "_leakscope_agent", None, None, (), 0, 0)
assert "error" not in answer, answer
names = json.load(open(os.path.join(sys.argv[2], "names.json")))
nodes, sites, sizes, weights, times = (column("sample_" + name, letter) for name, letter in
                                       (("node", "I"), ("site", "I"), ("bytes", "Q"), ("weight", "Q"), ("ns", "Q")))
types, found, without = column("type_id", "I"), {}, 0
for number, node in enumerate(nodes):
    functions = [frame[2].rpartition(".")[2] for frame in names["sites"][sites[number]]["frames"]]
    if node == 0xFFFFFFFF:
        without += 1
        continue
    for function in ("orders", "lists", "one_list", "one_dict", "one_set", "queue", "arrays"):
        if function in functions:
            entry = found.setdefault(function, {})
            name = names["types"][types[node]][1]
            entry[name] = entry.get(name, 0) + weights[number]
sums = [0] * len(names["sites"])
for number, site in enumerate(sites):
    sums[site] += weights[number]
fits = all(abs(site["bytes"] - total) <= 0.01 * total for site, total in zip(names["sites"][1:], sums[1:]))
say([found, without, len(nodes), fits, names["sites"][0], list(times) == [abs(time) for time in times]])
'''


def test_a_walk_finds_the_object_of_each_block_and_of_each_body(python: str, tmp_path: Path) -> None:  # noqa: F811
    found, without, count, fits, first, are_times = run(python, WALKED, str(tmp_path))
    assert count > 500 and without < 10
    assert found["orders"]["Order"] > 100_000 and set(found["orders"]) <= {"Order", "int", "list", "dict", "method"}
    for function, kind, size in (("lists", "list", 500 * 700), ("one_list", "list", 800_000), ("one_dict", "dict", 590_000),
                                 ("one_set", "set", 2_097_152), ("queue", "deque", 160_000), ("arrays", "bytearray", 250_000)):
        assert found[function][kind] == pytest.approx(size, rel=0.5), function
    assert fits and first is None and are_times


PROGRAM = """
import _leakscope_agent
kept = []
def remember(count):
    kept.append([bytes(700) for _ in range(count)])
for _ in range(30):
    remember(300)
assert _leakscope_agent.snapshot()
"""


def test_a_session_has_the_sites_of_what_lives_from_the_first_line_on(python: str, tmp_path: Path) -> None:  # noqa: F811
    stage = Stage(tmp_path, {"sites": "sampled"}, walk=True)
    stage_probe(python, stage.boot / "_leakscope_agent")
    ran = stage.run(python, str(stage.write("shop.py", PROGRAM)))
    assert (ran.stdout, ran.stderr, ran.returncode) == ("", "", 0)
    (process,) = stage.processes
    assert process.json("process.json")["sites"] == "sampled" and process.notes == []
    last = max(process.path.glob("snapshots/*"))
    assert (last / "sample_node.npy").exists()
    sites = json.loads((last / "names.json").read_text())["sites"][1:]
    size = sum(site["bytes"] for site in sites if ["shop.py", "remember"] in [[file, name] for file, _, name in site["frames"]])
    assert size == pytest.approx(9000 * 733, rel=0.5)
    assert not any("_leakscope_agent" in frame[0] for site in sites for frame in site["frames"])
