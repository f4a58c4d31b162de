"""The client as the unit of privacy: which recipes it can be used with, and what it does not cover.

The update of a round is clipped as a whole and noised by the client itself, before anyone else sees it. Nobody has to
be trusted, and the noise is that of local differential privacy: it does not fall with the number of rows.
"""

from __future__ import annotations

from hush.config import Config, unit_of
from hush.privacy.schedule import StageTable
from hush.recipes import Recipe
from hush.recipes.slots.local import ControlVariates
from hush.types import HushError


def check_client_unit(recipe: Recipe, table: StageTable) -> None:
    """Raise a `HushError` unless all that a recipe has clients release is their updates."""
    named = dict.fromkeys(release.what for spec in table.specs for release in spec.side_releases)
    if named:
        raise HushError(
            f'privacy.unit: "client" cannot bound what all rows of a client change in other releases '
            f"({', '.join(named)}); accepted: a recipe without them (recipe.protect.centre = 0, clip = fixed, public "
            "counts, no cluster choice)",
            "privacy.unit",
        )
    if isinstance(recipe.local, ControlVariates):
        raise HushError(
            'privacy.unit: "client" clips whole updates, of which control variates cannot be computed; accepted: '
            "another recipe.local",
            "privacy.unit",
        )


def uncovered_clients(config: Config) -> tuple[str, ...]:
    """What no accountant covers where clients are protected, in words."""
    if unit_of(config) != "client":
        return ()
    return (
        "number of rows of a client: taken as public at enrolment, with the steps and the weight that follow from it, "
        "and not part of what is protected",
    )
