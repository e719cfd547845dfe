"""Makes ``generate`` of a model a boundary."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import MethodType
from typing import Any, TypeVar

import stoppable
from stoppable.adapters.transformers.generation import Generation

T = TypeVar("T")

_REPLACED = "__stoppable_replaced__"


def guard(target: T, tokenizer: Any = None, *, name: str | None = None, finish: bool | None = None) -> T:
    """Make each generation of a model a boundary that a stop ends at the next token, in place, and return the model.

    It takes a pipeline as well, with its model and tokenizer. With a tokenizer, the text is added to the partial of the
    run. ``name`` is the name of the boundaries; by default that of the model.

    A generation that has a ``streamer`` ends at the next token after any stop. One without is a plain model call: a
    graceful stop lets it finish, and ends it at the next token when the grace is over. ``finish=False`` ends every
    generation at the next token, ``finish=True`` lets all of them finish. Guarding again changes these settings.

    Threads that a run's code starts belong to the run, as with ``stoppable.instrument()``, which this calls.
    """
    is_model = callable(getattr(target, "generate", None))
    model = target if is_model else getattr(target, "model", None)
    if not callable(getattr(model, "generate", None)):
        raise stoppable.InvalidArgument(f"{type(target).__name__} does not generate: pass a model or a pipeline")
    if tokenizer is None and not is_model:
        tokenizer = getattr(target, "tokenizer", None)
    stoppable.instrument()
    model = getattr(model, "_orig_mod", model)  # what torch.compile has wrapped
    _replace_generate(model, _Settings(tokenizer, _name_of(model) if name is None else name, finish))
    return target


@dataclass(frozen=True, slots=True)
class _Settings:
    tokenizer: Any
    name: str
    finish: bool | None


def _name_of(model: Any) -> str:
    name: str = getattr(model, "name_or_path", "") or type(model).__name__
    return Path(name).resolve().name if Path(name).is_dir() else name


def _replace_generate(model: Any, settings: _Settings) -> None:
    """Set the method on the model, bound as a method of its class is: a copy of the model has its own."""
    own = vars(model).get("generate")  # another library may have replaced it, too
    own = getattr(own, _REPLACED, own)

    @functools.wraps(type(model).generate if own is None else own)
    def generate(self: Any, *args: Any, **kwargs: Any) -> Any:
        real = functools.partial(type(self).generate, self) if own is None else own
        return _generate(self, real, settings, *_named(real, args, kwargs))

    setattr(generate, _REPLACED, own)
    model.generate = MethodType(generate, model)


def _named(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a call, by name where they have one."""
    parameters = inspect.signature(function).parameters.values()
    names = [each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]
    return args[len(names) :], {**dict(zip(names, args, strict=False)), **kwargs}


def _generate(
    model: Any, real: Callable[..., Any], settings: _Settings, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    streamer = kwargs.get("streamer")
    generation = _make_generation(model, settings, kwargs)
    try:
        with stoppable.boundary("llm", settings.name):
            return real(*args, **kwargs) if generation is None else generation.run(real, args, kwargs)
    except stoppable.AgentStopped:
        if streamer is not None and not (generation is not None and generation.has_ended):
            streamer.end()  # whoever reads it waits for that
        raise


def _make_generation(model: Any, settings: _Settings, kwargs: dict[str, Any]) -> Generation | None:
    run = stoppable.current_run()
    if run is None or kwargs.get("cache_implementation") == "paged":  # continuous batching has no stopping criteria
        return None
    prompt = kwargs.get("input_ids", kwargs.get("inputs"))
    if getattr(model.config, "is_encoder_decoder", False):
        prompt = None  # what is generated does not begin with it
    prompt_length = None if prompt is None else prompt.shape[-1]
    finish = kwargs.get("streamer") is None if settings.finish is None else settings.finish
    return Generation(run, settings.tokenizer, prompt_length=prompt_length, finish=finish)
