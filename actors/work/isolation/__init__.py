"""What keeps users' work apart from the agent and from each other: tried out at the start, set in the shim's child."""
