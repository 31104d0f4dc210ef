docker run --gpus all -v /srv/models:/models -p 8080:8080 ghcr.io/ggml-org/llama.cpp:server-cuda -m /models/phi-4.gguf --host 0.0.0.0 --port 8080 -ngl 99 --reasoning-budget 0 --lora /models/tone.gguf
