"""A request made fit for a backend: a plan, and the stages that make up for what the backend lacks."""
