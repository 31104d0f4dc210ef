"""
The variables that a process of ours gets: those that a program of its kind may need, and no others.

A list of what is allowed, since a secret may have any name: `UNILECT_API_KEYS`, or whatever `$NAME` a configuration refers to.
"""

import os
import re

#: What Python, C libraries, torch, llama.cpp, the makers of GPUs, and caches of models look for.
_ALLOWED = re.compile(
    r"PATH|HOME|USER|LOGNAME|SHELL|LANG|LANGUAGE|LC_\w+|TZ|TZDIR|TMPDIR|TEMP|TMP|XDG_\w+|VIRTUAL_ENV|PYTHON\w+"
    r"|SYSTEMROOT|COV_\w+|LD_LIBRARY_PATH|LD_PRELOAD|DYLD_\w+|MALLOC_\w+|GLIBC_TUNABLES|CC|CXX"
    r"|(?:HF|HUGGINGFACE|TRANSFORMERS|TOKENIZERS|TORCH|TORCHINDUCTOR|PYTORCH|ATEN|TRITON|BITSANDBYTES)_\w+"
    r"|(?:CUDA|CUBLAS|CUDNN|NCCL|NVIDIA|ROCM|ROCR|HIP|HSA|AMD|AMDGPU|MIOPEN|RCCL|GPU|ZE|ONEAPI|SYCL|VK|VULKAN|MESA|MTL|METAL)_\w+"
    r"|(?:GGML|LLAMA|OMP|GOMP|KMP|MKL|OPENBLAS|DNNL|ONEDNN|BLIS|NUMEXPR|VECLIB)_\w+"
)
#: Never, though the beginning is allowed: `HF_TOKEN`, `LLAMA_API_KEY`.
_SECRET = re.compile(r".*_(?:KEY|TOKEN|SECRET|PASSWORD|PASS|CREDENTIAL)S?|.*_PROXY")


def child_environment() -> dict[str, str]:
    """Return the variables of ours that a child may see: it talks to nobody but us, so no proxies, and it needs no secrets."""
    return {
        name: value
        for name, value in os.environ.items()
        if _ALLOWED.fullmatch(name) and not _SECRET.fullmatch(name)
    }
