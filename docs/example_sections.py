"""Docstrings here have an `Example:` section; Griffe knows it as `Examples:`, and shows that as code."""

import re
from typing import Any

import griffe


class ExampleSections(griffe.Extension):
    """Rename the section before docstrings are parsed."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Called for everything that has a docstring."""
        if obj.docstring:
            obj.docstring.value = re.sub(r"^( *)Example:$", r"\1Examples:", obj.docstring.value, flags=re.MULTILINE)
