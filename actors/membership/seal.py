"""Seal of a datagram: authenticated encryption under the members' key, with a number that is never used again.

ChaCha20-Poly1305 (RFC 8439) as ``cryptography`` has it, on a key for each sender: HKDF-SHA256 of the members' secret,
with the number of the key and the sender's name. A nonce is the sender's life (the number of its start, which its disk
remembers) and a counter within it, so none comes twice under a key, over restarts too. All of the head is associated
data: version, number of the key, life, counter, sender.

Everybody who has the secret can seal in anybody's name: a shared key tells members from strangers, not members from
each other. And whoever had a secret keeps it: a removal needs a new one, not a number derived from the old.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Literal

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from .packets import DATAGRAM_BYTES_MAX, MEMBERS_MAX, Malformed, Packet, decode_packet, encode_packet, is_name
from .records import LIFE_MAX
from .replay_window import ReplayWindow

VERSION = 1
SECRET_BYTES = 32
KEY_NUMBER_MAX = 2**32 - 1
PREVIOUS_KEY_S = 60.0
"""For how long the key before is still taken: the ledger's word of a new one reaches a busy host late."""
LIVES_AHEAD_MAX = 2**20
"""A life further ahead of the last one is no restart."""
_LABEL = b"actorgrid membership datagram 1\0"
_HEAD = struct.Struct(">BIIQB")  # version, key number, life, counter, bytes of the sender's name
_NONCE = struct.Struct(">IQ")
_TAG_BYTES = 16
_COUNTER_MAX = 2**64 - 1

Refusal = (
    Malformed
    | Literal[
        "truncated", "version", "key_unknown", "own_name", "old_life", "replayed", "future", "forged", "senders_full"
    ]
)


class Keyring:
    """The key of now, and the one before for a while. *now*: seconds that only go forward."""

    __slots__ = ("_previous", "_until", "number", "secret")

    def __init__(self, number: int, secret: bytes) -> None:
        _check_key(number, secret)
        self.number = number
        self.secret = secret
        self._previous: tuple[int, bytes] | None = None
        self._until = 0.0

    def rotate(self, number: int, secret: bytes, now: float) -> None:
        """Seal with this key from now on. Numbers only grow: an older key is not taken up again."""
        _check_key(number, secret)
        if number > self.number:
            self._previous, self._until = (self.number, self.secret), now + PREVIOUS_KEY_S
            self.number, self.secret = number, secret

    def find(self, number: int, now: float) -> bytes | None:
        """The secret of that number, if it counts at *now*."""
        if number == self.number:
            return self.secret
        if self._previous is not None and number == self._previous[0] and now < self._until:
            return self._previous[1]
        return None


def _check_key(number: int, secret: bytes) -> None:
    assert 0 <= number <= KEY_NUMBER_MAX, f"key number {number}"
    assert len(secret) == SECRET_BYTES, f"a secret of {len(secret)} bytes is not of {SECRET_BYTES}"


