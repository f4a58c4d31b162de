"""Administration of a federation: folders, keys, logs, processes."""
