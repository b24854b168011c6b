"""A model of llama's architecture with random weights, for servers that read GGUF: half a megabyte, no download.

``python random_gguf.py FILE``; needs ``gguf``. Its alphabet is that of GPT-2's bytes, so that every text can be read;
what it writes is noise. One model is like the next: the dice have a seed.
"""

from __future__ import annotations

import sys
from typing import Any

PAIRS = ("th", "he", "in", "er", "an", "or", "on", "re")
CONTROL = ("<|begin|>", "<|end|>", "<|turn|>")
TEMPLATE = "{% for m in messages %}<|turn|>{{ m.role }}\n{{ m.content }}<|end|>\n{% endfor %}<|turn|>assistant\n"
WIDTH, LAYERS, HEADS, KEY_HEADS, INNER, CONTEXT = 64, 2, 4, 2, 128, 4096
SPREAD = 0.08


def visible_bytes() -> dict[int, str]:
    """The character that stands for each byte in GPT-2's alphabet: itself if printable, else one from U+0100 on."""
    itself = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in itself]
    return {byte: chr(byte) for byte in itself} | {byte: chr(256 + place) for place, byte in enumerate(others)}


def write(path: str, seed: int = 0) -> None:
    """Write the model to *path*."""
    import gguf
    import numpy as np

    dice = np.random.default_rng(seed)
    shown = visible_bytes()
    merged = [(shown[ord(first)], shown[ord(second)]) for first, second in PAIRS]
    tokens = [shown[byte] for byte in range(256)] + list(CONTROL) + [first + second for first, second in merged]
    kinds = [gguf.TokenType.NORMAL] * 256 + [gguf.TokenType.CONTROL] * 3 + [gguf.TokenType.NORMAL] * len(PAIRS)
    while len(tokens) % 32:  # rows of matrices come in blocks
        tokens.append(f"<|unused{len(tokens)}|>")
        kinds.append(gguf.TokenType.CONTROL)
    writer = gguf.GGUFWriter(path, "llama")
    for set_to, value in (
        (writer.add_name, "random"),
        (writer.add_context_length, CONTEXT),
        (writer.add_embedding_length, WIDTH),
        (writer.add_block_count, LAYERS),
        (writer.add_feed_forward_length, INNER),
        (writer.add_head_count, HEADS),
        (writer.add_head_count_kv, KEY_HEADS),
        (writer.add_layer_norm_rms_eps, 1e-5),
        (writer.add_rope_dimension_count, WIDTH // HEADS),
        (writer.add_vocab_size, len(tokens)),
        (writer.add_file_type, gguf.LlamaFileType.ALL_F32),
        (writer.add_tokenizer_model, "gpt2"),
        (writer.add_tokenizer_pre, "gpt-2"),
        (writer.add_token_list, tokens),
        (writer.add_token_types, kinds),
        (writer.add_token_merges, [f"{first} {second}" for first, second in merged]),
        (writer.add_bos_token_id, 256),
        (writer.add_eos_token_id, 257),
        (writer.add_add_bos_token, True),
        (writer.add_chat_template, TEMPLATE),
    ):
        set_to(value)

    def matrix(name: str, *size: int) -> Any:
        writer.add_tensor(f"{name}.weight", (dice.standard_normal(size) * SPREAD).astype(np.float32))

    def scale(name: str) -> Any:
        writer.add_tensor(f"{name}.weight", np.ones(WIDTH, np.float32))

    of_keys = KEY_HEADS * WIDTH // HEADS
    matrix("token_embd", len(tokens), WIDTH)
    matrix("output", len(tokens), WIDTH)
    scale("output_norm")
    for layer in range(LAYERS):
        for name in ("attn_norm", "ffn_norm"):
            scale(f"blk.{layer}.{name}")
        for name, rows, columns in (
            ("attn_q", WIDTH, WIDTH),
            ("attn_k", of_keys, WIDTH),
            ("attn_v", of_keys, WIDTH),
            ("attn_output", WIDTH, WIDTH),
            ("ffn_gate", INNER, WIDTH),
            ("ffn_up", INNER, WIDTH),
            ("ffn_down", WIDTH, INNER),
        ):
            matrix(f"blk.{layer}.{name}", rows, columns)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    write(sys.argv[1])
