"""Check that the models beside a record of forgetting are those that the record describes."""

from hashlib import file_digest
from pathlib import Path

from cascadice.applications.plain import Json


def models_digest(path: Path) -> str:
    """The SHA-256 of a file with models."""
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


def audit(results: Json, folder: Path) -> list[str]:
    """Compare the models with the digest in `forget.json`; return a sentence about what was checked.

    Raises:
        ValueError: If the models are missing or were changed.

    Example:
        >>> audit(read_json(folder / "forget.json"), folder)  # doctest: +SKIP
        ['Checked: models/checkpoint.safetensors holds the models that this record is about.']
    """
    name, expected = str(results.get("models")), results.get("models_digest")
    if expected is None:
        return ["Not checked: the record does not hold the digest of the models."]
    path = folder / name
    if not path.is_file() or not path.resolve().is_relative_to(folder.resolve()):  # resolving links in a circle fails
        raise ValueError(f"the models that it is about, {name}, are missing.")
    if (digest := models_digest(path)) != expected:
        raise ValueError(f"{name} holds other models: its digest is {digest[:12]}…, not {str(expected)[:12]}….")
    return [f"Checked: {name} holds the models that this record is about."]
