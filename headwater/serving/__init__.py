"""HTTP servers in a thread of a process: listening sockets, bounded connections. What they answer is of others."""
