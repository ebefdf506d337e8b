"""Faces of a report, one file each: SUFFIX and render(report, out)."""
