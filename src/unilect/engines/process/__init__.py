"""Engine processes: start, monitoring, restart, end, and the attribution of crashes."""
