"""The throwaway child that tells which GPUs llama.cpp has: JSON on stdout, the free and all bytes of each."""

import json

from unilect.engines.gguf._child import gpu_sizes

if __name__ == "__main__":
    print(json.dumps(gpu_sizes()))
