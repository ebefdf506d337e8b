"""Which packages the program has loaded, in which versions: a known leak is known of some versions only.

Two sources, and no code of the target: a plain `__version__` in the dict of a loaded module, and the names of the folders
`NAME-VERSION.dist-info` beside it.
"""

import os
import sys

from . import classes

MOST = 300  # packages written down; ours, several times a large service
_MOST_FOLDERS, _MOST_ENTRIES = 8, 20_000  # folders with packages, and what is in them
_LONGEST = 40
_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
_OF_VERSIONS = _LETTERS | frozenset("0123456789.+-_!")
_INFO = ".dist-info"


def versions():
    """Return {name: version}: of top-level modules by their own word, else of distributions by their folder.

    A distribution counts where its name begins with the first word of a loaded module: `opentelemetry_sdk` is a part of the
    namespace `opentelemetry`, which has no version of its own.
    """
    spaces = {name: space for name in _top_level() if (space := classes.space_named(name))}
    found = {}
    for folder in _folders(spaces):
        found.update(_distributions(folder, {name.lower().split("_")[0] for name in spaces}))
    for name, space in spaces.items():
        version = dict.get(space, "__version__")
        if is_version(version):
            found[name] = version
        elif name not in found:  # python_engineio is engineio, PyYAML is not yaml: that is not guessed
            version = found.get(name.lower(), found.get("python_" + name.lower()))
            if version:
                found[name] = version
    return dict(sorted(found.items())[:MOST])


def is_version(text):
    """True for an exact str that reads like a version: it begins with a number, maybe after a v."""
    return (type(text) is str and 0 < len(text) <= _LONGEST and text.lstrip("v")[:1].isdigit() and text.isascii()
            and _OF_VERSIONS.issuperset(text))


def _top_level():
    known = getattr(sys, "stdlib_module_names", ())  # from 3.10 on; before, the library has few versions of its own
    return [name for name in list(dict.keys(sys.modules))
            if type(name) is str and name.isidentifier() and name[:1] != "_" and name not in known]


def _folders(spaces):
    """Return the folders that hold the packages: `site-packages` of `site-packages/aiohttp/__init__.py`."""
    folders = {}
    for space in spaces.values():
        path = dict.get(space, "__file__")
        if type(path) is str:
            folder = os.path.dirname(path)
            folders[os.path.dirname(folder) if os.path.basename(path).startswith("__init__.") else folder] = None
    for path in list(sys.path):  # a namespace has no file
        if type(path) is str and os.path.basename(path) in ("site-packages", "dist-packages"):
            folders[path] = None
    return list(folders)[:_MOST_FOLDERS]


def _distributions(folder, words):
    found = {}
    try:
        with os.scandir(folder) as entries:
            for _, entry in zip(range(_MOST_ENTRIES), entries):
                name, _, version = entry.name[:-len(_INFO)].rpartition("-")
                name = name.replace("-", "_").replace(".", "_").lower()
                if entry.name.endswith(_INFO) and name.isidentifier() and is_version(version) and _is_wanted(name, words):
                    found[name] = version
    except OSError:
        pass
    return found


def _is_wanted(name, words):
    first, _, rest = name.partition("_")
    return first in words or first == "python" and rest.split("_")[0] in words
