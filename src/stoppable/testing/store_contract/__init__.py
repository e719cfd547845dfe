"""The Store protocol as tests: every sentence of ``stoppable.stores.base``, for authors of stores.

Only the standard library is imported; pytest collects and runs the methods of a subclass whose name begins with Test.
"""

from stoppable.testing.store_contract.arriving import Arriving
from stoppable.testing.store_contract.events import Events
from stoppable.testing.store_contract.finishing import Finishing
from stoppable.testing.store_contract.harness import StoreClock
from stoppable.testing.store_contract.keys import Keys
from stoppable.testing.store_contract.looking import Looking
from stoppable.testing.store_contract.registering import Registering
from stoppable.testing.store_contract.shared import Shared
from stoppable.testing.store_contract.stopping import Stopping
from stoppable.testing.store_contract.together import Together
from stoppable.testing.store_contract.workers import Workers

__all__ = ["DurableStoreContract", "StoreClock", "StoreContract"]


class StoreContract(Registering, Stopping, Keys, Finishing, Events, Arriving, Workers, Looking, Together):
    """The tests that every store must pass; subclass it and define ``make_store``."""


class DurableStoreContract(StoreContract, Shared):
    """The tests for a store that outlives its process; define ``another_store`` as well."""
