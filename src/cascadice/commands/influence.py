"""`cascadice influence`: whose data helped whom in a run, who helped the final models, and who substitutes for whom."""

import argparse
from typing import Any

from cascadice.runs import flags


def add(parser: argparse.ArgumentParser) -> None:
    flags.add_recording(parser, "influence, RUN/whole-run or RUN/pairs")
    flags.add_question(parser, "question")
    flags.add_whole_run(parser)
    flags.add_processes(parser)


def run(args: argparse.Namespace) -> None:
    from cascadice.runs import ask, pairs
    from cascadice.runs.distributed import together
    from cascadice.runs.distributed.processes import joined

    with joined(args.interface, args.timeout, tell_samples=args.tell_samples) as world:
        question, settings = flags.question_from(args), flags.settings_from(args)
        more: dict[str, Any] = {"settings": settings, "overwrite": args.overwrite, "quiet": args.quiet, "world": world}
        try:
            answer = pairs.ask_pairs if "pairs" in question.kinds else ask.ask
            answer(args.run, question, args.out, **more)
            together.point_to_all(world, args.run, args.out, args.quiet)
        except KeyboardInterrupt:
            raise KeyboardInterrupt("stopped. Repeat the command without --overwrite to continue.") from None
