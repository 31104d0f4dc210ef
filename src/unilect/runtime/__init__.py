"""The process's own services: logs, tasks, clocks, the request at hand, extras, plugins, and what a child process gets."""
