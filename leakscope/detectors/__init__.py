"""One leak pattern a file: RULE and detect(case) -> iterator of Finding; the module docstring is the manual of the rule."""
