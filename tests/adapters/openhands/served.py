"""An agent-server of OpenHands with stoppable installed, in a process of its own: ``python served.py PORT FOLDER``."""

import os
import sys
from pathlib import Path

import uvicorn
from openhands.agent_server.api import create_app
from openhands.agent_server.config import Config
from ready_terminals import install as install_terminals

from stoppable import Policy
from stoppable.adapters.openhands import install

if __name__ == "__main__":
    port, folder = int(sys.argv[1]), Path(sys.argv[2])
    os.chdir(folder)
    install_terminals()
    if "--plain" not in sys.argv:
        install(policy=Policy(cancel=60, kill=60))  # no run is lost because the machine is busy
    config = Config(session_api_keys=[], enable_vscode=False, enable_vnc=False)
    uvicorn.run(create_app(config), host="127.0.0.1", port=port, log_level="warning")
