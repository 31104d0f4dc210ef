"""An engine as a process of ours: start, watch, restart, end; what one knows of its life."""
