"""The C parts; all the rest of the packaging is in setup.cfg.

All of them are optional. Without a compiler the analyses and the heap walk run on their Python twins, with the same results,
and there is no sampling of allocations; `leakscope doctor` says so.
"""

import os
import sys
import sysconfig
from glob import glob

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

WARNINGS = ["-Wall", "-Wextra"]
PROBE = "leakscope/agent/_probe"
PRELOADED = sorted(glob(f"{PROBE}/preload*.c"))
NATIVE = "libleakscope_native"
INCLUDE = sysconfig.get_paths()["include"]


class Build(build_ext):
    """Names the preloaded object as the dynamic linker wants it: it is no module, and the same for every interpreter."""

    def get_ext_filename(self, fullname):
        if fullname.endswith(NATIVE):
            return os.path.join(*fullname.split(".")) + ".so"
        return super().get_ext_filename(fullname)


def probe(name, sources, *flags, **more):
    """A part of the agent in C, with the flags of leakscope/inject/_probes.py, which builds it for other interpreters."""
    return Extension(f"leakscope.agent.{name}", sources, depends=glob(f"{PROBE}/*.h"), optional=True,
                     extra_compile_args=["-O2", "-g0", "-std=gnu11", "-fvisibility=hidden", *WARNINGS, *flags], **more)


extensions = [Extension("leakscope.analyse._graph", ["leakscope/analyse/_columns.c", "leakscope/analyse/_graph.c"],
                        depends=["leakscope/analyse/_graph.h"], optional=True,
                        extra_compile_args=["-O2", "-std=c11", "-fvisibility=hidden", *WARNINGS])]  # fmt: skip
if sys.platform == "linux":
    extensions += [
        probe("_probe", sorted(set(glob(f"{PROBE}/*.c")) - set(PRELOADED)), "-Wno-unused-parameter",
              include_dirs=[PROBE, f"{INCLUDE}/internal"], libraries=["m"]),
        probe(f"_probe.{NATIVE}", PRELOADED, libraries=["m", "dl", "pthread"]),
    ]  # fmt: skip

setup(ext_modules=extensions, cmdclass={"build_ext": Build})
