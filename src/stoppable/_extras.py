"""Says how to install what an extra brings, from where stoppable itself came."""

from __future__ import annotations

from pathlib import Path


def pip_install(extras: str, *also: str, upgrade: bool = False) -> str:
    """Return the command that adds extras (``cli``, or ``a2a,langgraph``) to this installation.

    It names the clone if stoppable was installed from one: an index may not have it, or have something else.
    """
    wanted = " ".join(f'"{one}"' for one in (_with(extras), *also))
    return f"pip install --upgrade {wanted}" if upgrade else f"pip install {wanted}"


def _with(extras: str) -> str:
    url, is_repository = _origin()
    if is_repository:
        return f"stoppable[{extras}] @ {url}"
    return f"{url or 'stoppable'}[{extras}]"


def _origin() -> tuple[str, bool]:
    """Return the folder or repository that stoppable was installed from, nothing if it came from an index."""
    clone = Path(__file__).parents[2]  # it is used from its own folder, or an editable installation
    if (clone / "pyproject.toml").is_file():
        return str(clone), False
    # Only when something is missing: these take longer to import than stoppable.
    import json  # noqa: PLC0415 - slow to import
    from importlib import metadata  # noqa: PLC0415
    from urllib.parse import unquote, urlsplit  # noqa: PLC0415

    try:
        origin = json.loads(metadata.distribution("stoppable").read_text("direct_url.json") or "{}")
        if "vcs_info" in origin:
            return f"{origin['vcs_info']['vcs']}+{origin['url']}", True
        folder = Path(unquote(urlsplit(origin.get("url", "")).path))
    except (metadata.PackageNotFoundError, ValueError, KeyError):
        return "", False
    return (str(folder), False) if "dir_info" in origin and folder.is_dir() else ("", False)
