"""Says how to install what an extra brings, from where stoppable itself came."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path


def pip_install(extras: str, *also: str, upgrade: bool = False) -> str:
    """Return the command that adds extras (``cli``, or ``a2a,langgraph``) to this installation.

    It names the clone if stoppable was installed from one: an index may not have it, or have something else.
    """
    packages = " ".join(f'"{package}"' for package in (_with(extras), *also))
    return f"pip install --upgrade {packages}" if upgrade else f"pip install {packages}"


def typed_again(words: Sequence[str]) -> str:
    """Return what to type so that ``stoppable WORDS`` has what the command line needs.

    Nothing can be installed into the environments that ``uvx`` and ``pipx run`` make for one command: there it is that
    command with all extras, because the next one may need the server.
    """
    again = f'"{_with("all")}" {shlex.join(["stoppable", *words])}'
    environment = Path(sys.prefix)
    if (environment / "pipx_metadata.json").is_file():
        return f"pipx run --spec {again}"
    is_run_by_uvx = "UV" in os.environ and os.environ.get("VIRTUAL_ENV") != sys.prefix  # `uv run` says where it is
    if is_run_by_uvx or (environment / "uv-receipt.toml").is_file():
        return f"uvx --from {again}"
    return pip_install("cli")


def _with(extras: str) -> str:
    url, is_folder = _origin()
    if url and not is_folder:
        return f"stoppable[{extras}] @ {url}"
    return f"{url or 'stoppable'}[{extras}]"


def _origin() -> tuple[str, bool]:
    """Return the folder, file or repository that stoppable was installed from, nothing if it came from an index."""
    clone = Path(__file__).parents[2]  # it is used from its own folder, or an editable installation
    if (clone / "pyproject.toml").is_file():
        return str(clone), True
    # Only when something is missing: these take longer to import than stoppable.
    import json  # noqa: PLC0415 - slow to import
    from importlib import metadata  # noqa: PLC0415
    from urllib.parse import unquote, urlsplit  # noqa: PLC0415

    try:
        origin = json.loads(metadata.distribution("stoppable").read_text("direct_url.json") or "{}")
        if "vcs_info" in origin:
            return f"{origin['vcs_info']['vcs']}+{origin['url']}", False
        path = Path(unquote(urlsplit(origin.get("url", "")).path))
    except (metadata.PackageNotFoundError, ValueError, KeyError):
        return "", False
    if "archive_info" in origin and (path.is_file() or not origin["url"].startswith("file:")):
        return origin["url"], False
    return (str(path), True) if "dir_info" in origin and path.is_dir() else ("", False)
