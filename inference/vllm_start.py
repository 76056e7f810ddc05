"""What comes before vLLM: its environment, the checks that fail at once, and its error table."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inference.engine import GenerateRequest
from inference.model_files import weights_bytes
from inference.settings import InferenceSettings
from inference.vllm_settings import VllmSettings
from schemas.errors import Boundary, SettingsError, SluiceError, TransientError

_GIB = 1 << 30
_PROCESSES_BYTES = 4 * _GIB
"""Front, engine core and worker without weights and KV, as seen on Linux: 1.0 + 1.0 + 1.6 GiB."""
_PATIENT = "SLUICE_ENGINE_PATIENT"
_PATIENT_SCHEDULER = "inference.vllm_patient.PatientScheduler"
_NUMBER_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}


@dataclass(frozen=True, slots=True, kw_only=True)
class Vllm:
    """The parts of vLLM that the engine uses, once it may be imported."""

    settings: InferenceSettings
    engine_args: Any
    async_llm: Any
    sampling_params: Any
    delta: Any

    def make_engine(self, folder: Path) -> Any:
        """Start the processes and return the AsyncLLM; blocks until they are ready."""
        return self.async_llm.from_engine_args(self.engine_args(**arguments(folder, self.settings)))

    def sampling(self, request: GenerateRequest) -> Any:
        """Return the sampling parameters of a request."""
        return self.sampling_params(
            max_tokens=request.tokens_max,
            temperature=request.temperature,
            top_p=request.top_p,
            top_k=request.top_k,
            stop_token_ids=list(request.stop_ids),
            # Only the ids that the request names end a turn, whatever the model's folder says.
            ignore_eos=True,
            # 0 asks for the sampled id alone.
            logprobs=0,
            detokenize=False,
            output_kind=self.delta,
        )

    def scoring(self) -> Any:
        """Return the parameters that make vLLM give the log-probs of a prompt."""
        return self.sampling_params(
            max_tokens=1, temperature=1.0, prompt_logprobs=0, ignore_eos=True, detokenize=False
        )


def import_vllm(settings: InferenceSettings) -> Vllm:
    """Set vLLM's environment, then import it; some 15 s the first time."""
    os.environ.update(environment(settings))
    from vllm import SamplingParams
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.sampling_params import RequestOutputKind
    from vllm.v1.engine.async_llm import AsyncLLM

    return Vllm(
        settings=settings,
        engine_args=AsyncEngineArgs,
        async_llm=AsyncLLM,
        sampling_params=SamplingParams,
        delta=RequestOutputKind.DELTA,
    )


def environment(settings: InferenceSettings) -> dict[str, str]:
    """Return the variables that vLLM reads at import and hands to its processes."""
    variables = {
        # By default vLLM keeps one core for its front, which on two cores halves the decode rate.
        "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
        "VLLM_NO_USAGE_STATS": "1",
        # Each load warns once per tensor that is cast; vLLM's errors reach the log all the same.
        "VLLM_LOGGING_LEVEL": os.environ.get("VLLM_LOGGING_LEVEL", "ERROR"),
        "HF_HUB_OFFLINE": "1",
    }
    if not _spins(settings):
        variables[_PATIENT] = "1"
    if settings.vllm.threads:
        # Unbound threads leave it to the kernel to share the cores with a learner.
        variables |= {
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": str(settings.vllm.threads),
            # A thread that waits for another one sleeps, since the core has other work.
            "OMP_WAIT_POLICY": "PASSIVE",
        }
    return variables


