"""The ledger of a client: charges are made before a release and are never refunded."""

from hush.privacy.ledger.account import Spending
from hush.privacy.ledger.errors import BrokenLedgerError, BudgetSpentError, LockedError
from hush.privacy.ledger.ledger import Ledger
from hush.privacy.ledger.memory import MemoryLedger

__all__ = ["BrokenLedgerError", "BudgetSpentError", "Ledger", "LockedError", "MemoryLedger", "Spending"]
