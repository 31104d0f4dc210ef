"""Commands of `unilect`, run in the process of the tests: a process of its own takes a third of a second more."""

import os

from click.testing import CliRunner, Result

from unilect.cli.main import app

#: None of the variables that a command would read.
_ENVIRONMENT = dict.fromkeys(name for name in os.environ if name.startswith("UNILECT_"))


def run(*args: object, code: int = 0) -> Result:
    """Run a command, which ends with a code; one that fails writes nothing to stdout."""
    done = CliRunner().invoke(app, [str(arg) for arg in args], env=_ENVIRONMENT)
    assert code == done.exit_code, done.output
    assert not (code and done.stdout), done.output
    return done
