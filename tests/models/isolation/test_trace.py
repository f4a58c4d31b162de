"""Tracing: the graph is PyTorch's own, whichever composite operations its exporter knows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch.export import ExportedProgram

from hush.models.isolation import trace
from tests.support.mixing_modules import ISOLATED, examples
from tests.support.random_modules import RANDOM, rows

MODULES = {
    **{name: (ISOLATED[name][0], examples(ISOLATED[name][1], 8)) for name in ("time before batch", "words", "one hot")},
    **{name: (RANDOM[name], rows(8)) for name in ("channels", "attention, masked")},
}


def exported(name: str) -> tuple[str, list[str]]:
    """The code of a module's graph, and what its operations return."""
    make, x = MODULES[name]
    torch.manual_seed(0)
    with trace.quiet():
        program = trace._exported(make().double(), x.double(), None)
    return program.graph_module.code, [str(node.meta.get("val")) for node in program.graph.nodes]


@pytest.mark.parametrize("name", MODULES)
def test_the_graph_is_that_of_all_composite_operations(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def all_of_them(program: ExportedProgram) -> Iterator[None]:
        yield

    few = exported(name)
    monkeypatch.setattr(trace, "_composites_of", all_of_them)
    assert exported(name) == few


def test_without_pytorchs_names_nothing_is_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    few = exported("one hot")
    monkeypatch.setattr(trace, "_COLLECT", "_named_differently")
    assert exported("one hot") == few
