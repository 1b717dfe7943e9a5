"""Model files for scripted executors: a byte-level tokenizer with words to spare, and ChatML.

Ids: 0 <|endoftext|>, 1 <|im_start|>, 2 <|im_end|>, then the 256 bytes, then " w0", " w1", ... up to
the vocabulary's size. Any text can be encoded; random ids give readable words for the most part.
"""

from __future__ import annotations

import json
from functools import cache

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MIN_VOCAB_SIZE = 256 + len(SPECIAL_TOKENS)

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@cache
def tokenizer_json(vocab_size: int) -> bytes:
    if vocab_size < MIN_VOCAB_SIZE:
        raise ValueError(f"the tiny tokenizer needs {MIN_VOCAB_SIZE} ids, not {vocab_size}")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: i for i, token in enumerate((*SPECIAL_TOKENS, *alphabet))}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    words = [AddedToken(f" w{i}", normalized=False) for i in range(vocab_size - len(vocab))]
    tokenizer.add_tokens(words)
    return str(tokenizer.to_str()).encode()


def model_files(vocab_size: int, eos_token_id: int | None) -> dict[str, bytes]:
    eos = {} if eos_token_id is None else {"eos_token_id": eos_token_id}
    config = {"model_type": "shadow", "vocab_size": vocab_size, **eos}
    return {
        "tokenizer.json": tokenizer_json(vocab_size),
        "chat_template.jinja": CHAT_TEMPLATE.encode(),
        "generation_config.json": json.dumps(eos).encode(),
        "config.json": json.dumps(config).encode(),
    }
