"""report.json against a schema written by hand from REPORT_JSON.md: every key, every type, nothing unknown."""

from __future__ import annotations

import dataclasses
import json as plain
import math
from typing import Any

import jsonschema
import numpy as np
import pytest

from leakscope.model import EVIDENCE_BITS, Rate
from leakscope.render import json
from leakscope.report import DeviceChapter
from tests.render.devices import gpu_leak
from tests.render.reports import ALL, hostile, large, no_leak, python_leak

TEXT, WHOLE, NUMBER = {"type": "string"}, {"type": "integer"}, {"type": "number"}


def record(**keys: Any) -> dict[str, Any]:
    """An object with exactly these keys."""
    return {"type": "object", "properties": keys, "required": list(keys), "additionalProperties": False}


def rows(of: dict[str, Any], **limits: int) -> dict[str, Any]:
    return {"type": "array", "items": of, **limits}


def maybe(of: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [of, {"type": "null"}]}


def one_of(*words: str) -> dict[str, Any]:
    return {"enum": list(words)}


CONFIDENCE = one_of("high", "medium", "low")
BY_DEVICE = {"type": "object", "additionalProperties": WHOLE}
PLACE = {"function": TEXT, "file": TEXT, "line": WHOLE}
TERMS = record(**dict.fromkeys(("outside", "allocated_owned", "workspaces", "allocated_unowned", "pending", "inactive_split",
                                "releasable"), maybe(WHOLE)))
PROCESS = record(
    pid=WHOLE, parent=maybe(WHOLE), role=one_of("main", "fork", "spawn", "exec"), python=TEXT,
    status=one_of("complete", "died", "running"), samples=WHOLE, snapshots=WHOLE,
    snapshot_method=one_of("fork", "in-place", "none"), longest_pause_ms=maybe(NUMBER), walk=one_of("native", "python", "none"),
    sites=one_of("sampled", "tracemalloc", "off"))
SESSION = record(
    id=TEXT, command=rows(TEXT), started=TEXT, duration_s=maybe(NUMBER), exit_code=maybe(WHOLE), signal=maybe(WHOLE),
    label=TEXT, environment={"type": "object", "additionalProperties": TEXT}, processes=rows(PROCESS))
EVIDENCE = rows(record(bit=one_of(*EVIDENCE_BITS), text=TEXT))
RATE = record(bytes_per_s=NUMBER, low=maybe(NUMBER), high=maybe(NUMBER))
PER_WORK = record(bytes_per_work=NUMBER, low=maybe(NUMBER), high=maybe(NUMBER))
VERDICT = {
    **record(sentence=TEXT, confidence=CONFIDENCE, growth_bytes=maybe(WHOLE), hours_until_oom=maybe(NUMBER), rate=maybe(RATE),
             bytes_per_work=maybe(PER_WORK), memory_limit_bytes=maybe(WHOLE), evidence=EVIDENCE,
             smallest_leak_bytes_per_s=maybe(NUMBER), smallest_leak_bytes_per_work=maybe(NUMBER)),
}
VERDICT["properties"]["class"] = one_of(
    "python-leak", "delayed-garbage", "native-leak", "gpu-leak", "fragmentation", "bounded-growth", "warm-up", "no-leak",
    "insufficient-evidence")
VERDICT["required"].append("class")
LAYER = {"oneOf": [
    record(name=one_of("total"), growth_bytes=maybe(WHOLE), measure=maybe(one_of("pss", "uss", "rss"))),
    record(name=one_of("python", "native", "allocator-retained", "mapped", "unexplained"), growth_bytes=maybe(WHOLE)),
    record(name={"type": "string", "pattern": r"^(cuda|xpu|mps):\d+$"}, growth_bytes=maybe(WHOLE), terms=TERMS),
]}
FINDING = record(
    rule={"type": "string", "pattern": r"^LS\d+$"}, name=TEXT, confidence=CONFIDENCE, layer=TEXT, pid=WHOLE, owner=TEXT,
    path=rows(record(name=TEXT, type=TEXT, edge=TEXT, status=one_of("no", "unknown", "yes"), reasons=rows(TEXT))),
    path_text=maybe(TEXT), cycle=rows(record(type=TEXT, edge=TEXT)), leaked_type=TEXT, object_count=maybe(WHOLE),
    objects_per_s=maybe(NUMBER), retained_bytes=BY_DEVICE, growth_bytes=BY_DEVICE, share_of_growth_ratio=maybe(NUMBER),
    frees_bytes=maybe(WHOLE), site=maybe(record(**PLACE)), sites=rows(record(**PLACE, share_ratio=maybe(NUMBER)), maxItems=5),
    also_held_by=rows(TEXT), reasons=rows(TEXT), doubts=rows(TEXT), remedy=TEXT, known=maybe(TEXT), fingerprint=TEXT,
    counts=rows(WHOLE), evidence=EVIDENCE, cohorts=rows(WHOLE), rate=maybe(RATE), bytes_per_work=maybe(PER_WORK),
    unit_bytes=maybe(WHOLE), leak_share_bytes=maybe(WHOLE), fingerprint_preimage=TEXT, similar=TEXT)
DEVICE_TERM = record(name=TEXT, start_bytes=maybe(WHOLE), growth_bytes=maybe(WHOLE), is_interpolated={"type": "boolean"})
IN_SNAPSHOTS = rows(maybe(WHOLE))
CACHE = record(
    name=TEXT, kind=one_of("functools", "table"), library=TEXT, entries=IN_SNAPSHOTS, hits=IN_SNAPSHOTS, misses=IN_SNAPSHOTS,
    evictions=IN_SNAPSHOTS, bound=maybe(WHOLE), varying=TEXT, varies_by=one_of("value", "identity", ""),
    retained_bytes=BY_DEVICE)
