"""Server-Sent Events: what happens in runs, as streams that browsers and clients follow and resume."""
