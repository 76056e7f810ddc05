"""Turn a quantised GGUF file into a bf16 safetensors folder that vLLM and transformers read.

Run as `python -m infra.setup.convert_model GGUF FOLDER`, in a process of its own: torch stays out
of the set-up itself.
"""

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def convert(gguf: Path, folder: Path) -> None:
    """Read weights, tokenizer and chat template out of `gguf` and write them to `folder`."""
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.float32
    )
    # The weights are plain by now; what remembers the quantisation would stop `save_pretrained`.
    model.hf_quantizer = None
    model.is_quantized = False
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    # vLLM chooses the model class by this field, which a GGUF file does not fill.
    model.config.architectures = ["LlamaForCausalLM"]
    model = model.to(torch.bfloat16)
    model.config.dtype = "bfloat16"
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
