"""The coordinator: enrolment, rounds, and what it accepts."""
