"""The scenarios of ``actorgrid chaos run``: each file is one, named as it is, and says in a sentence what it does."""
