import argparse

import pytest
from stopwise.cli import convert, import_logs, inspect_logs
from stopwise.data.errors import StopwiseError


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
