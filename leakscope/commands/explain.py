"""`leakscope explain RULE`: the manual of a rule, as its detector's file has it, and the catalogue of known leaks."""

from __future__ import annotations

import difflib
import inspect
from types import ModuleType

import click

from leakscope import baseline, plugins
from leakscope.errors import UsageError

OWN_LIST = """\
Your own list. `leakscope run --known FILE.toml` (and `leakscope report`) marks what your team knows already; nothing is hidden.

    [[leak]]
    id = "orders-until-restart"
    fingerprint = "LS1-..."                         # of a report; or, for every place that looks so:
    # path = ["shop.Store._orders", "dict[*]"]      # words of the path: % is anything, | or, "..." any number of words
    explanation = "Orders stay until the nightly restart."
    reference = "SHOP-12"

Optional: fix; package and versions (">=2.0,<2.6.1": only where that is loaded); root (its kind), type (of what piles up)."""


@click.command(name="explain")
@click.argument("rule", required=False)
def command(rule: str | None) -> None:
    """Explain RULE: what it looks for, how it is found, what to do about it.

    RULE is a code such as LS101 or a name such as unbounded-container; without it all rules are listed. `known` lists the
    catalogue of known leaks of libraries and the form of a list of your own, and the name of one of them explains it.
    """
    modules = plugins.load("leakscope.detectors", ("RULE", "detect"))
    if rule is None:
        for module in sorted(modules.values(), key=lambda each: each.RULE.code):
            click.echo(f"{module.RULE.code}  {module.RULE.name:<28}  {module.RULE.title}")
        return
    by_name = {name: module for file_name, module in modules.items()
               for name in (module.RULE.code.lower(), module.RULE.name.lower(), file_name.lower().replace("_", "-"))}
    wanted = rule.lower().replace("_", "-")
    leaks = {leak.id: leak for leak in baseline.catalogue()}
    if wanted == "known":
        for leak in leaks.values():
            click.echo(f"{leak.id:<34}  {leak.package} {leak.versions or '(every version)'}")
        click.echo(f"\n{OWN_LIST}")
    elif wanted in leaks:
        click.echo(_known(leaks[wanted]))
    elif wanted in by_name:
        click.echo(_manual(by_name[wanted]))
    else:
        names = {name: module.RULE.name for name, module in by_name.items()} | {name: name for name in leaks}
        close = difflib.get_close_matches(wanted, names, 3, 0.5)
        raise UsageError(f"There is no rule '{rule}'.", "leakscope explain" + (f" {names[close[0]]}" if close else ""))


def _manual(module: ModuleType) -> str:
    return f"{module.RULE.code} {module.RULE.name}: {module.RULE.title}\n\n{inspect.cleandoc(module.__doc__ or '')}"


def _known(leak: baseline.KnownLeak) -> str:
    path = "Found by the path (% is anything):\n" + "\n".join(f"    {word}" for word in leak.path)
    found = path if leak.path else f"Found by the rule {leak.rule}: leakscope explain {leak.rule}"
    return (f"{leak.id}: {leak.package} {leak.versions or '(every version)'}\n\n{leak.explanation}\n\nRemedy. {leak.fix}\n\n"
            f"{found}\n\nDiscussed at {leak.reference}\nChecked: {leak.checked}")
