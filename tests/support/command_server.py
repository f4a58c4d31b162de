"""Runs commands of `hush` in children of a process that has imported everything, which saves each the time of imports.

It reads a line of JSON for each command, {"arguments", "cwd", "out", "err"}, and writes the exit status. It has one
thread, so that its children can be forked safely.
"""

from __future__ import annotations

import json
import os
import sys
import traceback

import hush.cli.main
import hush.engines.simulator
import hush.report


def run(arguments: list[str], cwd: str, out: str, err: str) -> int:
    """The exit status of one command, in a child."""
    for number, path in ((1, out), (2, err)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), number)
    os.chdir(cwd)
    sys.argv = ["hush", *arguments]
    try:
        hush.cli.main.main()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def main() -> None:
    """Serve until the input ends."""
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            os._exit(run(**json.loads(line)))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
