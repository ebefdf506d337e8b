"""The templates of the reports, shipped as leakscope.templates."""
