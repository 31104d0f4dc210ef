"""
The retry budget of a caller: the failures of its requests that are retried on another backend.

A retry that is answered costs nothing. One that fails, too, has doubled the load for nothing: of such retries a caller has one for twenty
requests, and ten to begin with: 200 requests that fail everywhere cause at most 1.1 times as many attempts. Each caller has a budget of its own: what one caller's requests use up, others still have.

Retries after a failed connection, and after a busy backend, are not counted: no model has worked for these.
"""

from collections import OrderedDict

EARNED = 0.05  # by each request
RESERVE = 2.0  # to begin with
MOST = 10.0
#: Retries beyond the balance that may run at a time, as long as the last that has ended was answered: a backend that begins to fail does so
#: for all requests that it has.
OVERDRAFT = 8.0
_CALLERS = 1024


class _Budget:
    """
    The retry budget of one caller.

    Attributes:
        balance: The number of retries that are left.
        trusted: The last retry that has ended was answered.
    """

    __slots__ = ("balance", "trusted")

    def __init__(self) -> None:
        self.balance = RESERVE
        self.trusted = True


class Retries:
    """The retries of one request."""

    __slots__ = ("_budget", "_taken")

    def __init__(self, budget: _Budget) -> None:
        self._budget = budget
        self._taken = 0

    def take(self) -> bool:
        """Take one retry from the budget; return False if none is left."""
        budget = self._budget
        left = budget.balance + (OVERDRAFT if budget.trusted else 0.0)
        if left < 1:
            return False
        budget.balance -= 1
        self._taken += 1
        return True

    def settle(self, failed: bool | None) -> None:
        """
        An attempt has ended.

        Args:
            failed: Whether it failed; None where nobody knows, such as where the client has left.
        """
        if not self._taken:
            return
        if failed is not None:
            self._budget.trusted = not failed
        if not failed:
            self._budget.balance += self._taken
        self._taken = 0


class RetryBudgets:
    """The budgets of all callers of one model."""

    def __init__(self) -> None:
        self._budgets: OrderedDict[str, _Budget] = OrderedDict()

    def request(self, caller: str) -> Retries:
        """A request has come."""
        budget = self._budgets.get(caller)
        if budget is None:
            budget = self._budgets[caller] = _Budget()
            if len(self._budgets) > _CALLERS:
                self._budgets.popitem(last=False)
        else:
            self._budgets.move_to_end(caller)
            budget.balance = min(MOST, budget.balance + EARNED)
        return Retries(budget)
