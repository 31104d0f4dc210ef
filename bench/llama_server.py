#!/usr/bin/env python3
"""
llama.cpp's server alone, as `unilect serve` runs it in its child, but on a TCP port and without a key: what bench/engine.py
compares unilect with.

usage: llama_server.py MODEL.gguf PORT PARALLEL CONTEXT THREADS [rank]
"""

import signal
import sys

import xllamacpp

BATCH = 64  # unilect's on a CPU


def main(path: str, port: int, parallel: int, context: int, threads: int, ranks: bool) -> None:
    """Serve until killed; `context` is for each of the parallel requests. A reranker reads each pair in one step."""
    params = xllamacpp.CommonParams()
    params.model.path = path
    params.hostnames, params.port = ["127.0.0.1"], port
    params.verbosity = 1
    params.ui, params.use_jinja, params.warmup = False, True, False
    params.cont_batching, params.ctx_shift, params.cache_idle_slots = True, False, False
    params.endpoint_metrics = True
    params.n_parallel, params.n_ctx = parallel, context * parallel
    params.n_batch = params.n_ubatch = BATCH
    if ranks:
        params.embedding, params.pooling_type = (
            True,
            xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_RANK,
        )
        params.n_batch = params.n_ubatch = params.n_ctx
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    server = xllamacpp.Server(params)
    print(server.listening_address, flush=True)
    signal.sigwait({signal.SIGTERM, signal.SIGINT})


if __name__ == "__main__":
    port, parallel, context, threads = map(int, sys.argv[2:6])
    main(sys.argv[1], port, parallel, context, threads, ranks=sys.argv[6:] == ["rank"])
