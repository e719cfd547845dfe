"""Imports torch and transformers before warnings are errors, and lets transformers write no progress bars."""

import warnings

with warnings.catch_warnings(action="ignore"):
    import transformers
    from transformers import LlamaForCausalLM, pipeline  # noqa: F401

transformers.utils.logging.disable_progress_bar()  # the thread that draws them never ends
