"""FastChat's APIs: of its server, of a worker, of a controller."""
