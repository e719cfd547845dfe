"""The supervisor: starts runs in a store, finds them, and stops them.

``core`` decides, ``log_writer`` stores what runs do, ``lease`` shows that this process is alive and reads its stops;
``_async`` waits for the answers, and ``_sync``, which is made from it, does so in blocking code.
"""

from stoppable.records import BulkStop
from stoppable.supervisor._async.handles import Prepared
from stoppable.supervisor._async.supervisor import Supervisor
from stoppable.supervisor.core import SHUTDOWN_MARGIN, Listener
from stoppable.supervisor.jobs import StartOptions

__all__ = ["SHUTDOWN_MARGIN", "BulkStop", "Listener", "Prepared", "StartOptions", "Supervisor"]
