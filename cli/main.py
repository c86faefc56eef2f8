"""``stopwise``: the dispatcher. Only the module of the command that is asked for is imported."""

import argparse
import importlib
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from stopwise.data.errors import StopwiseError

# command: (module, what the overview says); the order is that of a user's work
COMMANDS = {
    "demo": ("stopwise.cli.demo", "run the whole chain on the shipped sample logs"),
    "import": ("stopwise.cli.import_logs", "read other tools' logs into one Parquet file of trajectories"),
    "inspect": ("stopwise.cli.inspect_logs", "show what a file of trajectories holds, or one trajectory"),
    "convert": ("stopwise.cli.convert", "write trajectories as JSON Lines, a Hugging Face dataset or a Minari dataset"),
    "world": ("stopwise.cli.world", "make a generated world, or compose deep questions of a corpus; check it"),
    "collect": ("stopwise.cli.collect", "run agents over questions in the arena, with or without a controller"),
    "probe": ("stopwise.cli.probe", "add answer probes to logs: what could be answered after each search"),
    "signals": ("stopwise.cli.signals", "compute the signals of every search step"),
    "analyze": ("stopwise.cli.analyze", "AUROC of every signal against new-item recall"),
    "train": ("stopwise.cli.train", "fit a controller on training questions, choose its threshold on validation"),
    "tune": ("stopwise.cli.tune", "choose a policy's thresholds in the arena, on validation questions"),
    "benchmark": ("stopwise.cli.benchmark", "compare controllers on held-out questions"),
    "export": ("stopwise.cli.export", "make a policy package of a trained controller"),
    "replay": ("stopwise.cli.replay", "run a policy package over logs"),
    "annotate": ("stopwise.cli.annotate", "let people judge what controllers suggest, blind to the method"),
    "cost": ("stopwise.cli.cost", "what the language models of runs cost, by purpose"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status: 0 done, 1 the data or the run failed, 2 wrong usage."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(
        prog="stopwise",
        description="Learned controllers that tell a deep-search agent to continue, change course, or stop.",
        epilog="`stopwise COMMAND --help` tells more. Start with `stopwise demo`, or with your own logs: "
        "import, signals, analyze, train, benchmark, export, replay.",
    )
    parser.add_argument("--version", action="store_true", help="print the version and leave")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND")
    asked = next((word for word in words if not word.startswith("-")), None)
    for name, (module, summary) in COMMANDS.items():
        if name == asked:
            importlib.import_module(module).add_parser(subparsers)
        else:
            subparsers.add_parser(name, help=summary, add_help=False)
    options, late = parser.parse_known_args(words)
    if late:
        # argparse takes no positional words after an option once it had some: `train CONFIG --out RUN key=value`
        if not hasattr(options, "overrides") or any(word.startswith("-") for word in late):
            parser.error(f"unrecognized arguments: {' '.join(late)}")
        options.overrides = [*options.overrides, *late]
    if options.version:
        from stopwise.controllers.package import stopwise_version

        print(stopwise_version())
        return 0
    if options.command is None:
        parser.print_help()
        return 2
    # our encoders are local folders or named by the user; a hub must not be asked behind their back
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    try:
        with _ending_signals():
            return options.run(options)
    except StopwiseError as error:
        message = str(error).removeprefix(f"{options.command}: ")
        print(f"stopwise {options.command}: {message}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:  # the reader of our output left, as `head` does
        sys.stderr.close()
        return 1
    except OSError as error:  # a full disk, a file that went away meanwhile
        if error.strerror is None:  # not from the operating system
            raise
        place = f"{error.filename}: " if error.filename else ""
        print(f"stopwise {options.command}: {place}{error.strerror}", file=sys.stderr)
        return 1
    except KeyboardInterrupt as interrupt:
        print(f"stopwise {options.command}: interrupted; nothing half-written is left", file=sys.stderr)
        for kept in _unfinished(options):
            print(f"finished parts are kept in {kept}: the same command goes on from there", file=sys.stderr)
        return 128 + (interrupt.args[0] if interrupt.args else signal.SIGINT)


def _unfinished(options: argparse.Namespace) -> list[Path]:
    """What long commands keep beside their result until it is whole."""
    from stopwise.data.files import arms_beside, stages_beside

    out = getattr(options, "out", None)
    return [] if out is None else [kept for kept in (arms_beside(Path(out)), stages_beside(Path(out))) if kept.exists()]


@contextmanager
def _ending_signals() -> Iterator[None]:
    """A command that is told to end, or whose terminal closes, tidies up as on Ctrl-C; what is ignored stays so."""
    if threading.current_thread() is not threading.main_thread():  # elsewhere Python sets no handler
        yield
        return
    owner = os.getpid()

    def end(number: int, frame: object) -> None:
        if os.getpid() == owner:
            raise KeyboardInterrupt(number)
        signal.signal(number, signal.SIG_DFL)  # a worker process that inherited the handler ends as it would
        os.kill(os.getpid(), number)

    names = [name for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]  # Windows lacks one
    ours = [number for name in names if signal.getsignal(number := getattr(signal, name)) is signal.SIG_DFL]
    for number in ours:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


if __name__ == "__main__":
    sys.exit(main())
