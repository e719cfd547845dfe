"""A server for tools that read the OpenAPI document."""

from echo import research

from stoppable.server import serve

if __name__ == "__main__":
    serve([research], port=0, ready=lambda url: print(url, flush=True))
