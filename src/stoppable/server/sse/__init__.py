"""Server-Sent Events: streams about runs, which browsers and clients follow and resume."""
