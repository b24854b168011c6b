"""Why a job is where it is, and what is short for it: decisions and sentences, no I/O."""
