"""Files on disk: durable files, the layout of a node's directory, checkpoints."""
