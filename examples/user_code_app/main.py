"""People write agents in the browser, run them, watch them and stop them: `python main.py`, then open http://127.0.0.1:8000/."""

import argparse
from pathlib import Path

import uvicorn
from user_code.app import create_app
from user_code.settings import Settings


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--port", type=int, default=8000)
    options.add_argument("--folder", type=Path, default=Path("user-code-data"), help="where runs and agents are kept")
    options.add_argument("--in-process", action="store_true", help="execute agents on threads of the server itself")
    options.add_argument("--grace", type=float, default=10.0, help="how long a call in flight may take after a stop")
    options.add_argument("--seconds", type=float, default=600.0, help="how long a run may take")
    options.add_argument("--model-url", help="a chat completions endpoint; without it the model is scripted")
    given = options.parse_args()
    settings = Settings(
        folder=given.folder,
        isolation="thread" if given.in_process else "process",
        grace=given.grace,
        seconds=given.seconds,
        model_url=given.model_url,
    )
    # Event streams end with their runs: what is still open after this is cut, and resumes elsewhere.
    uvicorn.run(create_app(settings), port=given.port, access_log=False, timeout_graceful_shutdown=2)


if __name__ == "__main__":
    main()
