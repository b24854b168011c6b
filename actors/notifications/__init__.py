"""What people are told: of their jobs, and of what is wrong; sent as webhooks and mail, again until it has arrived."""
