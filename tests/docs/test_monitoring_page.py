"""The page on monitoring: its tables list the metrics that there are, and its alert rules use them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("prometheus_client", reason="needs the ui extra")

import yaml  # type: ignore[import-untyped]
from prometheus_client.parser import text_string_to_metric_families as families

from hush.deploy.dashboard.federation_page import FederationPage
from hush.deploy.dashboard.member_page import MemberPage
from tests.support import federation_kit as kit
from tests.support.dashboards import Written
from tests.support.paths import ROOT

PAGE = (ROOT / "docs" / "monitoring.md").read_text(encoding="utf-8")


def exposed(page: FederationPage | MemberPage) -> set[str]:
    """The names of all metrics that a page exposes, with their labels."""
    page.refresh()
    found = set()
    for family in families(page.metrics("")[0].decode()):
        for sample in family.samples:
            labels = ",".join(
                label for label in ("run", "member", "metric", "code", "level", "certificate") if label in sample.labels
            )
            found.add(f"{sample.name}{{{labels}}}" if labels else sample.name)
    return found


def listed(heading: str) -> set[str]:
    table = PAGE.split(heading)[1].split("\n\n")[1]
    return {name for row in table.splitlines() for name in re.findall(r"`(hush_[^`]+)`", row.split("|")[1])}


def yaml_of(name: str) -> Any:
    found = re.search(rf"^```yaml\n# file: {re.escape(name)}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None
    return yaml.safe_load(found[1])


def of_coordinator(path: Path) -> set[str]:
    written = Written(path)
    page = FederationPage(path)
    with written.serving():
        written.begin()
        written.round(1)
        return exposed(page)


def of_member(path: Path) -> set[str]:
    asks = kit.Coordinator(kit.member(path))
    (path / "kit.toml").write_text('member = "a"\naddress = "nowhere:1"\n')
    (path / "presence.json").write_text('{"time": 1e12, "contact": 1.0}')
    asks.enrol(kit.config(recipe={"name": "dp-fedavg"}))
    asks.enrol(kit.config())
    asks.begin(kit.config())
    asks.task(1)
    return exposed(MemberPage(path))


def test_the_tables_list_the_metrics_that_there_are(tmp_path: Path) -> None:
    assert listed("OpenMetrics. At the coordinator:") == of_coordinator(tmp_path / "study")
    assert listed("\nAt a member:") == of_member(tmp_path / "a")


def test_the_rules_use_metrics_that_there_are(tmp_path: Path) -> None:
    known = {name.partition("{")[0] for name in of_coordinator(tmp_path / "study") | of_member(tmp_path / "a")}
    rules = [rule for group in yaml_of("hush-rules.yml")["groups"] for rule in group["rules"]]
    assert len(rules) == 6
    for rule in rules:
        used = set(re.findall(r"hush_\w+", rule["expr"]))
        assert used and used <= known, rule
    jobs = yaml_of("prometheus.yml")["scrape_configs"]
    assert all(job["authorization"]["credentials_file"].endswith("token") for job in jobs)
