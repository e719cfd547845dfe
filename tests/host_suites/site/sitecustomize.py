"""Imported at the start of every interpreter of a host suite: switches instrument() on if the suite asks for it."""

import os

if os.environ.get("STOPPABLE_HOST_SUITE") == "instrumented":
    # The same function as stoppable.instrument: to import all public names takes twice as long, thousands of times.
    from stoppable._engine.instrumentation.install import instrument

    instrument()
