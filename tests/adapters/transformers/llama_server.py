"""A llama.cpp server with a tiny random model: ``python llama_server.py FOLDER`` prints its address and serves.

Its texts have no end if a client tells it to ignore the token that ends one: when its context is full, it forgets the
beginning.
"""

import sys
from pathlib import Path

import gguf
import numpy as np
import xllamacpp

_CONTEXT = 2048
_SIZE = 32
_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
_WORDS = [f"\u2581w{number}" for number in range(64)]


def write_model(path):
    """Write a model of one layer with random weights."""
    kinds = {"<unk>": gguf.TokenType.UNKNOWN, "<s>": gguf.TokenType.CONTROL, "</s>": gguf.TokenType.CONTROL}
    kinds |= dict.fromkeys(_BYTES, gguf.TokenType.BYTE) | dict.fromkeys(_WORDS, gguf.TokenType.NORMAL)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(_CONTEXT)
    writer.add_embedding_length(_SIZE)
    writer.add_feed_forward_length(_SIZE)
    writer.add_block_count(1)
    writer.add_head_count(1)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(_SIZE)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(list(kinds))
    writer.add_token_scores([-float(number) for number in range(len(kinds))])
    writer.add_token_types(list(kinds.values()))
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template("{% for message in messages %}{{ message['content'] }}{% endfor %}")
    layer = [
        f"blk.0.{name}" for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
    ]
    shapes = {"token_embd": (len(kinds), _SIZE), "output": (len(kinds), _SIZE)} | dict.fromkeys(layer, (_SIZE, _SIZE))
    numbers = np.random.default_rng(0)
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", numbers.normal(size=shape).astype(np.float32))
    for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
        writer.add_tensor(f"{name}.weight", np.ones(_SIZE, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main(folder):
    path = Path(folder) / "tiny.gguf"
    write_model(path)
    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(path)
    parameters.n_ctx, parameters.ctx_shift = _CONTEXT, True
    parameters.n_parallel, parameters.warmup = 1, False
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = 1
    parameters.hostnames, parameters.port = ["127.0.0.1"], 0
    parameters.endpoint_slots = True
    server = xllamacpp.Server(parameters)
    print(server.listening_address, flush=True)
    sys.stdin.read()  # until whoever started it ends, or closes the pipe


if __name__ == "__main__":
    main(sys.argv[1])
