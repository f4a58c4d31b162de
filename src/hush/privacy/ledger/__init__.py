"""A client's own account of what it has released: spend before release, never refund."""

from hush.privacy.ledger.account import BudgetSpentError
from hush.privacy.ledger.chain import BrokenLedgerError
from hush.privacy.ledger.faults import LockedError
from hush.privacy.ledger.ledger import Ledger

__all__ = ["BrokenLedgerError", "BudgetSpentError", "Ledger", "LockedError"]
