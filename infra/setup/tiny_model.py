"""A tiny chat model made on the spot: three layers, small tokenizer, append-only chat template.

It serves the tiny run and the tests: vLLM, transformers and the learner read it as any model
folder. The same seed on the same machine gives the same files. A short warm-up teaches it to answer
a sum or a product of one-digit numbers with a short number, a wish for digits with digits and
letters, and to stop there; the answers are mostly wrong, so that reinforcement has something to
improve within a minute or two. Run as
`python -m infra.setup.tiny_model FOLDER [SEED]`.
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
"""Positions the model knows. Unit: tokens."""
WARM_UP_STEPS = 40
VOCABULARY = 512
_BATCH = 16
_LEARNING_RATE = 3e-3
_RIGHT_SHARE = 0.3
"""Share of right answers in the warm-up: a group may hold both rewards, with room to learn."""

_PRODUCT = "Solve the following multiplication: {} * {}. Give only the result as your final answer."
_SUM = "State the final answer to the following arithmetic problem: {} {} {} ="
_FREE = "Write digits {}:"
_FREE_SHARE = 0.3
_CHARACTERS = "0123456789abcdef"
_TOOL_CALL = '<tool_call>{"name": "calculator", "arguments": {"expression": ""}}</tool_call>'
_CORPUS = (
    *[_PRODUCT, _SUM, _FREE, _TOOL_CALL, "system user assistant tool"] * 4,
    "You are a helpful assistant. Use the tools to answer and reply with the answer only.",
    'Tools: {"type": "function", "function": {"name": "", "description": "", "parameters": '
    '{"type": "object", "properties": {"code": {"type": "string"}}, "required": []}}}',
    "What is the sum of these numbers? How many times does the letter appear in the word?",
    "def run(value): return print(value) import error: the result is 0, not found, out of time.",
)
"""What the tokenizer learns its merges from: the wording of the tasks costs few tokens."""

# Appending a message never changes the text before it: no line depends on the messages around it.
CHAT_TEMPLATE = (
    "{%- if tools -%}"
    "{{- '<|im_start|>system\\nTools:\\n' -}}"
    "{%- for tool in tools -%}{{- tool | tojson + '\\n' -}}{%- endfor -%}"
    '{{- \'Call one with <tool_call>{"name": ..., "arguments": ...}</tool_call><|im_end|>\\n\' -}}'
    "{%- endif -%}"
    "{%- for message in messages -%}"
    "{{- '<|im_start|>' + message['role'] + '\\n' + (message['content'] or '') -}}"
    "{%- for call in message['tool_calls'] or [] -%}"
    "{%- set called = call['function'] if 'function' in call else call -%}"
    "{{- '<tool_call>{\"name\": \"' + called['name'] + '\", \"arguments\": ' -}}"
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
    """Make the model folder, weights in float32, and return it; one that is there is replaced.

    tied: whether the output head is the embedding matrix. warm_up_steps: 0 keeps the drawn weights.
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
        # One thread gives the same sums each time, and does not spin on cores that others use.
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        _warm_up(model, tokenizer, random.Random(seed), warm_up_steps)
        torch.set_num_threads(threads)
    with made_beside(folder) as draft:
        model.save_pretrained(draft, safe_serialization=True)
        tokenizer.save_pretrained(draft)
    return folder


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Return a byte-level BPE tokenizer of VOCABULARY tokens that keeps digits single."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bare = Tokenizer(models.BPE())
    bare.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    bare.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[TURN_START, TURN_END, PAD],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    bare.train_from_iterator(_CORPUS, trainer)
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
    """Draw a question as the tasks ask it, with an answer that is sometimes right."""
    if draw.random() < _FREE_SHARE:
        length = draw.randrange(3, 9)
        return _FREE.format(draw.randrange(100)), "".join(draw.choices(_CHARACTERS, k=length))
    a, b, other = draw.randrange(10), draw.randrange(10), draw.randrange(10)
    right = draw.random() < _RIGHT_SHARE
    if draw.random() < 0.5:
        return _PRODUCT.format(a, b), str(a * b if right else other * b)
    sign = draw.choice("+-")
    c = a if right else other
    return _SUM.format(a, sign, b), str(c + b if sign == "+" else c - b)


def _warm_up(
    model: Any, tokenizer: PreTrainedTokenizerFast, draw: random.Random, steps: int
) -> None:
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
    parser.add_argument("seed", type=int, nargs="?", default=0)
    parser.add_argument("--untied", action="store_true", help="give the output head its own matrix")
    parser.add_argument("--warm-up-steps", type=int, default=WARM_UP_STEPS)
    given = parser.parse_args()
    make_tiny_model(
        given.folder, given.seed, tied=not given.untied, warm_up_steps=given.warm_up_steps
    )


if __name__ == "__main__":
    main()
