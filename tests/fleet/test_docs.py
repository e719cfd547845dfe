"""The Python of docs/how-to/postgres.md runs as it stands."""

import os
import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs/how-to/postgres.md"


def test_the_example_stops_a_run_of_another_replica(url, tmp_path):
    (code,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    (tmp_path / "example.py").write_text(code)
    done = subprocess.run(
        [sys.executable, "example.py"],
        cwd=tmp_path,
        env={**os.environ, "STOPPABLE_STORE": url},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.stdout == "stopped\n", done.stderr
