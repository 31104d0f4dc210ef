"""What a dialect stands on: routes, bodies, streams, and the guard before all of them."""