def arguments(folder: Path, settings: InferenceSettings) -> dict[str, Any]:
    """Return the engine arguments for a model folder."""
    limits: VllmSettings = settings.vllm
    patient = {} if _spins(settings) else {"scheduler_cls": _PATIENT_SCHEDULER}
    return patient | {
        "model": str(folder),
        "skip_tokenizer_init": True,
        "max_model_len": settings.context_max,
        "max_num_seqs": settings.inflight_max,
        "max_num_batched_tokens": max(limits.batched_tokens_max, settings.inflight_max),
        "dtype": settings.dtype,
        # Compiling pays off on a GPU only; on a CPU it would make a start take minutes.
        "enforce_eager": not _has_gpu(),
        "enable_prefix_caching": limits.prefix_caching,
        "block_size": limits.block_tokens,
        # The learner's ratio needs what was sampled from: after temperature, top-k and top-p.
        "logprobs_mode": "processed_logprobs",
        "generation_config": "vllm",
        "kv_cache_memory_bytes": round(settings.kv_cache_gib * _GIB),
        "gpu_memory_utilization": limits.memory_share,
        "use_tqdm_on_load": False,
        "disable_log_stats": not limits.stats,
        # A label of its statistics; else the folder's path.
        "served_model_name": settings.model_name,
        "worker_extension_cls": "inference.vllm_extension.PolicyLoader",
    }


def check_memory(settings: InferenceSettings) -> None:
    """Raise SettingsError unless the KV cache holds a whole context and the machine holds it all.

    The model folder must have been checked before. A GPU's memory is vLLM's own to check.
    """
    folder = Path(settings.model_path).expanduser()
    config = json.loads((folder / "config.json").read_text())
    known = int(config.get("max_position_embeddings", settings.context_max))
    if settings.context_max > known:
        raise SettingsError(
            f"inference.context_max is {settings.context_max}, {folder} knows {known} positions",
            boundary=Boundary.ENGINE,
            hint=f"set inference.context_max to {known} or less",
        )
    need = settings.context_max * kv_bytes_per_token(config, settings.dtype)
    cache = settings.kv_cache_gib * _GIB
    if need > cache:
        raise SettingsError(
            f"the KV cache of {settings.kv_cache_gib:g} GiB is too small for one context of "
            f"{settings.context_max} tokens, which takes {need / _GIB:.2f} GiB",
            boundary=Boundary.ENGINE,
            hint="raise inference.kv_cache_gib or lower inference.context_max",
        )
    free = None if _has_gpu() else _available_bytes()
    whole = cache + weights_bytes(folder) + _PROCESSES_BYTES
    if free is not None and whole > free:
        raise SettingsError(
            f"the engine needs about {whole / _GIB:.1f} GiB ({settings.kv_cache_gib:g} of it for "
            f"the KV cache), and {free / _GIB:.1f} GiB of memory are free",
            boundary=Boundary.ENGINE,
            hint="lower inference.kv_cache_gib, or stop other programs",
        )


def kv_bytes_per_token(config: dict[str, Any], dtype: str) -> int:
    """Return the bytes of keys and values that one token takes in the cache."""
    heads = int(config["num_attention_heads"])
    kv_heads = int(config.get("num_key_value_heads") or heads)
    width = int(config.get("head_dim") or config["hidden_size"] // heads)
    return 2 * int(config["num_hidden_layers"]) * kv_heads * width * _NUMBER_BYTES[dtype]


def translated(error: BaseException, what: str) -> SluiceError:
    """Return our error for one of vLLM's: whoever caused it acts."""
    if isinstance(error, SluiceError):
        return error
    text = f"{what}: {type(error).__name__}: {error}"
    if isinstance(error, ImportError):
        return SettingsError(
            text, boundary=Boundary.ENGINE, hint="run `make setup`; it installs vLLM"
        )
    if isinstance(error, ValueError) and ("KV cache" in text or "max_model_len" in text):
        return SettingsError(
            text,
            boundary=Boundary.ENGINE,
            hint="raise inference.kv_cache_gib or lower inference.context_max",
        )
    return TransientError(
        text, boundary=Boundary.ENGINE, hint="the worker's log has vLLM's own words above this"
    )


def _spins(settings: InferenceSettings) -> bool:
    return settings.vllm.spins or _has_gpu()


def _has_gpu() -> bool:
    return Path("/dev/nvidiactl").exists()


def _available_bytes() -> int | None:
    """Return what Linux calls MemAvailable; None where there is no such number."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None
