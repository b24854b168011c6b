"""What goes wrong: each fault plans, from a random generator, when and how it strikes, and heals by itself."""
