"""The preloaded sampler: what native code keeps is found with its function, and what it gives back is not."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from leakscope.inject import _probes
from tests.agent.probes import probe_for

pytestmark = pytest.mark.skipif(sys.platform != "linux" or shutil.which("cc") is None, reason="needs Linux and a C compiler")

KEEPER = """
#define _GNU_SOURCE
#include <link.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unwind.h>
static void *kept[100000];
static int count;
void keep_records(int blocks, int bytes) { for (int i = 0; i < blocks; i++) kept[count++] = malloc(bytes); }
void keep_and_give_back(int blocks, int bytes) { for (int i = 0; i < blocks; i++) free(malloc(bytes)); }
void keep_growing(int steps, int bytes) {
    char *block = NULL;
    for (int i = 1; i <= steps; i++) block = realloc(block, (size_t)i * bytes);
    kept[count++] = block;
}
void keep_aligned(int blocks, int bytes) { for (int i = 0; i < blocks; i++) posix_memalign(&kept[count++], 64, bytes); }
void keep_zeroed(int blocks, int bytes) { for (int i = 0; i < blocks; i++) kept[count++] = calloc(blocks, bytes / blocks); }
void keep_pages(int blocks, int bytes) {
    for (int i = 0; i < blocks; i++)
        kept[count++] = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}
/* As a program that compiles at run time: the unwinder sorts what was registered when next asked, with its lock held. */
void __register_frame(void *frames);
static int register_of_c_library(struct dl_phdr_info *object, size_t size, void *times) {
    for (int i = 0; strstr(object->dlpi_name, "libc.so") && i < object->dlpi_phnum; i++) {
        char *index = (char *)object->dlpi_addr + object->dlpi_phdr[i].p_vaddr;
        if (object->dlpi_phdr[i].p_type == PT_GNU_EH_FRAME && index[1] == 0x1b) /* relative, 4 bytes */
            for (int again = *(int *)times; again > 0; again--) __register_frame(index + 4 + *(int *)(index + 4));
    }
    return 0;
}
static _Unwind_Reason_Code pass(struct _Unwind_Context *context, void *count) { ++*(int *)count; return _URC_NO_REASON; }
int register_and_unwind(int times) {
    int frames = 0;
    dl_iterate_phdr(register_of_c_library, &times);
    _Unwind_Backtrace(pass, &frames);
    return frames;
}
void map_and_unmap(int blocks, int bytes) {
    for (int i = 0; i < blocks; i++)
        munmap(mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), bytes);
}
"""

START = """
import ctypes, os, sys
runtime = ctypes.CDLL(None)
runtime.leakscope_native_start.argtypes = [ctypes.c_uint64]
assert runtime.leakscope_native_start(65536) == 0
keeper = ctypes.CDLL({keeper!r})
def record(path):
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    assert runtime.leakscope_native_write(file) == 0
    os.close(file)
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("native")
    _probes.compile_preloaded(folder / "libleakscope_native.so", ("-Werror",))
    (folder / "keeper.c").write_text(KEEPER)
    subprocess.run(["cc", "-shared", "-fPIC", "-O0", folder / "keeper.c", "-o", folder / "libkeeper.so", "-w", "-lgcc_s"],
                   check=True)
    return folder


def sites_of(built, tmp_path, program):
    """Run a program under the preloaded sampler; return native.json that it recorded as "out.json"."""
    script = tmp_path / "program.py"
    script.write_text(START.format(keeper=str(built / "libkeeper.so")) + program)
    subprocess.run([sys.executable, script], check=True, timeout=60, cwd=tmp_path,
                   env={**os.environ, "LD_PRELOAD": str(built / "libleakscope_native.so")})
    return json.loads((tmp_path / "out.json").read_text())


def kept_by(record, symbol):
    """Return the estimated (bytes, count) below a function of the keeper."""
    found = [site for site in record["sites"]
             if any(module == "libkeeper.so" and name == symbol for module, name, _offset in site["native"])]
    return sum(site["bytes"] for site in found), sum(site["count"] for site in found)


