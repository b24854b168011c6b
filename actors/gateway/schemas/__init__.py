"""What the routes take and give, as models that check it."""
