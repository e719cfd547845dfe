"""What agent code can do to the world, each time through a boundary: after a stop nothing of it begins."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx

import stoppable
from user_code import trace
from user_code.agents import connected

_PREVIEW = 200


_SETTINGS = {"max_tokens": "maxTokens", "temperature": "temperature", "reasoning_effort": "reasoningEffort"}


def _with_settings(parameters: Mapping[str, Any], settings: Mapping[str, Any], model: str) -> dict[str, Any]:
    """Return what a model is called with: what the user has set, for this model or for all, wins over the code."""
    per_model = settings.get("perModel")
    own = settings if per_model is None else per_model.get(model, {})
    given = {name: own[key] for name, key in _SETTINGS.items() if own.get(key) is not None}
    merged = {**parameters, **given}
    if merged.get("reasoning_effort") == "disable":
        del merged["reasoning_effort"]
    return merged


def make_call_llm(url: str | None, settings: Mapping[str, Any] | None = None) -> Callable[..., Any]:
    """Return the function that agents call models with: after a stop no call begins, and one in flight may finish."""

    async def call_llm(
        provider: str,
        model: str,
        messages: list[dict[str, Any]],
        parameters: Mapping[str, Any] | None = None,
        tools: list[dict[str, Any]] | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - a name of the contract
        **_: Any,
    ) -> tuple[str, Any]:
        began, failure = time.monotonic(), None
        async with stoppable.boundary("llm", f"{provider}/{model}"):
            try:
                ask = _scripted if url is None else _ask
                asked = _with_settings(parameters or {}, settings or {}, f"{provider}/{model}")
                return await ask(url, model, messages, asked, tools, timeout or 600.0)
            except BaseException as caught:
                failure = f"{type(caught).__name__}: {caught}"
                raise
            finally:
                milliseconds = round((time.monotonic() - began) * 1000, 1)
                known: dict[str, Any] = {
                    "provider": provider,
                    "model": model,
                    "duration_ms": milliseconds,
                    "error": failure,
                }
                trace.add("llm_call", input_tokens=None, output_tokens=None, cost_usd=None, **known)

    return call_llm


async def _ask(
    url: str | None, model: str, messages: list[Any], parameters: dict[str, Any], tools: Any, seconds: float
) -> tuple[str, Any]:
    # A client per call: one whose call was cancelled may have connections that nobody should use again.
    body = {"model": model, "messages": messages, **parameters, **({"tools": tools} if tools else {})}
    async with httpx.AsyncClient(timeout=seconds) as client:
        answer = await client.post(f"{url}/chat/completions", json=body)
    message = answer.raise_for_status().json()["choices"][0]["message"]
    return message["content"], message.get("reasoning")


async def _scripted(
    _url: str | None, _model: str, messages: list[Any], parameters: dict[str, Any], _tools: Any, _seconds: float
) -> tuple[str, Any]:
    await asyncio.sleep(float(parameters.get("seconds", 1.0)))
    return f"You said: {messages[-1]['content']}" if messages else "You said nothing.", None


class DataStore:
    """Values that outlive a run, by namespace and key; its calls are short and block."""

    def __init__(self, path: Path, owner: str, agent: str, namespace: str = "default") -> None:
        self._path, self._owner, self._agent, self._namespace = path, owner, agent, namespace

    def use_namespace(self, namespace: str) -> DataStore:
        """Return the same store in another namespace."""
        return DataStore(self._path, self._owner, self._agent, namespace)

    def get(self, key: str, default: Any = None) -> Any:
        """Return a value."""
        rows = self._do("get", "SELECT value FROM stored WHERE owner = ? AND namespace = ? AND key = ?", key)
        self._log("get", key=key, found=bool(rows))
        return json.loads(rows[0][0]) if rows else default

    def set(self, key: str, value: Any, metadata: Any = None) -> None:  # noqa: ARG002 - a name of the contract
        """Keep a value."""
        self._do("set", "INSERT OR REPLACE INTO stored VALUES (?, ?, ?, ?)", key, json.dumps(value))
        self._log("set", key=key, valuePreview=json.dumps(value)[:_PREVIEW])

    def delete(self, key: str) -> bool:
        """Forget a value, and return whether there was one."""
        sql = "DELETE FROM stored WHERE owner = ? AND namespace = ? AND key = ? RETURNING key"
        found = bool(self._do("delete", sql, key))
        self._log("delete", key=key, found=found)
        return found

    def list_keys(self, prefix: str | None = None) -> list[str]:
        """Return the keys, or those with a prefix."""
        rows = self._do("list_keys", "SELECT key FROM stored WHERE owner = ? AND namespace = ? ORDER BY key")
        keys = [key for (key,) in rows if key.startswith(prefix or "")]
        self._log("list_keys", prefix=prefix, count=len(keys))
        return keys

    def list_namespaces(self) -> list[str]:
        """Return the namespaces that have values."""
        sql = "SELECT DISTINCT namespace FROM stored WHERE owner = ? AND ? IS NOT NULL ORDER BY namespace"
        found = [namespace for (namespace,) in self._do("list_namespaces", sql)]
        self._log("list_namespaces", count=len(found))
        return found

    def get_all(self) -> dict[str, Any]:
        """Return all values of the namespace."""
        rows = self._do("get_all", "SELECT key, value FROM stored WHERE owner = ? AND namespace = ?")
        self._log("get_all", count=len(rows))
        return {key: json.loads(value) for key, value in rows}

    def get_many(self, keys: Iterable[str]) -> dict[str, Any]:
        """Return some values."""
        return {key: value for key in keys if (value := self.get(key, self)) is not self}

    def set_many(self, items: Mapping[str, Any], metadata: Any = None) -> int:
        """Keep some values, and return how many."""
        for key, value in items.items():
            self.set(key, value, metadata)
        return len(items)

    def delete_many(self, keys: Iterable[str]) -> int:
        """Forget some values, and return how many there were."""
        return sum(self.delete(key) for key in keys)

    def clear(self) -> int:
        """Forget all values of the namespace, and return how many there were."""
        count = len(self._do("clear", "DELETE FROM stored WHERE owner = ? AND namespace = ? RETURNING key"))
        self._log("clear", count=count)
        return count

    def _do(self, operation: str, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        with stoppable.boundary("store", operation), connected(self._path) as connection:
            return connection.execute(sql, (self._owner, self._namespace, *values)).fetchall()

    def _log(self, operation: str, **fields: Any) -> None:
        moment = datetime.now(UTC).replace(tzinfo=None).isoformat()
        entry = {"op": operation, "namespace": self._namespace, "agent": self._agent, "ts": moment, **fields}
        stoppable.append_partial(entry)  # the operations so far: they are kept however the run ends
        told: dict[str, Any] = {name: fields.get(name) for name in ("key", "found", "count")}
        trace.add("data_store", operation=operation, namespace=self._namespace, **told)