class DatagramSeal:
    """One host's end: seals its packets, opens those of others, and counts what it refuses by reason (``refused``).

    *counter*: of its first datagram; whoever seals in one life a second time has to begin above what was used.

    Of each sender a window is kept that takes each datagram once; of at most 8,192 senders, until they are forgotten.
    Forgetting one would let its datagrams be played again, so of further ones nothing is taken. A host that has
    just started has no windows yet: what is played to it then is as if it came late, and words of earlier incarnations
    change nothing.
    """

    window_class: Callable[[int], ReplayWindow] = ReplayWindow

    def __init__(self, name: str, life: int, keys: Keyring, counter: int = 0) -> None:
        assert 0 <= life <= LIFE_MAX, f"life {life}"
        self.refused: dict[str, int] = {}
        self._name = name
        self._raw_name = name.encode("ascii")
        self._life = life
        self._counter = counter
        self._keys = keys
        self._own: tuple[int, ChaCha20Poly1305] | None = None
        self._ciphers: dict[tuple[int, bytes], ChaCha20Poly1305] = {}
        self._windows: dict[bytes, ReplayWindow] = {}

    def seal(self, packet: Packet) -> bytes:
        """The datagram of *packet*, at most 1,400 bytes."""
        keys, own = self._keys, self._own
        if own is None or own[0] != keys.number:
            own = self._own = (keys.number, _cipher(keys.secret, keys.number, self._raw_name))
        counter = self._counter
        assert counter < _COUNTER_MAX, "a counter of 64 bits does not come to its end"
        self._counter = counter + 1
        head = _HEAD.pack(VERSION, own[0], self._life, counter, len(self._raw_name)) + self._raw_name
        datagram = head + own[1].encrypt(_NONCE.pack(self._life, counter), encode_packet(packet), head)
        assert len(datagram) <= DATAGRAM_BYTES_MAX, f"a datagram of {len(datagram)} bytes"
        return datagram

    def open(self, datagram: bytes, now: float) -> Packet | None:
        """The packet in *datagram*, or None: then nothing of it counts but that it was refused."""
        opened = self._open(datagram, now)
        if isinstance(opened, str):
            self.refused[opened] = self.refused.get(opened, 0) + 1
            return None
        return opened

    def forget(self, name: str) -> None:
        """That member was removed, and with it the key it knew."""
        raw = name.encode("ascii")
        self._windows.pop(raw, None)
        for key in [key for key in self._ciphers if key[1] == raw]:
            del self._ciphers[key]

    def _open(self, datagram: bytes, now: float) -> Packet | Refusal:
        # From the cheapest look to the dearest: what a stranger sends by the thousand ends early.
        if len(datagram) > DATAGRAM_BYTES_MAX:
            return "oversize"
        if len(datagram) < _HEAD.size:
            return "truncated"
        version, number, life, counter, name_bytes = _HEAD.unpack_from(datagram)
        if version != VERSION:
            return "version"
        end = _HEAD.size + name_bytes
        if len(datagram) < end + _TAG_BYTES:
            return "truncated"
        secret = self._keys.find(number, now)
        if secret is None:
            return "key_unknown"
        raw_name = datagram[_HEAD.size : end]
        if raw_name == self._raw_name:
            return "own_name"
        window = self._windows.get(raw_name)
        if window is None:
            if len(self._windows) >= MEMBERS_MAX:
                return "senders_full"
        elif not window.fresh(life, counter):
            return "old_life" if life < window.life else "replayed"
        elif life - window.life > LIVES_AHEAD_MAX:
            return "future"
        cipher = self._ciphers.get((number, raw_name))
        known = cipher is not None
        if cipher is None:
            cipher = _cipher(secret, number, raw_name)
        try:
            body = cipher.decrypt(_NONCE.pack(life, counter), datagram[end:], datagram[:end])
        except InvalidTag:
            return "forged"
        name = raw_name.decode("latin-1")  # never fails, and what is not ASCII is no name
        if not is_name(name):
            return "malformed"
        packet = decode_packet(body, name)
        if isinstance(packet, str):
            return packet
        # Only what is whole is remembered: a forgery marks no counter and fills no cache.
        if not known:
            self._remember(number, raw_name, cipher)
        if window is None:
            window = self._windows[raw_name] = self.window_class(life)
        window.mark(life, counter)
        return packet

    def _remember(self, number: int, raw_name: bytes, cipher: ChaCha20Poly1305) -> None:
        if len(self._ciphers) >= 2 * MEMBERS_MAX:
            self._ciphers.clear()  # they are derived again as they are needed
        self._ciphers[number, raw_name] = cipher


def _cipher(secret: bytes, number: int, raw_name: bytes) -> ChaCha20Poly1305:
    info = _LABEL + struct.pack(">I", number) + raw_name
    return ChaCha20Poly1305(HKDF(SHA256(), SECRET_BYTES, None, info).derive(secret))
