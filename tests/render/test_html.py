"""report.html: one file, no network, nothing that a name can break, a first screen without scripts."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json as plain
import re
import shutil
import subprocess
from html.parser import HTMLParser

import pytest

from leakscope.model import Layer, Verdict, VerdictClass, Waste
from leakscope.render import html
from leakscope.report import DeviceChapter
from tests.render.devices import gpu_leak, hostile_devices, segments
from tests.render.reports import ALL, HOSTILE, KNOWN, delayed_garbage, hostile, large, no_leak, python_leak, with_known

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
CHAPTERS = ["timeline", "suspects", "growth", "pictures", "sites", "waste", "dismissed", "gaps", "processes", "footprint",
            "environment", "machine"]
VOID = {"meta", "br", "link", "img", "input", "hr"}
DRAWN = {"rect", "line", "circle", "polyline", "polygon", "path", "ellipse"}


class Page(HTMLParser):
    """What a page holds: its tags with attributes, the text outside of scripts and styles, and whether it nests well."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.raw: dict[str, list[str]] = {"script": [], "style": []}
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        (self.raw[self.open[-1]] if self.open and self.open[-1] in self.raw else self.words).append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def first_screen(text: str) -> str:
    return Page(text[text.index("<header"):text.index('<section class="chapters"')]).text


@pytest.mark.parametrize("name", ALL)
def test_a_page_nests_well_and_names_nothing_outside_itself(name):
    text = html.text_of(ALL[name]())
    page = Page(text)
    assert page.open == []
    assert "http:" not in text and "https:" not in text
    assert not re.search(r"\b(src|href|srcset|action|formaction|data)=", text)
    assert not [attributes for _, attributes in page.tags for name in attributes if name == "style" or name.startswith("on")]


def test_the_policy_allows_exactly_the_style_and_the_script_of_the_page():
    text = html.text_of(python_leak())
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', text)[1]
    style = re.search(r"<style>(.*?)</style>", text, re.DOTALL)[1]
    script = re.search(r"<script>(.*?)</script>", text, re.DOTALL)[1]
    assert policy.startswith("default-src 'none';")
    for directive, content in (("style-src", style), ("script-src", script)):
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{directive} 'sha256-{digest}'" in policy


def test_the_first_screen_of_a_leak_says_everything_that_a_person_needs():
    words = first_screen(html.text_of(python_leak()))
    for part in ("Leak high confidence", "serve.SessionStore._by_id (dict) grew by 19 098 entries", "+3.4 MiB/s",
                 "3.3 MiB to 3.5 MiB", "38 min 28 s until the limit of 8.0 GiB",
                 "Python objects +174.0 MiB 94 %",
                 "Unexplained +2.0 MiB", "NO module serve .store", "a module lives for ever", "YES serve.Session x 19 110",
                 "168.0 MiB of the 174.0 MiB it retains", "Remove the session in", "no load was stopped", "explains 91 %",
                 "LS1-7K2QX4MB5TZ3WNPA", "91 % of the sessions are closed"):
        assert part in words


def test_the_suspect_edges_are_underlined_and_no_other():
    text = html.text_of(python_leak())
    trace = text[text.index('<ol class="trace">'):]
    trace = trace[:trace.index("</ol>")]
    assert re.findall(r'<u class="suspect"[^>]*><code>([^<]+)', trace) == [".store", "._by_id", "[str:36]"]


def test_a_cycle_is_told_by_the_names_of_its_attributes():
    words = first_screen(html.text_of(delayed_garbage()))
    assert "StreamParser .response holds Response Response .parser holds the first StreamParser" in words


def test_the_first_screen_without_a_leak_says_what_was_dismissed_and_names_no_suspect():
    words = first_screen(html.text_of(no_leak()))
    assert "No leak high confidence memory stayed flat" in words
    assert "geo.lookup : bounded: maxsize 256, full" in words
    assert "What holds it" not in words


def test_the_first_screen_without_evidence_says_what_to_run():
    assert "leakscope run --every 1s -- python job.py" in first_screen(html.text_of(ALL["insufficient-evidence"]()))


def test_growth_of_which_nothing_is_known_draws_no_bar():
    text = html.text_of(dataclasses.replace(no_leak(), layers=(Layer("total", -5), Layer("python", None), Layer("native", -5))))
    assert '<svg class="bar"' not in text
    assert "Python objects not measured" in first_screen(text)
    assert "Native -5 B" in first_screen(text)


@pytest.mark.parametrize("kind", VerdictClass)
def test_every_class_of_verdict_has_its_words(kind):
    report = python_leak()
    verdict = Verdict(kind, report.verdict.confidence, "Something was seen.")
    words = first_screen(html.text_of(dataclasses.replace(report, verdict=verdict)))
    assert "Something was seen." in words
    assert ("What to do" in words) == kind.is_claim


@pytest.mark.parametrize("name", ALL)
def test_the_chapters_are_folded_and_always_in_the_same_order(name):
    page = Page(html.text_of(ALL[name]()))
    chapters = [attributes for tag, attributes in page.tags if tag == "details"]
    assert [chapter["id"] for chapter in chapters] == CHAPTERS
    assert all("open" not in chapter for chapter in chapters)


