"""The contract of a backend, all that a plugin needs: `backend`, and the support of `parameters`."""
