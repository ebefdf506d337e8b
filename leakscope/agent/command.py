"""How a command may be written down: names of programs, modules, scripts and options are shown, whatever may be a value is not.

The host asks the same function (inject/environment.py), so that session.json and process.json never say different things.
"""

import os

MASK = "***"

_SERVERS = ("uvicorn", "gunicorn", "hypercorn")
_VALUELESS = ("--reload", "--preload", "--factory", "--daemon", "-D")  # of those servers: an application may follow them
_LETTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
_OPTION_LETTERS = _LETTERS | frozenset("0123456789_-")
_LONGEST_OPTION = 40  # ours: longer than the options of torchrun, shorter than a token
_FLAGS = frozenset("bBdEiIOPqsSuvxhV?")  # of the interpreter, without a value (Python/initconfig.c); c, m, W, X have one


def masked(argv):
    """Return a command with everything hidden that may be a value.

    `python -m app --token=abc -pabc --port 80` becomes `python -m app --token=*** -p*** --port ***`.
    """
    shown = [os.path.basename(argv[0])] if argv else []
    program = shown[0] if argv else ""
    place = "options" if is_python(program) else "program"  # then "module", "value", and "arguments" at the end
    for word, before in zip(argv[1:], argv):
        if place == "module":
            shown.append(word if _is_dotted(word) else MASK)
            program, place = word, "arguments"
        elif place == "value":
            shown.append(MASK)
            place = "arguments" if before[-1] == "c" else "options"
        elif place == "options" and word[:1] == "-":
            text, place = _interpreter_option(word)
            shown.append(text)
        elif word[:1] == "-":
            shown.append(_option(word))
        elif place == "program" and (is_python(word) or os.path.basename(word) in _SERVERS):  # env A=1 python x.py, ...
            program = os.path.basename(word)
            shown.append(program)
            place = "options" if is_python(program) else "program"
        elif program in _SERVERS and _is_app(word) and (before[:1] != "-" or before in _VALUELESS):
            shown.append(word)
            program = place = "arguments"
        elif place == "options" and os.path.exists(word) or place == "program" and os.path.isfile(word):
            shown.append(_relative(word))
            place = "arguments"
        else:
            shown.append(MASK)
            place = "arguments" if place == "options" else place
    return shown


def is_python(name):
    """True if a file of this name is a Python interpreter."""
    name = os.path.basename(name)
    for family in ("python", "pypy"):
        if name.startswith(family):
            return not name[len(family):].strip("0123456789.t")
    return False


def _interpreter_option(word):
    """Return an option of the interpreter as it may be shown, and what comes next."""
    if word[:2] in ("-", "--"):
        return (word, "arguments") if word == "-" else (_option(word), "value" if word.endswith("-pycs") else "options")
    for position, letter in enumerate(word[1:], 1):
        if letter in _FLAGS:
            continue
        if letter not in "cmWX":
            return word[:2] + MASK, "options"
        value = word[position + 1:]
        if not value:
            return word, "module" if letter == "m" else "value"
        is_shown = letter == "m" and _is_dotted(value)
        return word[:position + 1] + (value if is_shown else MASK), "arguments" if letter in "cm" else "options"
    return word, "options"


def _option(word):
    """Return an option without its value; -p8080 has it attached to its letter."""
    if word in ("-", "--"):
        return word
    if word[1] in _LETTERS:
        return word if len(word) == 2 else word[:2] + MASK
    name, equals, _ = word.partition("=")
    bare = name[2:]
    if word[1] != "-" or bare[:1] not in _LETTERS or len(bare) > _LONGEST_OPTION or not _OPTION_LETTERS.issuperset(bare):
        return MASK
    return name + (equals and equals + MASK)


def _is_dotted(word):
    return all(part.isidentifier() for part in word.split("."))


def _is_app(word):
    """True for what names an application in a module: shop.app:app, shop.app:make()."""
    module, _, attribute = word.partition(":")
    return _is_dotted(module) and (attribute[:-2] if attribute.endswith("()") else attribute).isidentifier()


def _relative(path):
    """Return a path below the working directory as it is seen from there, any other by its name alone."""
    try:
        relative = os.path.relpath(path)
    except OSError:  # the working directory is gone
        relative = ".."
    return os.path.basename(path) if relative.startswith("..") else relative
