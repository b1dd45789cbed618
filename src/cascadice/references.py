"""Functions of your own, named `package.module:name`: found again in any process, and never pickled.

A reference may stand in the settings of a run that somebody else wrote, so it can only name code that is installed here
or in the current folder, outside Python itself and outside any run's folder, and nothing from the settings is passed to
what it names.
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
    """Whether a name is a reference, not an entry of a table."""
    return ":" in text


def resolve(reference: str, what: str) -> Callable[..., Any]:
    """The function that a reference names; `what` it is for, e.g. "model", is said in errors.

    Modules in the current folder are found after those that are installed.

    Raises:
        ValueError: If there is no such module or name, the module cannot be imported, or the name is no function.

    Example:
        >>> resolve("torch.nn.functional:cross_entropy", "loss").__name__
        'cross_entropy'
    """
    if not FORM.fullmatch(reference):
        raise ValueError(f"a {what} of your own must be written package.module:name; found {reference!r}.")
    module, _, name = reference.partition(":")
    found: Any = _imported(module, reference, what)
    for part in name.split("."):
        if not hasattr(found, part):
            near = get_close_matches(part, dir(found), n=1, cutoff=0.5)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            place = getattr(found, "__file__", None) or getattr(found, "__name__", found)
            raise ValueError(f"the {what} {reference} must exist; {place} has no {part!r}.{hint}")
        found = getattr(found, part)
    if not callable(found):
        raise ValueError(f"the {what} {reference} must be a function; found {type(found).__name__}.")
    return found  # type: ignore[no-any-return]


def reference_to(function: Any) -> str | None:
    """The reference by which a function is found again; None for one that is in no module, such as a lambda.

    Example:
        >>> reference_to(torch.nn.functional.cross_entropy)
        'torch.nn.functional:cross_entropy'
    """
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    if module == "__main__":  # run as `python -m package.module`; a script may not be made to be imported
        module = getattr(getattr(sys.modules["__main__"], "__spec__", None), "name", None)
    reference = f"{module}:{name}"
    if not module or not FORM.fullmatch(reference) or module.partition(".")[0] in sys.stdlib_module_names:
        return None
    found: Any = sys.modules.get(getattr(function, "__module__", ""))
    for part in name.split("."):
        found = getattr(found, part, None)
    return reference if found is function else None


def _imported(module: str, reference: str, what: str) -> ModuleType:
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names:
        raise ValueError(f"the {what} {reference} must be of your own; {top} is part of Python. Name another.")
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
    """Whoever writes into a run's folder must not have code run."""
    spec = sys.modules[top].__spec__ if top in sys.modules else find_spec(top)
    for place in Path(spec.origin).resolve().parents if spec is not None and spec.origin else ():
        if (place / "manifest.json").exists() and (place / "config.json").exists():
            raise ValueError(f"the {what} {reference} must not lie in a run's folder; {place} is one. Move it out.")


def call(reference: str, what: str, *arguments: Any) -> Any:
    """What the function that a reference names returns; an error in it is a mistake in the request."""
    function = resolve(reference, what)
    try:
        return function(*arguments)
    except Exception as error:
        raise _failed(f"calling it with {len(arguments)} arguments", reference, what, error) from error


def _failed(doing: str, reference: str, what: str, error: Exception) -> ValueError:
    reason = " ".join(f"{type(error).__name__}: {error}".split()).rstrip(".: ")
    return ValueError(f"the {what} {reference} cannot be used: {doing} raised {reason}.")
