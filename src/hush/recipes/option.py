"""What every choice of a recipe declares: what it reveals, and what its rounds ask of a client."""

from __future__ import annotations

from hush.privacy.course import Ask
from hush.types import Release


class Option:
    """A choice that reveals nothing and asks for nothing. The others say what they do."""

    def releases(self) -> tuple[Release, ...]:
        """What it reveals beyond the privatised update."""
        return ()

    def ask(self, number: int, rounds: int) -> Ask:
        """What round `number` of `rounds` asks of a client; number 0 is enrolment."""
        return Ask(train=number > 0)
