"""What runs in a process of its own for each system: one file a system, and the protocol between."""
