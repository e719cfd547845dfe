"""A plugin for pytest: the adapter is on for every conversation of the process."""

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # those of its imports
    from stoppable.adapters.openhands import install

install()