def test_a_known_leak_is_told_on_the_first_screen_and_with_its_suspect():
    page = html.text_of(with_known(python_leak()))
    assert KNOWN in first_screen(page)
    assert Page(page).text.count(KNOWN) == 2
    assert "after a rename still LS1s-" in Page(page).text


def test_waste_is_a_folded_table_by_package():
    report = dataclasses.replace(python_leak(), waste=(Waste("shop", "empty dict", 41_200, 2_636_800),))
    text = Page(html.text_of(report)).text
    assert "Waste by package 2.5 MiB" in text and re.search(r"shop empty dict 41.200 2.5 MiB", text)


def test_a_device_has_a_chapter_of_its_own_and_a_sentence_on_the_first_screen():
    text = html.text_of(gpu_leak())
    page = Page(text)
    chapters = [attributes["id"] for tag, attributes in page.tags if tag == "details"]
    assert chapters == [*CHAPTERS[:5], "device", *CHAPTERS[5:]]
    assert ("On cuda:0 this process uses 16.9 GiB more than at the start, 12.4 GiB of it tensors that Python holds." in
            first_screen(text).replace("\u00a0", " "))
    assert "Simulated: these numbers come from a simulator, no GPU was there." in first_screen(text)
    for part in ("serve.client._tensor_cache[*] 12.0 GiB", "12 → 412", "argument 3 ( max_seq_len ), integers 17 to 4096",
                 "187 more segments left out here", "3 more owners left out here", "2.0 MiB, 83 % of it held by"):
        assert part in page.text.replace("\u00a0", " ")


def test_without_a_device_the_page_has_neither_the_chapter_nor_its_style():
    text = html.text_of(python_leak())
    assert 'id="device"' not in text and ".device-chapter" not in text


def test_a_device_of_which_nothing_is_known_has_a_chapter_that_says_so():
    report = dataclasses.replace(no_leak(), devices=(DeviceChapter("cuda:0"),))
    assert "How much the memory on cuda:0 grew was not measured." in Page(html.text_of(report)).text
    assert "cuda:0" not in first_screen(html.text_of(report))


def test_a_thousand_segments_and_five_hundred_owners_stay_small():
    chapter = gpu_leak().devices[0]
    owners = tuple(dataclasses.replace(chapter.owners[1], path=f"package.module.Class.row{index}") for index in range(500))
    crowded = dataclasses.replace(chapter, owners=owners, caches=chapter.caches * 50,
                                  segments=(*segments(12, 900), *segments(988, 3)))
    text = html.text_of(dataclasses.replace(gpu_leak(), devices=(crowded,)))
    assert len(text.encode()) < 2_000_000
    words = Page(text).text
    for cut in ("478 more owners", "175 more caches", "1 163 more segments"):
        assert cut in words


@pytest.mark.parametrize("made", [hostile, hostile_devices])
def test_hostile_names_end_no_element_and_add_none(made):
    plain_tags = {tag for report in (*ALL.values(), gpu_leak) for tag, _ in Page(html.text_of(report())).tags}
    text = html.text_of(made())
    page = Page(text)
    assert page.open == []
    assert {tag for tag, _ in page.tags} <= plain_tags | DRAWN | {"g", "title", "text", "tspan"}
    assert text.count("<script") == 2 and text.count("</script>") == 2
    assert HOSTILE[:34] in page.text
    assert "\x1b" not in text and "\x00" not in text and "\u202e" not in text


def test_the_machine_data_in_the_page_is_the_report():
    page = Page(html.text_of(python_leak()))
    data = plain.loads(page.raw["script"][0])
    assert data["report"]["findings"][0]["owner"] == "serve.SessionStore._by_id"
    assert data["timeline"][0]["name"] == "PSS"


def test_a_large_report_stays_under_two_megabytes_and_says_what_was_cut():
    text = html.text_of(large())
    assert len(text.encode()) < 2_000_000
    words = Page(text).text
    for cut in ("394 more suspects", "1 960 more rows", "1 900 more gaps", "900 more processes"):
        assert cut in words


def browse(file):
    return subprocess.run(
        [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", f"--user-data-dir={file}.d",
         "--virtual-time-budget=2000", "--dump-dom", file.as_uri()], capture_output=True, text=True, timeout=120)


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine: the page cannot be opened")
@pytest.mark.parametrize("name", ["python-leak", "hostile", "gpu-leak", "hostile-devices"])
def test_a_browser_opens_the_page_without_a_complaint_and_runs_its_script(name, tmp_path):
    made = {**ALL, "hostile": hostile, "gpu-leak": gpu_leak, "hostile-devices": hostile_devices}[name]
    html.render(made(), tmp_path / "report.html")
    done = browse(tmp_path / "report.html")
    page = Page(done.stdout)
    sentence = HOSTILE[:34] if "hostile" in name else made().verdict.sentence.partition(" ")[2]
    assert sentence in page.text.replace("\u00a0", " ")
    assert "CONSOLE" not in done.stderr  # a refused style or script and every error of a script say so there
    button = next(attributes for tag, attributes in page.tags if attributes.get("id") == "open-all")
    assert "hidden" not in button
