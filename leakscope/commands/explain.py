"""`leakscope explain RULE`: the manual of a rule, as its detector's file has it."""

from __future__ import annotations

import difflib
import inspect

import click

from leakscope import plugins
from leakscope.errors import UsageError


@click.command(name="explain")
@click.argument("rule", required=False)
def command(rule: str | None) -> None:
    """Explain RULE: what it looks for, how it is found, what to do about it.

    RULE is a code such as LS101 or a name such as unbounded-container; without it all rules are listed.
    """
    modules = plugins.load("leakscope.detectors", ("RULE", "detect"))
    if rule is None:
        for module in sorted(modules.values(), key=lambda each: each.RULE.code):
            click.echo(f"{module.RULE.code}  {module.RULE.name:<28}  {module.RULE.title}")
        return
    by_name = {name: module for file_name, module in modules.items()
               for name in (module.RULE.code.lower(), module.RULE.name.lower(), file_name.lower().replace("_", "-"))}
    wanted = rule.lower().replace("_", "-")
    if wanted not in by_name:
        close = difflib.get_close_matches(wanted, by_name, 3, 0.5)
        raise UsageError(f"There is no rule '{rule}'.",
                         f"leakscope explain {by_name[close[0]].RULE.name}" if close else "leakscope explain")
    module = by_name[wanted]
    click.echo(f"{module.RULE.code} {module.RULE.name}: {module.RULE.title}\n\n{inspect.cleandoc(module.__doc__ or '')}")
