"""Ray's side of the fleet: the driver, the replicas, the nodes. Nothing here is imported by the gateway's process."""
