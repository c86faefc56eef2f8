import argparse
import contextlib
import io
import json

import numpy as np
import pytest

from stopwise.cli import convert, import_logs, inspect_logs
from stopwise.cli.main import main
from stopwise.data.errors import StopwiseError
from stopwise.data.records import AnswerProbe, Criterion, Document, Logprobs, Step, Trajectory


@pytest.fixture
def stopwise(capsys):
    """Run a command as the dispatcher does; gives exit status, stdout, stderr."""

    def run(*argv: object) -> tuple[int, str, str]:
        parser = argparse.ArgumentParser(prog="stopwise")
        commands = parser.add_subparsers(required=True)
        import_logs.add_parser(commands)
        inspect_logs.add_parser(commands)
        convert.add_parser(commands)
        args = parser.parse_args([str(arg) for arg in argv])
        capsys.readouterr()
        try:
            status, failure = args.run(args), ""
        except StopwiseError as error:
            status, failure = error.exit_code, str(error)
        out, err = capsys.readouterr()
        return status, out, err + failure

    return run


@pytest.fixture(scope="session")
def command():
    """``command("signals", ...)``: exit status, stdout and stderr of the command line, in this process.

    An exception that the command line would show as a traceback fails the test.
    """

    def run(*argv: object) -> tuple[int, str, str]:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                status = main([str(word) for word in argv])
            except SystemExit as leaving:  # argparse leaves on wrong usage, and after --help
                status = int(leaving.code or 0)
        return status, out.getvalue(), err.getvalue()

    return run


@pytest.fixture(scope="session")
def answer(command):
    """The JSON object that a command with ``--json`` prints, checked to be the only thing on stdout."""

    def run(*argv: object):
        status, out, err = command(*argv, "--json")
        assert status == 0, err
        assert out.endswith("\n")
        assert out.count("\n") == 1
        value = json.loads(out, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
        assert isinstance(value, dict)
        return value

    return run


@pytest.fixture(scope="session")
def make_logs():
    """Runs that find their gold early and then see old documents again: novelty tells when to stop."""

    def make(questions: int = 48, *, gold: bool = True, logprobs: bool = True):
        rng = np.random.default_rng(5)
        runs = []
        for number in range(questions * 2):
            name = f"q{number // 2}"
            found = [f"{name}-gold{index}" for index in range(3)]
            idle = int(rng.integers(2, 6))
            plan = [[found[0]], [found[1]], [], [found[2]]][: 3 if rng.random() < 0.2 else 4]
            seen: list[str] = []
            steps = []
            for t, gold_here in enumerate([*plan, *[None] * idle]):
                if gold_here is None:
                    ids = list(rng.choice(seen, 4, replace=False))
                else:
                    ids = [*gold_here, *(f"{name}-{number}-{t}-{index}" for index in range(4 - len(gold_here)))]
                seen += ids
                documents = tuple(
                    Document(one, f"{one} tells of {name}", f"Page {one}", score=float(rng.random())) for one in ids
                )
                top = tuple(tuple(np.log(rng.dirichlet(np.ones(3))).tolist()) for _ in range(4))
                steps.append(
                    Step(
                        "search",
                        f"I look for part {t} of {name}",
                        (f"part {t} of {name}",),
                        documents,
                        logprobs=Logprobs(top=top) if logprobs else None,
                        answer_probe=AnswerProbe("Lenn", gold_here is None),
                    )
                )
            steps.append(Step("answer", queries=("Lenn",)))
            runs.append(
                Trajectory(
                    id=f"run{number}",
                    question_id=name,
                    question=f"where is {name}?",
                    steps=tuple(steps),
                    criteria=(Criterion(f"place of {name}"),),
                    answer="Lenn",
                    correct=bool(number % 3),
                    gold_ids=tuple(found) if gold else None,
                    agent="ann" if number % 2 else "bob",
                    dataset="made",
                    ended_by="answer" if number % 5 else "budget",
                )
            )
        return runs

    return make
