"""`import hush` stays quick: it imports nothing but the standard library and a few modules of its own."""

from __future__ import annotations

import json
import subprocess
import sys

IMPORTED = """
import json, sys
before = set(sys.modules)
import hush
print(json.dumps(sorted(set(sys.modules) - before)))
"""
# Time differs from machine to machine, the number of modules does not: 57 with Python 3.12, which take 0.04 s.
MODULES = 90


def test_importing_hush_imports_few_modules_and_no_packages() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTED], capture_output=True, text=True, check=True)
    modules = json.loads(done.stdout)
    assert {name.partition(".")[0] for name in modules} - sys.stdlib_module_names == {"hush"}
    assert len(modules) <= MODULES
    assert [name for name in modules if name.startswith("hush.")] == ["hush.api", "hush.types"]
