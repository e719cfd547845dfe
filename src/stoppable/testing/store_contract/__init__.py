"""The Store protocol as tests: every sentence of ``stoppable.stores.base``, for authors of stores.

Only the standard library is imported; pytest collects and runs the methods of a subclass whose name begins with Test.
"""

from stoppable.testing.store_contract.concurrency import ConcurrencyContract
from stoppable.testing.store_contract.events import LogContract, TailContract
from stoppable.testing.store_contract.harness import StoreClock
from stoppable.testing.store_contract.queries import QueryContract
from stoppable.testing.store_contract.runs import EndContract, StartContract
from stoppable.testing.store_contract.shared_data import SharedDataContract
from stoppable.testing.store_contract.stops import KeyContract, StopContract
from stoppable.testing.store_contract.workers import WorkerContract

__all__ = ["DurableStoreContract", "StoreClock", "StoreContract"]


class StoreContract(
    StartContract,
    StopContract,
    KeyContract,
    EndContract,
    LogContract,
    TailContract,
    WorkerContract,
    QueryContract,
    ConcurrencyContract,
):
    """The tests that every store must pass; subclass it and define ``make_store``."""


class DurableStoreContract(StoreContract, SharedDataContract):
    """The tests for a store that outlives its process; define ``another_store`` as well."""
