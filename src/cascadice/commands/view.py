"""`cascadice view`: serve the page of a run to this machine, and open the browser."""

import argparse
import atexit
import os
import sys
import tempfile
from pathlib import Path


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="the folder that `cascadice run` or `cd.save` wrote")
    parser.add_argument("--port", type=int, default=0, metavar="PORT", help="port to serve on (any free port)")
    parser.add_argument("--no-browser", action="store_true", help="only print the address")


def run(args: argparse.Namespace) -> None:
    from cascadice.report.live import view

    def opened(address: str) -> None:
        print(f"page of {args.run}: {address} (Ctrl-C to stop)", flush=True)
        if not args.no_browser:
            browse(address)

    view(args.run, opened, args.port)


def browse(address: str) -> bool:
    """Open the address in the user's browser; False where there is no screen, or no browser.

    The browser is given a file that leads there and that only its owner can read: others can read its arguments.
    """
    import webbrowser

    if not (sys.platform in ("darwin", "win32") or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        return False  # it might start a browser in this terminal
    with tempfile.NamedTemporaryFile("w", prefix="cascadice-", suffix=".html", delete=False) as file:
        file.write(f'<!doctype html><meta http-equiv="refresh" content="0; url={address}">')
    atexit.register(Path(file.name).unlink, missing_ok=True)
    return webbrowser.open(Path(file.name).as_uri())
