"""The coordinator: enrolment, rounds, and validation of what members send."""
