"""Command lines that make no sense: every flag of every command with values by chance."""

import argparse
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

from torture.children import call
from torture.mutations import drawn
from torture.outcomes import Attempt, Outcome
from torture.stage import Stage

LONG = ("reproduce",)  # takes minutes
TEXTS = [
    "", "0", "1", "-1", "2", "3", "-0", "1e9", "1e400", "-1e400", "nan", "inf", "0.5", "1/2", "0x10", "\u0967",
    "10" * 30, "none", "all", "last:0", "last:99999999999", "5-2", "0-1", "true", "[]", "[4]", "hidden=[4]",
    "hidden=[-1]", "=", "==", "a=b", "ring", "mlp", "sgd", "adam", "digits", "nosuch", "truth", "shares,", ",",
    "0,0", "0,1", "0-99", "../..", "/dev/null", "/dev/full", "/nonexistent/x", "\x1b[31m", "[/b]", "[bold]", "'\"",
    "e\u202e", "%s%n", "{}", "*", "$(x)", "flip-labels:0:0.5@1-2", "noise:0:1e308", "noise-sender:0:1e300",
    "free-rider:0,1,2,3", "absent:0-3@0-9", "step:0:1", "step:1:0", "warmup:3+cosine", "cosine", "0:lr=nan",
    "0:batch_size=0", "1:optimizer=adam,lr=0.1", "x" * 300,
]  # fmt: skip
SMALL = "demo --nodes 3 --rounds 2 --per-node 8 --batch-size 4 --model-options hidden=[3] --eval-every 1"
CODES = (0, 1, 2, 3)


def attacks(stage: Stage, seed: int) -> Iterator[Attempt]:
    """Random command lines against a copy of the run."""
    return (_attack(stage, *chosen) for chosen in drawn(_lines(), seed))


def _lines() -> st.SearchStrategy[Any]:
    """A command, some of its flags, and for each as many values as it takes, more or less."""
    from cascadice.cli import _parser

    (commands,) = (action for action in _parser()._actions if isinstance(action, argparse._SubParsersAction))
    each = []
    for name, parser in commands.choices.items():
        flags = sorted(flag for flag in parser._option_string_actions if flag not in ("-h", "--live", "--port"))
        words = st.one_of(
            st.tuples(st.sampled_from(flags)),
            st.tuples(st.sampled_from(flags), st.sampled_from(TEXTS)),
            st.tuples(st.sampled_from(flags), st.sampled_from(TEXTS), st.sampled_from(TEXTS)),
            st.tuples(st.sampled_from(TEXTS)),
        )
        if name not in LONG:
            each.append(st.tuples(st.just(name), st.lists(words, min_size=1, max_size=4)))
    return st.one_of(*each)


def _attack(stage: Stage, name: str, words: list[tuple[str, ...]]) -> Attempt:
    given = [word for group in words for word in group]
    with stage.copy() as place:
        subject = {"run": [*SMALL.split(), "--out", str(place / "new")], "list": [], "topology": ["ring"]}.get(
            name, [str(place / "run")]
        )
        quiet = ["--quiet"] if name not in ("list", "topology") else []
        # flags given later win: nothing is written elsewhere, and nothing takes long
        limits = ["--out", str(place / "out")] if name not in ("list", "run", "topology", "report") else []
        ended = call(name, *subject, *given, *limits, *quiet)
    what = f"cascadice {name} {given!r}"
    if ended.crashed or ended.code not in CODES:
        return Attempt(what, Outcome.TRACEBACK, f"{'hung ' * ended.hung}exit {ended.code}: {ended.said[-1500:]}")
    if ended.code != 0 and not ended.last_line:
        return Attempt(what, Outcome.SILENT, f"exit {ended.code} without a word")
    return Attempt(what, Outcome.HELD, ended.last_line)
