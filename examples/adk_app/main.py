"""A complete ADK app with a stop button: `python main.py`, then open http://127.0.0.1:8000/stoppable/."""

from pathlib import Path

import uvicorn
from google.adk.cli.fast_api import get_fast_api_app

from stoppable.adapters.adk import install

app = get_fast_api_app(agents_dir=str(Path(__file__).parent / "agents"), session_service_uri="memory://", web=False)
install(app)

if __name__ == "__main__":
    uvicorn.run(app, port=8000)
