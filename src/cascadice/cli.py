"""The command line.

    cascadice list | run | influence | detect | choose | reward | forget | validate
              check | report | view | reproduce | topology

Exit codes: 0 done; 1 the run failed; 2 a mistake in the request; 3 some figures lack their data; 130 stopped by Ctrl-C;
143 by SIGTERM; 129 by SIGHUP.
"""

import argparse
import errno
import os
import sys
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import NoReturn

import cascadice
from cascadice import interrupts
from cascadice.applications.choose import command as choose
from cascadice.applications.detect import command as detect
from cascadice.applications.forget import command as forget
from cascadice.applications.reward import command as reward
from cascadice.applications.validate import command as validate
from cascadice.commands import check, influence, listing, report, reproduce, run, topology, view
from cascadice.commands.stopping import Stop, stoppable
from cascadice.commands.streams import last_resort, out_of_memory, plain_warnings, standard_output
from cascadice.names import visible


class Parser(argparse.ArgumentParser):
    """An argparse parser that reports mistakes in one line, like all other errors."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message.rstrip('.')}. See {self.prog} --help.")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    stop = Stop()
    try:
        with stoppable(stop):
            return _main(arguments)
    except KeyboardInterrupt as interrupt:  # a signal may also come as the command ends
        return _fail(stop.code, str(interrupt) or "stopped.")


def _main(arguments: Sequence[str] | None) -> int:
    try:
        with standard_output(), plain_warnings(), interrupts.recognised():
            args, unknown = _parser().parse_known_args(arguments)
            if unknown:
                near = get_close_matches(unknown[0], args.parser._option_string_actions, n=1, cutoff=0.5)
                hint, prog = f" Did you mean {near[0]}?" if near else "", args.parser.prog
                raise ValueError(f"{prog} does not know {unknown[0]!r}.{hint} See {prog} --help.")
            return args.command(args) or 0
    except Exception as error:
        return _fail(*_explained(error))


def _explained(error: Exception) -> tuple[int, str]:
    """The exit code and the message for a command that failed with this error."""
    match error:
        case ArithmeticError():
            return 1, str(error)
        case MemoryError() | RuntimeError() if (words := out_of_memory(error)) is not None:
            return 1, words
        case ConnectionError() if not error.filename:
            return 1, str(error)
        case OSError():
            full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG)  # not a mistake in the request
            return 1 if full else 2, f"{error.filename}: {error.strerror}." if error.filename else str(error)
        case ValueError() | TypeError():
            return 2, str(error)
    return 1, last_resort(error)


def _fail(code: int, message: str) -> int:
    process = f"process {os.environ.get('RANK')}: " if os.environ.get("WORLD_SIZE", "1") != "1" else ""
    print(f"cascadice: {process}{visible(' '.join(message.split()))}", file=sys.stderr)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="cascadice", description="Whose data helped whom, in a network that trains without a server.")
    parser.add_argument("--version", action="version", version=f"cascadice {cascadice.__version__}")
    parser.set_defaults(parser=parser)
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for name, module, help in (
        ("list", listing, "list everything that has a name"),
        ("run", run, "train a network"),
        ("influence", influence, "compute whose data helped whom in a recorded run"),
        ("detect", detect, "flag participants that behave unlike the others"),
        ("choose", choose, "advise each participant whom to collaborate with"),
        ("reward", reward, "divide a budget by what each participant contributed"),
        ("forget", forget, "remove data or a participant from the trained models"),
        ("validate", validate, "check estimates of influence by training without some participants or samples"),
        ("check", check, "verify every file of a run, and every result computed from it"),
        ("report", report, "write a run, or reproduced figures, as one HTML page"),
        ("view", view, "serve the page of a run to this machine, and open the browser"),
        ("reproduce", reproduce, "reproduce the figures of the paper, and some more"),
        ("topology", topology, "describe or plot a communication graph"),
    ):
        command = commands.add_parser(name, help=help, description=help, allow_abbrev=False)
        module.add(command)
        command.set_defaults(parser=command, command=getattr(module, "run", None) or _application(name))
    return parser


def _application(name: str) -> Callable[[argparse.Namespace], None]:
    """The command of an application, imported when it is called: torch takes seconds to import."""

    def command(args: argparse.Namespace) -> None:
        from cascadice.runs.distributed.processes import started
        from cascadice.runs.folder import locked_for_writing

        if started() and "interface" in args:  # each process locks its own folder
            import_module(f"cascadice.applications.{name}.findings").run(args)
            return
        if started():
            raise ValueError(
                f"{name} trains many networks, each in one process, and cannot run under torchrun. Use run, influence, "
                "detect, choose, reward and forget there."
            )
        with locked_for_writing(*(Path(vars(args)[flag] or args.run) for flag in ("out", "ledger") if flag in args)):
            import_module(f"cascadice.applications.{name}.findings").run(args)

    return command
