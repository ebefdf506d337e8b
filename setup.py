"""The C extensions; all the rest of the packaging is in setup.cfg."""

from setuptools import Extension, setup

# Optional: without a compiler the analyses run on their Python twin, with the same results.
setup(ext_modules=[Extension("leakscope.analyse._graph", ["leakscope/analyse/_graph.c"], optional=True,
                             extra_compile_args=["-O2", "-std=c11", "-Wall", "-Wextra"])])
