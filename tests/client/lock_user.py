"""A program that writes under a lock to a file of SQLite that checks tokens, a line for each thing that happened.

It holds the lock, writes, and says so; goes on when its standard input brings a line, and writes once more without
looking whether it still has the lock.
"""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing

import actorgrid
from actorgrid.errors import LockLost, StaleToken


def write(path: str, token: int, value: str) -> None:
    """Let *value* in unless a higher token was here before. Raises StaleToken."""
    with closing(sqlite3.connect(path)) as store, store:
        store.execute("CREATE TABLE IF NOT EXISTS guarded (one INTEGER PRIMARY KEY CHECK (one = 1), token, value)")
        store.execute("INSERT OR IGNORE INTO guarded VALUES (1, 0, '')")
        changed = store.execute("UPDATE guarded SET token = ?, value = ? WHERE token <= ?", (token, value, token))
        if changed.rowcount == 0:
            raise StaleToken("a later holder has written already", asked=str(token))


def main(url: str, token: str, path: str, ttl_s: float) -> None:
    client = actorgrid.connect(url, token)
    try:
        with client.lock("guarded", ttl_s=ttl_s) as lock:
            fence = int(lock.token)
            write(path, fence, "first")
            print("written", flush=True)
            sys.stdin.readline()
            try:
                write(path, fence, "late")
                print("written late", flush=True)
            except StaleToken as error:
                print(error.code, flush=True)
    except LockLost as error:
        print(error.code, flush=True)
    client.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], float(sys.argv[4]))
