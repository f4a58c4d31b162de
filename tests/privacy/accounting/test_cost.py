from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hush.privacy.accounting.cost import Cost, from_json, to_json
from hush.types import HushError
from tests.support.reference_accountant import composed

COSTS = st.builds(
    Cost,
    what=st.sampled_from(["model update", "cluster choice"]),
    kind=st.sampled_from(["poisson-gaussian", "gaussian", "fixed-gaussian"]),
    noise=st.floats(0, 1e6),
    steps=st.integers(0, 10**6),
    rate=st.floats(1e-9, 1),
    samples=st.just(100),
    batch=st.integers(1, 100),
)


@given(st.lists(COSTS, max_size=4))
def test_round_trip(costs: list[Cost]) -> None:
    assert from_json(to_json(costs)) == tuple(costs)


def test_events() -> None:
    import dp_accounting as dp

    poisson = Cost(what="model update", kind="poisson-gaussian", noise=1.5, steps=3, rate=0.1).event()
    assert poisson == dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(0.1, dp.GaussianDpEvent(1.5)), 3)
    fixed = Cost(what="model update", kind="fixed-gaussian", noise=1.5, steps=3, samples=50, batch=5).event()
    assert fixed.event == dp.SampledWithoutReplacementDpEvent(50, 5, dp.GaussianDpEvent(1.5))
    assert Cost(what="x", kind="gaussian", noise=0.0, steps=1).event() == dp.NonPrivateDpEvent()
    assert Cost(what="x", kind="gaussian", noise=0.0, steps=0).event() == dp.NoOpDpEvent()
    assert composed([]) == dp.ComposedDpEvent([])


GOOD = json.loads(to_json([Cost(what="model update", kind="gaussian", noise=1.0, steps=1)]))[0]


@pytest.mark.parametrize(
    "entry",
    [
        {**GOOD, "kind": "os.system"},
        {**GOOD, "extra": 1},
        {key: value for key, value in GOOD.items() if key != "steps"},
        {**GOOD, "steps": 1.5},
        {**GOOD, "steps": True},
        {**GOOD, "steps": -1},
        {**GOOD, "noise": -1.0},
        {**GOOD, "noise": "1"},
        {**GOOD, "rate": 0.0},
        {**GOOD, "rate": 1.5},
        {**GOOD, "kind": "fixed-gaussian"},
        "text",
    ],
)
def test_only_our_own_words_are_read(entry: object) -> None:
    with pytest.raises(HushError, match="cost"):
        from_json(json.dumps([entry]))
    with pytest.raises(HushError, match="cost"):
        from_json(json.dumps(entry))


def test_not_json() -> None:
    with pytest.raises(HushError, match="not JSON"):
        from_json("{")
    with pytest.raises(HushError, match="cost"):
        from_json('[{"noise": NaN}]')
