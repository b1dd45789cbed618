"""`cascadice influence`: whose data helped whom in a recorded run, and who helped the final models."""

import argparse
from typing import Any

from cascadice.runs import flags


def add(parser: argparse.ArgumentParser) -> None:
    flags.add_recording(parser, "influence, or RUN/whole-run")
    flags.add_question(parser, "question")
    flags.add_whole_run(parser)
    flags.add_processes(parser)


def run(args: argparse.Namespace) -> None:
    from cascadice.runs import ask, together, whole_run
    from cascadice.runs.processes import joined

    with joined(args.interface, args.timeout, tell_samples=args.tell_samples) as world:
        question, settings = flags.question_from(args), flags.settings_from(args)
        more: dict[str, Any] = {"settings": settings, "overwrite": args.overwrite, "quiet": args.quiet, "world": world}
        try:
            if isinstance(question, whole_run.WholeRunQuestion):
                whole_run.ask_whole_run(args.run, question, args.out, **more)
            else:
                ask.ask(args.run, question, args.out, **more)
            together.point_to_all(world, args.run, args.out, args.quiet)
        except KeyboardInterrupt:
            raise KeyboardInterrupt("stopped. Repeat the command without --overwrite to continue.") from None
