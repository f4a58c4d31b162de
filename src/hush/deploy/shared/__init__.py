"""What coordinator and members both compute from the same public facts."""
