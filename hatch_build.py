"""What the package's description says on an index: the README, with links that lead somewhere from there.

The repository has no fixed address: `make wheel ADDRESS=https://github.com/OWNER/cascadice` names the one to publish
from. It becomes the project's URLs, and the links in the README, which are relative for readers of a clone, become
absolute. Without an address (`pip wheel .`) links become their text, and pictures are left out,
so that no link of a description is broken. An address in pyproject.toml would be wrong in every fork and mirror.
"""

import os
import re
from typing import Any

PAGES = {"Homepage": "", "Documentation": "blob/main/docs/index.md", "Changelog": "blob/main/CHANGELOG.md"}
LINK = re.compile(r"(!?)(\[[^\]]*\]\()(?!https?://|#)([^)\s]+)\)")


def absolute(readme: str, address: str) -> str:
    """Relative links lead to `address`; pictures to their bytes there."""
    return LINK.sub(lambda link: f"{link[1]}{link[2]}{address}/{'raw' if link[1] else 'blob'}/main/{link[3]})", readme)


def unlinked(readme: str) -> str:
    """Relative links become their text, without pictures; there is no address for them to lead to."""
    return LINK.sub(lambda link: "" if link[1] else link[2][1:-2], readme)


def urls(address: str) -> dict[str, str]:
    """The project's pages under its address."""
    return {name: f"{address}/{page}".rstrip("/") for name, page in PAGES.items()} | {"Issues": f"{address}/issues"}


def get_metadata_hook() -> Any:
    """The hook that hatchling calls for the fields that pyproject.toml calls dynamic."""
    from pathlib import Path

    from hatchling.metadata.plugin.interface import MetadataHookInterface

    class Published(MetadataHookInterface):
        def update(self, metadata: dict[str, Any]) -> None:
            address = os.environ.get("CASCADICE_ADDRESS", "").rstrip("/")
            readme = (Path(self.root) / "README.md").read_text(encoding="utf-8")
            text = absolute(readme, address) if address else unlinked(readme)
            metadata["readme"] = {"content-type": "text/markdown", "text": text}
            metadata["urls"] = {"Paper": self.config["paper"]} | (urls(address) if address else {})

    return Published
