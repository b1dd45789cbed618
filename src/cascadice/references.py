"""References `package.module:name` to the user's functions, so that any process can find them without pickling.

A reference may come from the settings of somebody else's run. So it can only name code that is installed here or is in
the current folder, not in Python itself or in a run's folder, and nothing from the settings is passed to it.
"""

import re
import sys
from collections.abc import Callable
from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

FORM = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


def is_reference(text: str) -> bool:
    """Whether a name is a reference, rather than an entry of a table."""
    return ":" in text


def resolve(reference: str, what: str) -> Callable[..., Any]:
    """Import the function that a reference names; installed modules come before those in the current folder.

    Example:
        >>> resolve("torch.nn.functional:cross_entropy", "loss").__name__
        'cross_entropy'
    """
    if not FORM.fullmatch(reference):
        raise ValueError(f"a {what} of your own must be written package.module:name; found {reference!r}.")
    module, _, name = reference.partition(":")
    target: Any = _imported(module, reference, what)
    for part in name.split("."):
        if not hasattr(target, part):
            near = get_close_matches(part, dir(target), n=1, cutoff=0.5)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            where = getattr(target, "__file__", None) or getattr(target, "__name__", target)
            raise ValueError(f"the {what} {reference} must exist; {where} has no {part!r}.{hint}")
        target = getattr(target, part)
    if not callable(target):
        raise ValueError(f"the {what} {reference} must be a function; found {type(target).__name__}.")
    return target  # type: ignore[no-any-return]


def reference_to(function: Any) -> str | None:
    """The reference to a function; None if no module has it, as for a lambda.

    Example:
        >>> reference_to(torch.nn.functional.cross_entropy)
        'torch.nn.functional:cross_entropy'
    """
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    if module == "__main__":  # of `python -m package.module`; a script may not be importable
        module = getattr(getattr(sys.modules["__main__"], "__spec__", None), "name", None)
    reference = f"{module}:{name}"
    if not module or not FORM.fullmatch(reference) or module.partition(".")[0] in sys.stdlib_module_names:
        return None
    target: Any = sys.modules.get(getattr(function, "__module__", ""))
    for part in name.split("."):
        target = getattr(target, part, None)
    return reference if target is function else None


def _imported(module: str, reference: str, what: str) -> ModuleType:
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names:
        raise ValueError(f"the {what} {reference} must be your own; {top} is part of Python. Name another.")
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)
    try:
        _check_outside_runs(top, reference, what)
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name and (module == error.name or module.startswith(f"{error.name}.")):
            remedy = "Install it, or work in the folder that holds it."
            raise ValueError(
                f"the {what} {reference} must exist; there is no module {error.name!r}. {remedy}"
            ) from None
        raise _failed(f"importing {module}", reference, what, error) from error
    except ValueError:
        raise
    except Exception as error:
        raise _failed(f"importing {module}", reference, what, error) from error


def _check_outside_runs(top: str, reference: str, what: str) -> None:
    """Raise ValueError if the module lies in a run's folder: writing there must not be enough to run code."""
    spec = sys.modules[top].__spec__ if top in sys.modules else find_spec(top)
    for folder in Path(spec.origin).resolve().parents if spec is not None and spec.origin else ():
        if (folder / "manifest.json").exists() and (folder / "config.json").exists():
            raise ValueError(f"the {what} {reference} must not lie in a run's folder; {folder} is one. Move it out.")


def call(reference: str, what: str, *arguments: Any) -> Any:
    """Call the function that a reference names; any error in it becomes a ValueError."""
    function = resolve(reference, what)
    try:
        return function(*arguments)
    except Exception as error:
        raise _failed(f"calling it with {len(arguments)} arguments", reference, what, error) from error


def _failed(doing: str, reference: str, what: str, error: Exception) -> ValueError:
    reason = " ".join(f"{type(error).__name__}: {error}".split()).rstrip(".: ")
    return ValueError(f"the {what} {reference} cannot be used: {doing} raised {reason}.")
