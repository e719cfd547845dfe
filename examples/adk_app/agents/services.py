"""Loaded by `adk web` and `adk api_server`: makes both stoppable. If stoppable is not installed, ADK says nothing."""

import stoppable.adapters.adk.autoinstall  # noqa: F401
