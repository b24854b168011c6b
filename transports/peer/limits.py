"""The bounds of links between hosts, and the reasons for which one is refused or closed."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Refusal(StrEnum):
    """Why a link was not made, or was closed: the names that are counted, and sent as the code of a Bye."""

    PLAIN_TEXT = "plain_text"
    """The first byte was none of TLS."""
    TLS = "tls"
    """An older TLS, no certificate at all, or bytes that are no TLS."""
    CERTIFICATE = "certificate"
    """Not signed by the cluster's authority, or not for this use."""
    EXPIRED = "expired"
    WRONG_NAME = "wrong_name"
    """The certificate names no host of this cluster, or another host than was dialled."""
    UNKNOWN_HOST = "unknown_host"
    """The certificate is good, but the ledger has no such host (any more)."""
    REFUSED_US = "refused_us"
    """The other side did not take our certificate, or said why not in its Bye."""
    VERSION = "version"
    OVERSIZE = "oversize"
    MALFORMED = "malformed"
    HANDSHAKE_TIMEOUT = "handshake_timeout"
    TOO_MANY_HALF_OPEN = "too_many_half_open"
    TOO_FAST = "too_fast"
    NOT_READING = "not_reading"
    """Answers to the other side piled up to the bound."""
    SILENT = "silent"
    """Nothing was heard, or no ping answered, for the idle timeout."""
    RETIRED = "retired"
    """Replaced by another link, or a restart; nothing was under way."""
    GONE = "gone"
    """The connection ended: reset, closed, or the process is dead."""
    UNREACHABLE = "unreachable"
    """No address of the host took a connection."""
    CLOSING = "closing"
    """This side stops."""


@dataclass(frozen=True)
class PeerLimits:
    """Every bound of links between hosts, for one link where nothing else is said, and what happens at each."""

    handshake_s: float = 5.0
    """From the first packet to both Hellos, without the time in which we were stopped; then HANDSHAKE_TIMEOUT."""
    handshake_bytes_max: int = 64 * 1024
    """Received before TLS is done; then TLS."""
    ping_s: float = 3.0
    idle_s: float = 10.0
    """Without a byte from, or an answered ping by, the other side; then SILENT."""
    tick_s: float = 0.5
    calls_max: int = 1024
    """Of ours that are not answered; then MailboxFull to the caller."""
    served_max: int = 1024
    """Of theirs that we have not answered; then they get MailboxFull."""
    served_bytes_max: int = 32 * 2**20
    """The bodies of those; then they get MailboxFull."""
    unsent_bytes_max: int = 8 * 2**20
    """Control frames that the other side has not taken; then MailboxFull to the caller or, in place of an answer, to
    the other side; at twice this NOT_READING."""
    streams_max: int = 32
    """Open streams, each side's; then MailboxFull to who opens."""
    stream_window_bytes: int = 512 * 1024
    """What we take of a stream before its reader consumes."""
    stream_unsent_bytes: int = 512 * 1024
    """What a stream keeps of what was written and not sent, whatever the reader grants; then ``write`` takes none."""
    compress: bool = True
    """Whether calls, answers and casts over 4 KiB may be compressed, where a probe says that it pays."""
    waiting_max: int = 1024
    """Calls, casts and streams that wait for a link to one host; then MailboxFull."""
    waiting_bytes_max: int = 4 * 2**20
    dials_max: int = 64
    """Dials under way that are answered, of one net; then the next waits for one of them."""
    half_open_max: int = 128
    """Accepted connections without a proven host, of one listener; then the oldest is closed: a proof takes
    milliseconds, so that it is hardly ever an honest one."""
    half_open_per_address_max: int = 16
    """Then a new one of that address is closed."""
    connects_per_s: float = 20.0
    """New connections of one address that do not prove a host, on average; then they are closed unread."""
    connects_burst: int = 40
    addresses_max: int = 1024
    """Addresses whose knocks are counted; then the one that was quiet longest is forgotten."""
    backoff_first_s: float = 0.1
    backoff_max_s: float = 5.0
    hosts_max: int = 4096
    """Hosts that a net keeps a record of; then MailboxFull to who wants another."""
