"""Seals with a secret key: without the key, nobody can change a ledger or forge another that passes for it."""

import hmac
import json
import os
from pathlib import Path

from cascadice.applications.plain import Json
from cascadice.applications.reward.ledger import Ledger
from cascadice.files.digests import check_ordinary
from cascadice.runs.folder import CHAIN

FEWEST_BYTES = 16
SEALED = ("run", "budget", "floor", "clawback", "payout", "seal", "others", "others_weight")
TERMS_SEAL = "terms_hmac"  # in reward.json
MAKE_ONE = "Make one with: openssl rand -hex 32 > FILE"


def read_key(path: str | None, *folders: Path) -> bytes | None:
    """Read a secret key from a file that must not lie in any of these folders; None without a path."""
    if path is None:
        return None
    file = Path(os.path.realpath(path))  # not Path.resolve, which fails on links in a circle
    if inside := next((folder for folder in folders if file.is_relative_to(os.path.realpath(folder))), None):
        raise ValueError(f"the key {path} lies in {inside}, the folder that it protects. Keep it elsewhere.")
    check_ordinary(file)
    key = file.read_bytes().strip()
    if len(key) < FEWEST_BYTES:
        raise ValueError(f"the key in {path} must have at least {FEWEST_BYTES} bytes; found {len(key)}. {MAKE_ONE}")
    return key


def signature(key: bytes, seal: str) -> str:
    """HMAC-SHA-256 of a line's seal, which is a digest of that line and all before it."""
    return hmac.new(key, f"cascadice ledger {seal}".encode(), "sha256").hexdigest()


def terms_signature(key: bytes, results: Json) -> str:
    """HMAC-SHA-256 of the terms of payments and the seal of their ledger, which together determine the payments."""
    terms = json.dumps({name: results.get(name) for name in SEALED}, sort_keys=True)
    return hmac.new(key, f"cascadice payments {terms}".encode(), "sha256").hexdigest()


def check_terms_sealed(results: Json, key: bytes) -> None:
    """Raise ValueError unless the terms of these payments were sealed with this key."""
    written = str(results.get(TERMS_SEAL, ""))
    if not hmac.compare_digest(written.encode(), terms_signature(key, results).encode()):
        how = "sealed with another key, or altered" if written else "not sealed"
        again = "Pay again with --overwrite and --seal."
        raise ValueError(f"the terms of the payments (budget, floor, clawback, payout) were {how}. {again}")


def check_sealed(ledger: Ledger, key: bytes | None) -> None:
    """Raise ValueError unless every line was sealed with this key; without a key, if a line was sealed with any."""
    chain = ledger.folder / CHAIN
    for number, line in enumerate(ledger.chain, start=2):
        if key is None:
            if line.hmac:
                raise ValueError(f"{chain} is sealed with a key. Name the file of the key with --seal.")
        elif not hmac.compare_digest(line.hmac, signature(key, line.seal)):
            how = "with another key, or altered" if line.hmac else "without a key"
            raise ValueError(f"line {number} of {chain} was entered {how}: it is not sealed with this one.")
