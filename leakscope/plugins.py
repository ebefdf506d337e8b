"""Finding plug-ins: every module of a package that answers the names asked for. No list to edit, no silent skip."""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType


def load(package: str, names: tuple[str, ...]) -> dict[str, ModuleType]:
    """Return the public modules of `package` by their short name, in alphabetical order.

    A module whose name starts with an underscore is private to the package and left out.

    Raises:
        TypeError: a module lacks one of `names`.
    """
    parent = importlib.import_module(package)
    found = {}
    for module_info in sorted(pkgutil.iter_modules(parent.__path__), key=lambda each: each.name):
        if module_info.name.startswith("_"):
            continue
        module = importlib.import_module(f"{package}.{module_info.name}")
        missing = [name for name in names if not hasattr(module, name)]
        if missing:
            raise TypeError(f"the plug-in {module.__name__} lacks {', '.join(missing)}")
        found[module_info.name] = module
    return found
