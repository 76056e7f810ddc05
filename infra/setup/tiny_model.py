"""A tiny chat model made on the spot: three layers, a byte tokenizer, an append-only chat template.

It serves the tiny run and the tests: vLLM, transformers and the learner read it as they read any model folder. The
same seed on the same machine gives the same files. A short warm-up teaches it to answer a sum or a product of
one-digit numbers with a short number and to stop there; the number is mostly wrong, so that reinforcement has
something to improve within a minute or two. Run as `python -m infra.setup.tiny_model FOLDER [--seed N]`.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infra.setup.steps import made_beside

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

TURN_START = "<|im_start|>"
TURN_END = "<|im_end|>"
PAD = "<|pad|>"
CONTEXT_MAX = 2048
"""Positions the model knows. Unit: tokens, which are bytes here."""
WARM_UP_STEPS = 80
_BATCH = 32
_LEARNING_RATE = 3e-3
_RIGHT_SHARE = 0.3
"""Share of right answers in the warm-up: enough that a group holds both rewards, little enough to leave room."""

# Appending a message never changes the text before it, and no line depends on the messages around it.
CHAT_TEMPLATE = (
    "{%- if tools -%}"
    "{{- '<|im_start|>system\\nTools:\\n' -}}"
    "{%- for tool in tools -%}{{- tool | tojson + '\\n' -}}{%- endfor -%}"
    "{{- 'Call one with <tool_call>{\"name\": ..., \"arguments\": ...}</tool_call><|im_end|>\\n' -}}"
    "{%- endif -%}"
    "{%- for message in messages -%}"
    "{{- '<|im_start|>' + message['role'] + '\\n' + (message['content'] or '') -}}"
    "{%- for call in message['tool_calls'] or [] -%}"
    "{%- set called = call['function'] if 'function' in call else call -%}"
    '{{- \'<tool_call>{"name": "\' + called[\'name\'] + \'", "arguments": \' -}}'
    "{{- called['arguments'] if called['arguments'] is string else called['arguments'] | tojson -}}"
    "{{- '}</tool_call>' -}}"
    "{%- endfor -%}"
    "{{- '<|im_end|>\\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)


def make_tiny_model(
    folder: Path, seed: int, *, tied: bool = True, warm_up_steps: int = WARM_UP_STEPS
) -> Path:
    """Make the model folder, weights in float32, and return it; a folder that is there is replaced.

    tied: whether the output head is the embedding matrix. warm_up_steps: 0 leaves the weights as drawn.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = make_tokenizer()
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=CONTEXT_MAX,
        tie_word_embeddings=tied,
        bos_token_id=tokenizer.convert_tokens_to_ids(TURN_START),
        eos_token_id=tokenizer.convert_tokens_to_ids(TURN_END),
        pad_token_id=tokenizer.convert_tokens_to_ids(PAD),
        initializer_range=0.05,
        dtype="float32",
    )
    model = LlamaForCausalLM(config)
    if warm_up_steps:
        _warm_up(model, tokenizer, random.Random(seed), warm_up_steps)
    with made_beside(folder) as draft:
        model.save_pretrained(draft, safe_serialization=True)
        tokenizer.save_pretrained(draft)
    return folder


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer whose tokens are the 256 bytes and the three special tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    bare = Tokenizer(models.BPE(vocab={letter: n for n, letter in enumerate(letters)}, merges=[]))
    bare.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bare.decoder = decoders.ByteLevel()
    bare.add_special_tokens([TURN_START, TURN_END, PAD])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bare,
        bos_token=TURN_START,
        eos_token=TURN_END,
        pad_token=PAD,
        model_max_length=CONTEXT_MAX,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def _example(draw: random.Random) -> tuple[str, str]:
    """Draw a question as the arithmetic tasks ask it, and an answer that is right with _RIGHT_SHARE."""
    a, b, other = draw.randrange(10), draw.randrange(10), draw.randrange(10)
    right = draw.random() < _RIGHT_SHARE
    if draw.random() < 0.5:
        question = f"Solve the following multiplication: {a} * {b}. Give only the result as your final answer."
        return question, str(a * b if right else other * b)
    sign = draw.choice("+-")
    question = f"State the final answer to the following arithmetic problem: {a} {sign} {b} ="
    c = a if right else other
    return question, str(c + b if sign == "+" else c - b)


def _warm_up(model: Any, tokenizer: PreTrainedTokenizerFast, draw: random.Random, steps: int) -> None:
    """Train `model` on drawn examples; the loss is on the answer and the end of the turn only."""
    import torch

    optimiser = torch.optim.AdamW(model.parameters(), lr=_LEARNING_RATE, weight_decay=0.0)
    for step in range(steps):
        pairs = [_example(draw) for _ in range(_BATCH)]
        asked = [
            tokenizer.apply_chat_template(
                [{"role": "user", "content": question}],
                add_generation_prompt=True,
                return_dict=False,
            )
            for question, _ in pairs
        ]
        said = [tokenizer.encode(answer + TURN_END) for _, answer in pairs]
        width = max(len(a) + len(s) for a, s in zip(asked, said, strict=True))
        ids = torch.full((_BATCH, width), tokenizer.pad_token_id)
        labels = torch.full((_BATCH, width), -100)
        for row, (prompt, answer) in enumerate(zip(asked, said, strict=True)):
            whole = torch.tensor([*prompt, *answer])
            ids[row, : len(whole)] = whole
            labels[row, len(prompt) : len(whole)] = whole[len(prompt) :]
        for group in optimiser.param_groups:
            group["lr"] = _LEARNING_RATE * min(1.0, 2.0 * (steps - step) / steps)
        # Padding comes last and attention is causal, so no mask is needed.
        loss = model(input_ids=ids, labels=labels).loss
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()


def main() -> None:
    """Make one model folder from the command line."""
    parser = argparse.ArgumentParser(description="Make a tiny chat model.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--untied", action="store_true", help="give the output head its own matrix")
    parser.add_argument("--warm-up-steps", type=int, default=WARM_UP_STEPS)
    given = parser.parse_args()
    make_tiny_model(
        given.folder, given.seed, tied=not given.untied, warm_up_steps=given.warm_up_steps
    )


if __name__ == "__main__":
    main()
