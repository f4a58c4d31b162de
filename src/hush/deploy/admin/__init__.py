"""Administration of a federation: folders, keys, audit log, processes."""
