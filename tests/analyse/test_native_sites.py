"""Native growth is put down to the function that asked for the memory, with its Python caller."""

from leakscope.analyse import native_sites


def site(native, python=(), size=0, count=1):
    frames = [[*frame.split(":"), 0] for frame in native]
    return {"native": frames, "python": [list(frame) for frame in python], "bytes": size, "count": count}


CLEAN = ("app.py", 13, "clean")


def test_the_function_that_keeps_more_than_before_is_named_with_its_caller():
    first = [site(["libc.so.6:strdup", "libffi.so.8:"], [CLEAN], 1000, 10)]
    last = [site(["libc.so.6:strdup", "libffi.so.8:"], [CLEAN], 9000, 90)]
    (found,) = native_sites.grown(first, last)
    assert (found.name, found.growth_bytes, found.growth_count) == ("strdup (libc.so.6)", 8000, 80)
    assert [(each.function, each.line, each.share_ratio) for each in found.callers] == [("clean", 13, 1.0)]


def test_what_stays_or_shrinks_is_not_named():
    sites = [site(["liba.so:keep"], size=500)]
    assert native_sites.grown(sites, sites) == []
    assert native_sites.grown(sites, []) == []


def test_objects_of_the_interpreter_are_left_to_the_heap_walk():
    eval_loop = ["python3.11:PyObject_Malloc", "python3.11:", "python3.11:PyList_Append", "python3.11:",
                 "python3.11:_PyEval_EvalFrameDefault"]
    assert native_sites.grown([], [site(eval_loop, [CLEAN], 5000)]) == []


def test_an_extension_that_asks_the_interpreter_for_memory_is_named():
    frames = ["libpython3.12.so.1.0:PyMem_Malloc", "parser.cpython-312-x86_64-linux-gnu.so:make_node"]
    (found,) = native_sites.grown([], [site(frames, [CLEAN], 5000)])
    assert found.name == "make_node (parser.cpython-312-x86_64-linux-gnu.so)"


def test_functions_that_hand_memory_on_are_passed_over_within_their_library():
    sqlite = [("libsqlite3.so.0", "", 0), ("libsqlite3.so.0", "sqlite3Malloc", 0), ("libsqlite3.so.0", "sqlite3BtreeOpen", 0)]
    assert native_sites.responsible(tuple(sqlite)) == ("libsqlite3.so.0", "sqlite3BtreeOpen")
    last_of_its_library = "c10::alloc_cpu(unsigned long)"
    torch = (("libc10.so", last_of_its_library, 0), ("libtorch_cpu.so", "at::empty", 0))
    assert native_sites.responsible(torch) == ("libc10.so", last_of_its_library)


def test_a_library_without_symbols_is_named_by_itself():
    (found,) = native_sites.grown([], [site(["libblob.so:", "python3.11:main"], [], 5000)])
    assert found.name == "libblob.so" and found.callers == ()


def test_callers_are_ranked_by_their_share():
    last = [site(["liba.so:keep"], [CLEAN], 3000), site(["liba.so:keep"], [("b.py", 2, "other")], 1000)]
    (found,) = native_sites.grown([], last)
    assert [(each.function, each.share_ratio) for each in found.callers] == [("clean", 0.75), ("other", 0.25)]
