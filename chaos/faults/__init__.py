"""What goes wrong: each fault plans, from dice, when and how it strikes, and heals by itself."""
