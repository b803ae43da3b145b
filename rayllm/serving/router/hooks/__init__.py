"""Policy hooks: users' functions that see requests and their usage, in a process of their own."""
