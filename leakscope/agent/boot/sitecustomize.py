"""Brings the agent up in one Python process, hands on to the target's own sitecustomize, and steps aside.

Every Python started with our folder first on PYTHONPATH runs this file, so it has to be valid in all of them, old ones
too: there it does nothing but hand on.
"""
import os
import sys


def _bring_up(folder):
    if sys.version_info < (3, 9) or sys.implementation.name != "cpython":
        return
    wish = sys.dont_write_bytecode
    sys.dont_write_bytecode = False  # in this folder, which is ours: else each process compiles the agent, for 0.1 s
    try:
        import _leakscope_agent  # type: ignore[import-not-found]

        _leakscope_agent.start(folder)
    except Exception:
        # Nobody may be told: stderr is the target's, and there is no session to write to.
        pass
    sys.dont_write_bytecode = wish


def _step_aside(folder):
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != folder or entry == ""]
    for entry in [entry for entry in sys.path_importer_cache if entry.startswith(folder)]:
        del sys.path_importer_cache[entry]
    sys.modules.pop("sitecustomize", None)


_folder = os.path.dirname(os.path.abspath(__file__))
_bring_up(_folder)
_step_aside(_folder)

# Now we are out of the way, the same statement finds what Python would have found without us. When there is none, its
# ImportError leaves this file, and site ignores it as ever; an error of the target's own file is shown by site as
# ever.
import sitecustomize  # type: ignore[import-not-found]  # noqa: E402, F401
