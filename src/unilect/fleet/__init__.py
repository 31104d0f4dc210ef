"""The fleet: models whose engines are replicas on a Ray cluster."""
