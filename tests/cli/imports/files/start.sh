#!/usr/bin/env bash
set -euo pipefail
cd /srv/llama
# chat
CUDA_VISIBLE_DEVICES=0 nohup ./build/bin/llama-server \
  -m /srv/models/mistral-7b.Q4_K_M.gguf \
  --alias mistral,assistant \
  -c 16384 -np 4 -ngl 33 \
  --host 127.0.0.1 --port 8081 --api-key "$LLAMA_KEY" \
  --n-cpu-moe 8 --no-webui > chat.log 2>&1 &
# embeddings
./build/bin/llama-server -m /srv/models/nomic-embed.gguf --embedding --pooling mean --port 8082