@pytest.mark.parametrize(("function", "blocks", "size"), [
    ("keep_records", 20_000, 2000), ("keep_records", 300, 200_000), ("keep_aligned", 10_000, 4096),
    ("keep_records", 12_000, 100_000), ("keep_zeroed", 500, 80_000), ("keep_pages", 200, 200_704)])
def test_what_is_kept_is_estimated_without_bias(built, tmp_path, function, blocks, size):
    record = sites_of(built, tmp_path, f"keeper.{function}({blocks}, {size})\nrecord('out.json')")
    kept, count = kept_by(record, function)
    # At least 500 samples or blocks larger than the mean: 5 % of standard deviation.
    assert kept == pytest.approx(blocks * size, rel=0.3)
    assert count == pytest.approx(blocks, rel=0.3)


def test_what_is_given_back_is_not_there(built, tmp_path):
    record = sites_of(built, tmp_path, "keeper.keep_and_give_back(100_000, 3000)\nkeeper.map_and_unmap(300, 300_000)\n"
                      "record('out.json')")
    assert kept_by(record, "keep_and_give_back") == (0, 0)
    assert kept_by(record, "map_and_unmap") == (0, 0)
    assert record["taken"] > 300


def test_a_block_that_grows_counts_once(built, tmp_path):
    record = sites_of(built, tmp_path, "for _ in range(40): keeper.keep_growing(50, 20_000)\nrecord('out.json')")
    kept, count = kept_by(record, "keep_growing")
    assert kept == pytest.approx(40 * 1_000_000, rel=0.3)
    assert count == pytest.approx(40, rel=0.3)


def test_the_innermost_frame_is_that_of_the_caller_of_malloc(built, tmp_path):
    record = sites_of(built, tmp_path, "keeper.keep_records(20_000, 2000)\nrecord('out.json')")
    largest = max(record["sites"], key=lambda site: site["bytes"])
    assert largest["native"][0][:2] == ["libkeeper.so", "keep_records"]


def test_children_by_fork_go_on_while_threads_allocate(built, tmp_path):
    record = sites_of(built, tmp_path, """
import threading
is_done = []
def churn():
    while not is_done:
        keeper.keep_and_give_back(100, 5000)
threads = [threading.Thread(target=churn) for _ in range(4)]
for thread in threads:
    thread.start()
for number in range(100):
    child = os.fork()
    if child == 0:
        keeper.keep_and_give_back(500, 5000)
        os._exit(7)
    assert os.waitpid(child, 0)[1] == 7 << 8
is_done.append(True)
for thread in threads:
    thread.join()
record('out.json')
""")
    assert kept_by(record, "keep_and_give_back") == (0, 0)


def test_memory_that_the_unwinder_takes_with_its_lock_held_is_let_pass(built, tmp_path):
    record = sites_of(built, tmp_path, "assert keeper.register_and_unwind(50) > 3\nkeeper.keep_records(2000, 2000)\n"
                      "record('out.json')")
    assert kept_by(record, "keep_records") != (0, 0)


def test_the_tables_of_the_other_sampler_grow_beside_it(built, tmp_path):
    # Both ask for the stack of the thread, one with the lock that the other waits for: what grows there may not come by here.
    record = sites_of(built, tmp_path, f"""
sys.path.insert(0, {str(probe_for(sys.executable))!r})
import _probe
assert _probe.native_begin() and _probe.sample_start(mean_bytes=2000) is None
space = {{}}
exec("".join(f"def made_{{number}}(): return bytearray(3000)\\n" for number in range(3000)), space)
kept = [space[f"made_{{number}}"]() for _ in range(5) for number in range(3000)]
assert _probe.sample_state()["live_count"] > 5000
record('out.json')
""")
    assert record["taken"] > 50


def test_asleep_nothing_is_recorded(built, tmp_path):
    script = tmp_path / "program.py"
    script.write_text("import ctypes\nprint(ctypes.CDLL(None).leakscope_native_write(1))")
    result = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60, check=True,
                            env={**os.environ, "LD_PRELOAD": str(built / "libleakscope_native.so")})
    assert int(result.stdout) != 0
