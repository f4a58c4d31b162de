"""How many files and packages one round takes: it must stay readable from top to bottom."""

from __future__ import annotations

from scripts import trace_round

FILES = 25
SWITCHES = 15


def test_a_round_takes_few_files_and_package_switches() -> None:
    traced = trace_round.trace()
    found = "\n".join(trace_round.listing(traced))
    assert len(traced.files) <= FILES, found
    assert traced.switches <= SWITCHES, found
    # Of a round, from the tasks of the server to the new model.
    assert {"server/loop.py", "engines/simulator.py", "privacy/noise.py"} <= set(traced.files), found


def test_switches_are_counted_by_package() -> None:
    functions = (("a/x.py", "f"), ("a/sub/y.py", "g"), ("types.py", "k"), ("b/z.py", "h"), ("a/x.py", "i"))
    traced = trace_round.Trace(functions)
    assert traced.files == ("a/x.py", "a/sub/y.py", "types.py", "b/z.py")
    assert traced.switches == 2
