"""HTTP for dialects: routes, bodies, streams, and the guard before all of them."""
