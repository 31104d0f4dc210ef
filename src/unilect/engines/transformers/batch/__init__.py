"""The batch in the child: rows, prefill, caches, sampling."""
