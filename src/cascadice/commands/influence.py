"""`cascadice influence`: whose data helped whom in a recorded run."""

import argparse

from cascadice.runs import flags


def add(parser: argparse.ArgumentParser) -> None:
    flags.add_recording(parser, "influence")
    flags.add_question(parser, "question")


def run(args: argparse.Namespace) -> None:
    from cascadice.runs import ask

    question, settings = flags.question_from(args), flags.settings_from(args)
    try:
        ask.ask(args.run, question, args.out, settings=settings, overwrite=args.overwrite, quiet=args.quiet)
    except KeyboardInterrupt:
        raise KeyboardInterrupt("stopped. Repeat the command without --overwrite to continue.") from None
