"""A client's own account of what it has released: spend before release, never refund."""

from hush.privacy.ledger.errors import BrokenLedgerError, BudgetSpentError, LockedError
from hush.privacy.ledger.ledger import Ledger

__all__ = ["BrokenLedgerError", "BudgetSpentError", "Ledger", "LockedError"]
