"""The HTML report of a run, of reproduced figures and of studies (`page`), also while a run trains (`live`).

`cascadice.report(network, rounds)` writes the page of a network that was built in Python: the package can be called.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return import_module("cascadice.report.from_python").report(*arguments, **options)


sys.modules[__name__].__class__ = _Callable