SEGMENT = record(
    bytes=WHOLE, stream=WHOLE, pool=maybe(TEXT), is_expandable={"type": "boolean"}, count=WHOLE, parts=rows(record(
        state=one_of("free", "pending", "owned", "workspace", "private-pool", "unowned"), bytes=WHOLE, owner=maybe(WHOLE),
        is_pinning={"type": "boolean"}, is_mixed={"type": "boolean"}), minItems=1))
DEVICE = record(
    name=TEXT, model=TEXT, total_bytes=maybe(WHOLE), provider=one_of("", "cuda", "rocm", "xpu", "mps", "generic", "recorded"),
    is_simulated={"type": "boolean"}, use_quality=one_of("exact", "matched", "approximate", "unknown"),
    growth_bytes=maybe(WHOLE), explained_ratio=maybe(NUMBER), terms=rows(DEVICE_TERM), wholes=rows(DEVICE_TERM),
    owners=rows(record(path=TEXT, retained_bytes=WHOLE, growth_bytes=maybe(WHOLE), count=maybe(WHOLE),
                       site=maybe(record(**PLACE)))),
    owners_left_out=WHOLE, caches=rows(CACHE), segments=rows(SEGMENT), segments_left_out=WHOLE,
    fragmentation=maybe(record(
        inactive_split_bytes=maybe(WHOLE), free_bytes=maybe(WHOLE), largest_free_bytes=maybe(WHOLE), pins_left_out=WHOLE,
        pins=rows(record(bytes=WHOLE, segment_bytes=WHOLE, keeps_bytes=WHOLE, owner=maybe(TEXT),
                         owner_share_ratio=maybe(NUMBER), site=maybe(record(**PLACE)))))),
    settings={"type": "object", "additionalProperties": TEXT}, notes=rows(TEXT), load_fit=maybe(TEXT))
SCHEMA = record(
    schema={"const": "leakscope/report/1"}, tool=record(name={"const": "leakscope"}, version=TEXT), session=SESSION,
    verdict=VERDICT, layers=rows(LAYER, minItems=6), findings=rows(FINDING),
    dismissed=rows(record(what=TEXT, why=TEXT, owner=TEXT, growth_bytes=maybe(WHOLE))),
    gaps=rows(record(claim=TEXT, missing=TEXT, command=TEXT)), notes=rows(TEXT),
    waste=rows(record(package=TEXT, what=TEXT, count=WHOLE, bytes=WHOLE)),
    coverage=record(graph_explains_ratio=maybe(NUMBER), samples_lost=WHOLE),
    artefact=record(agent_bytes=maybe(WHOLE), app_share_ratio=maybe(NUMBER)))


WITH_DEVICES = {**SCHEMA, "properties": {**SCHEMA["properties"], "devices": rows(DEVICE, minItems=1)},
                "required": [*SCHEMA["required"], "devices"]}


def test_the_hand_written_schema_is_itself_a_schema_and_refuses_what_it_should():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    document = json.document(no_leak())
    del document["verdict"]["hours_until_oom"]
    with pytest.raises(jsonschema.ValidationError, match="hours_until_oom"):
        jsonschema.validate(document, SCHEMA)


@pytest.mark.parametrize("name", ALL)
def test_every_key_of_the_schema_is_there_with_its_type(name):
    report = dataclasses.replace(ALL[name](), extra={})
    jsonschema.validate(plain.loads(json.text_of(report)), SCHEMA)


def test_a_process_with_a_device_has_the_devices_beside_the_rest():
    jsonschema.Draft202012Validator.check_schema(WITH_DEVICES)
    jsonschema.validate(plain.loads(json.text_of(gpu_leak())), WITH_DEVICES)
    nothing_known = dataclasses.replace(gpu_leak(), devices=(DeviceChapter("cuda:0"),))
    jsonschema.validate(plain.loads(json.text_of(nothing_known)), WITH_DEVICES)


def test_the_keys_are_sorted_and_the_text_ends_with_a_newline():
    text = json.text_of(python_leak())
    assert text.endswith("}\n")
    assert text == plain.dumps(plain.loads(text), sort_keys=True, indent=2, ensure_ascii=False) + "\n"


def test_what_was_not_measured_is_null_and_never_zero():
    verdict = dataclasses.replace(no_leak().verdict, rate=Rate(math.nan, -math.inf, None), hours_until_oom=math.inf)
    document = plain.loads(json.text_of(dataclasses.replace(no_leak(), verdict=verdict, layers=(), agent_bytes=None)))
    assert document["verdict"]["rate"] == {"bytes_per_s": None, "low": None, "high": None}
    assert document["verdict"]["hours_until_oom"] is None
    assert document["artefact"]["agent_bytes"] is None
    assert [layer["growth_bytes"] for layer in document["layers"]] == [None] * 6


def test_numbers_of_numpy_become_plain_numbers():
    report = dataclasses.replace(no_leak(), agent_bytes=np.uint64(7), graph_explains_ratio=np.float32("nan"))
    document = plain.loads(json.text_of(report))
    assert (document["artefact"]["agent_bytes"], document["coverage"]["graph_explains_ratio"]) == (7, None)


def test_extra_facts_are_added_but_take_no_key_of_the_schema():
    report = dataclasses.replace(no_leak(), extra={"benchmark": {"rounds": 3}, "verdict": "mine"})
    document = json.document(report)
    assert document["benchmark"] == {"rounds": 3}
    assert document["verdict"]["class"] == "no-leak"


def test_hostile_names_stay_json_in_utf_8(tmp_path):
    json.render(hostile(), tmp_path / "report.json")
    document = plain.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert "alert(1)" in document["findings"][0]["owner"]


def test_a_large_report_keeps_every_finding():
    assert len(json.document(large())["findings"]) == 400
