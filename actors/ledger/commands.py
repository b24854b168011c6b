"""The ledger's commands: how each is made, and how it becomes bytes.

A command is a plain dict of JSON values: ``type``, ``v`` (format version), ``at`` (the proposer's clock, seconds
since the epoch) and the fields of its type. What makes one well formed is in ``command_checks.py``; whether the state
allows it is for ``ledger.py``.
"""

from __future__ import annotations

import json
from typing import Any

from actorgrid.errors import BodyTooLarge
from actorgrid.sizes import ENTRY_BYTES_MAX

from .command_checks import Command, refused, version_of
from .records import UNKNOWN_USER

MAX_COMMAND_BYTES = ENTRY_BYTES_MAX
READABLE_BYTES_MAX = 16 * 2**20
"""What an entry may hold to be read as a command. Not to follow ``MAX_COMMAND_BYTES``: a log that was written when
another bound held has to give the same state again, on every voter."""
NESTING_MAX = 500
"""Of an entry's values. Below what any interpreter's parser gives up at, so that all of them read the same entries."""

# What is still recorded when the disk has no room for new work: it is about work already accepted, or about us.
ABOUT_ACCEPTED_WORK = frozenset(
    {
        "new_term",
        "register_host",
        "drain_host",
        "confirm_host",
        "lose_host",
        "allow_absence",
        "start_attempt",
        "end_attempt",
        "take_success",
        "preempt_attempt",
        "cancel_job",
        "fail_job",
        "release_lease",
        "set_setting",
        "renew_lock",
        "release_lock",
        "expire_lock",
        "break_lock",
        "compare_digest",
        "found_cluster",
        "add_member",
        "change_member",
        "remove_member",
        "publish_bundle",
        "report_trust",
        "request_certificate",
        "issue_certificate",
        "seal_authority",
        "revoke_join_token",
        "redeem_join_token",
        "revoke_api_key",
        "set_quota",
    }
)

LockRequestId = tuple[int, str]
"""The number that a client gave its request for a lock, 0 for none, and the id that its host gave it."""

_TO_JSON = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


# -- makers


def new_term(term: int, at: float, epoch: int | None = None) -> Command:
    """A new leadership; *epoch* only when the ledger was recovered from a backup or a single survivor."""
    return _command("new_term", at, term=term, epoch=epoch)


def register_host(host: dict[str, Any], at: float) -> Command:
    """A host came up, with what it has. Refused for an incarnation below the known one."""
    return _command("register_host", at, host=host)


def confirm_host(host: str, incarnation: int, lost_at: int | None, at: float) -> Command:
    """A host is there, and nothing lives on it that the ledger does not know; *lost_at*: where it was lost, if it was.

    Refused when the ledger has lost it, or found it, since.
    """
    return _command("confirm_host", at, host=host, incarnation=incarnation, lost_at=lost_at)


def allow_absence(host: str, incarnation: int, absence_s: float, at: float, began: int | None = None) -> Command:
    """Wait so long for a host that is about to start anew; 0 ends the wait that *began* at that entry."""
    return _command("allow_absence", at, host=host, incarnation=incarnation, absence_s=absence_s, began=began)


def lose_host(
    host: str,
    incarnation: int,
    seen_index: int,
    heard_at: float,
    allocations: list[tuple[str, list[int]]],
    term: int,
    at: float,
) -> Command:
    """A host was not heard of since *heard_at*, longer than what is named (allocation, token) may go on alone.

    Refused when the host has said since *seen_index* that it is there.
    """
    return _command(
        "lose_host",
        at,
        host=host,
        incarnation=incarnation,
        seen_index=seen_index,
        heard_at=heard_at,
        allocations=[list(each) for each in allocations],
        term=term,
    )


def drain_host(host: str, draining: bool, by: str, at: float) -> Command:
    """Give a host nothing new, whatever its incarnation, until it is said otherwise; what it has goes on."""
    return _command("drain_host", at, host=host, draining=draining, by=by)


def measure_host(host: str, incarnation: int, measured: dict[str, Any], at: float) -> Command:
    """What a host's disk and network do: figures by name, with their units in the names."""
    return _command("measure_host", at, host=host, incarnation=incarnation, measured=measured)


def submit_jobs(jobs: list[dict[str, Any]], at: float) -> Command:
    """Accept jobs, all or none; a job_id already known is a duplicate and changes nothing."""
    return _command("submit_jobs", at, jobs=jobs)


def grant_attempt(
    job_id: str,
    number: int,
    host: str,
    incarnation: int,
    gpu_indexes: list[int],
    term: int,
    at: float,
    placement_latency_us: float | None = None,
) -> Command:
    """Give a queued job what it asks for; the amounts are those of the job record."""
    return _command(
        "grant_attempt",
        at,
        job_id=job_id,
        number=number,
        host=host,
        incarnation=incarnation,
        gpu_indexes=gpu_indexes,
        term=term,
        placement_latency_us=placement_latency_us,
    )


def grant_gang(
    job_id: str,
    number: int,
    members: list[dict[str, Any]],
    ports: tuple[int, int],
    term: int,
    at: float,
    placement_latency_us: float | None = None,
) -> Command:
    """Give all *members* of a queued gang what they ask for, or none; each is {host, incarnation, gpu_indexes}.

    *ports* are the first and the last at which rank 0 may listen for the others.
    """
    return _command(
        "grant_gang",
        at,
        job_id=job_id,
        number=number,
        members=members,
        ports=list(ports),
        term=term,
        placement_latency_us=placement_latency_us,
    )


def start_attempt(attempt_id: str, token: list[int], at: float) -> Command:
    """The attempt's process runs. *attempt_id* is that of a member where the job is a gang; so in ``end_attempt``."""
    return _command("start_attempt", at, attempt_id=attempt_id, token=token)


def end_attempt(
    attempt_id: str,
    token: list[int],
    outcome: str,
    at: float,
    *,
    charge: bool = True,
    retry_at: float | None = None,
    **facts: Any,
) -> Command:
    """The attempt is over and its processes are gone. *facts*: exit_code, signal, error, max_rss_bytes, cpu_s, ..."""
    return _command(
        "end_attempt",
        at,
        attempt_id=attempt_id,
        token=token,
        outcome=outcome,
        charge=charge,
        retry_at=retry_at,
        **facts,
    )


def take_success(attempt_id: str, token: list[int], at: float, **facts: Any) -> Command:
    """An attempt that the leader ended as lost had succeeded on its host before that. *facts* as in ``end_attempt``."""
    return _command("take_success", at, attempt_id=attempt_id, token=token, **facts)


def preempt_attempt(attempt_id: str, token: list[int], grace_s: float, for_job: str, term: int, at: float) -> Command:
    """Ask for the end of an attempt, within *grace_s*, so that *for_job* (a job, or a session's lease) can start."""
    return _command(
        "preempt_attempt", at, attempt_id=attempt_id, token=token, grace_s=grace_s, for_job=for_job, term=term
    )


def cancel_job(job_id: str, by: str, at: float) -> Command:
    """Cancel a waiting job at once; ask for the end of a placed one."""
    return _command("cancel_job", at, job_id=job_id, by=by)


def fail_job(job_id: str, error: dict[str, Any], at: float) -> Command:
    """End a waiting job that can never run."""
    return _command("fail_job", at, job_id=job_id, error=error)


def grant_lease(
    lease_id: str,
    session_id: str,
    host: str,
    incarnation: int,
    gpu_indexes: list[int],
    resources: dict[str, Any],
    pool: str,
    env: dict[str, str],
    term: int,
    at: float,
    user_id: str = UNKNOWN_USER,
) -> Command:
    """Give a client's session a worker with these devices."""
    return _command(
        "grant_lease",
        at,
        lease_id=lease_id,
        session_id=session_id,
        host=host,
        incarnation=incarnation,
        gpu_indexes=gpu_indexes,
        resources=resources,
        pool=pool,
        env=env,
        term=term,
        user_id=user_id,
    )


def release_lease(lease_id: str, at: float) -> Command:
    """Free a session's allocation; one that is gone is no error."""
    return _command("release_lease", at, lease_id=lease_id)


def acquire_lock(
    name: str,
    owner: str,
    ttl_s: float,
    at: float,
    *,
    wait: bool = False,
    slots: int = 1,
    user_id: str = "",
    request: LockRequestId | None = None,
) -> Command:
    """Hold a lock or stand in line for it. *owner* names one holder: a thread that asks, not a user.

    *request*: under which ``leave_line`` takes it back, for a client that did not hear of it.
    """
    fields = {"name": name, "owner": owner, "ttl_s": ttl_s, "wait": wait, "slots": slots}
    return _command("acquire_lock", at, **fields, user_id=user_id or UNKNOWN_USER, **_of(request))


def renew_lock(
    name: str, owner: str, at: float, token: list[int] | None = None, request: LockRequestId | None = None
) -> Command:
    """The holder, or one who waits, is still there; *request*: says the host where that request of his waits."""
    return _command("renew_lock", at, name=name, owner=owner, token=token, **_of(request))


def release_lock(name: str, owner: str, at: float, token: list[int] | None = None) -> Command:
    """Give a lock back, or leave the line."""
    return _command("release_lock", at, name=name, owner=owner, token=token)


def leave_line(
    name: str, owner: str, at: float, *, renewals: int | None = None, request: LockRequestId | None = None
) -> Command:
    """Give up for an owner that is gone what was given to *request*, unless he was told or has asked again; or what it
    has, unless it has given a sign of life since *renewals*.
    """
    assert renewals is not None or request is not None, "whoever gives up for another says what it knows of it"
    seen = {} if renewals is None else {"renewals": renewals}
    return _command("release_lock", at, name=name, owner=owner, token=None, **seen, **_of(request))


def _of(request: LockRequestId | None) -> dict[str, Any]:
    return {} if request is None else {"request": [*request]}


def break_lock(name: str, owner: str, by: str, at: float) -> Command:
    """Take a lock from its owner, or a place in line, on the word of *by*."""
    return _command("break_lock", at, name=name, owner=owner, by=by)


def expire_lock(name: str, owner: str, renewals: int, term: int, at: float) -> Command:
    """The leader of *term* saw no renewal after the *renewals*-th in time."""
    return _command("expire_lock", at, name=name, owner=owner, renewals=renewals, term=term)


def compare_digest(index: int, digest: dict[str, str], state_format: int, at: float) -> Command:
    """What the leader's state was at *index*, by kind of record; a voter with another one stops."""
    return _command("compare_digest", at, index=index, digest=digest, format=state_format)


def set_setting(key: str, value: Any, by: str, at: float) -> Command:
    """Keep a setting's value over the files' one; ``None`` gives the files their say again."""
    return _command("set_setting", at, key=key, value=value, by=by)


def found_cluster(cluster_id: str, host_id: str, addresses: dict[str, str], fingerprint: str, at: float) -> Command:
    """Make the ledger a cluster's, with the host it lies on as its first member."""
    return _command(
        "found_cluster", at, cluster_id=cluster_id, host_id=host_id, addresses=addresses, fingerprint=fingerprint
    )


def add_member(
    host_id: str, addresses: dict[str, str], fingerprint: str, at: float, *, rack: str | None = None, version: str = ""
) -> Command:
    """Let a host in; the answer names its node. *addresses* by what listens there: raft, calls, join."""
    return _command(
        "add_member", at, host_id=host_id, addresses=addresses, fingerprint=fingerprint, rack=rack, version=version
    )


def change_member(host_id: str, at: float, **fields: Any) -> Command:
    """Where a member listens now, its software, one more certificate, whether it may vote."""
    return _command("change_member", at, host_id=host_id, **fields)


def remove_member(host_id: str, by: str, at: float, force: bool = False) -> Command:
    """A host is no member any more, and never again under this node number. *force*: also when it has work, which is
    lost then."""
    return _command("remove_member", at, host_id=host_id, by=by, force=force)


def publish_bundle(bundle: dict[str, Any], at: float) -> Command:
    """The next trust bundle, as plain values: the first, or one step from the one that the ledger has."""
    return _command("publish_bundle", at, bundle=bundle)


def report_trust(
    host_id: str,
    certificate: str,
    fingerprint: str,
    generation: int,
    valid_until: float,
    bundle_version: int,
    keys: list[int],
    at: float,
) -> Command:
    """What a member has: its certificate (PEM), the bundle, the keys of which authorities."""
    return _command(
        "report_trust",
        at,
        host_id=host_id,
        certificate=certificate,
        fingerprint=fingerprint,
        generation=generation,
        valid_until=valid_until,
        bundle_version=bundle_version,
        keys=keys,
    )


def request_certificate(host_id: str, csr: str, addresses: list[str], at: float) -> Command:
    """A member asks for a certificate; *csr* is the request (PKCS #10) in hex. Answer: its number."""
    return _command("request_certificate", at, host_id=host_id, csr=csr, addresses=addresses)


def issue_certificate(host_id: str, request: int, certificate: str, fingerprint: str, at: float) -> Command:
    """What was asked for under that number, by a host that has the authority's key."""
    return _command(
        "issue_certificate", at, host_id=host_id, request=request, certificate=certificate, fingerprint=fingerprint
    )


def seal_authority(host_id: str, generation: int, fingerprint: str, sealed: str, at: float) -> Command:
    """An authority's key, sealed (hex) for the member with this certificate's key."""
    return _command(
        "seal_authority", at, host_id=host_id, generation=generation, fingerprint=fingerprint, sealed=sealed
    )


def create_join_token(token: dict[str, Any], at: float) -> Command:
    """Let hosts join with it; *token* is the record of ``ledger/join_tokens.py``, which holds no secret."""
    return _command("create_join_token", at, token=token)


def revoke_join_token(token_id: str, at: float) -> Command:
    """It lets nobody in any more."""
    return _command("revoke_join_token", at, token_id=token_id)


def redeem_join_token(
    token_id: str,
    host_id: str,
    addresses: dict[str, str],
    fingerprint: str,
    at: float,
    *,
    rack: str | None = None,
    version: str = "",
) -> Command:
    """Use a token, and with that let its holder in as a member: one entry, so that neither is without the other.

    The same host with the same key gets the same answer again.
    """
    return _command(
        "redeem_join_token",
        at,
        token_id=token_id,
        host_id=host_id,
        addresses=addresses,
        fingerprint=fingerprint,
        rack=rack,
        version=version,
    )


def create_api_key(key: dict[str, Any], at: float) -> Command:
    """Let requests in with it, on every host; *key* is the record of ``ledger/api_keys.py``."""
    return _command("create_api_key", at, key=key)


def revoke_api_key(key_id: str, by: str, at: float) -> Command:
    """It opens nothing any more."""
    return _command("revoke_api_key", at, key_id=key_id, by=by)


def set_quota(user: str, limits: dict[str, Any] | None, by: str, at: float) -> Command:
    """Hold a user to *limits* (``*``: everyone without a quota of one's own); ``None`` removes the quota.

    A limit that is not named, or ``None``, is none. Lowering one stops nobody.
    """
    return _command("set_quota", at, user=user, limits=limits, by=by)


def _command(kind: str, at: float, **fields: Any) -> Command:
    return {"type": kind, "v": version_of(kind, fields), "at": at, **fields}


# -- bytes


def encode_entry(command: Command, session: str, seq: int) -> bytes:
    """A log entry's payload. Raises BadRequest for what is not JSON, BodyTooLarge over 16 MiB."""
    try:
        data = _TO_JSON.encode([session, seq, command]).encode("ascii")
    except (TypeError, ValueError, RecursionError) as error:
        raise refused(f"the command is not plain JSON: {error}") from None
    if len(data) > MAX_COMMAND_BYTES:
        raise BodyTooLarge(
            "the command is too large for the ledger",
            asked=f"{len(data)} bytes",
            found=f"at most {MAX_COMMAND_BYTES}",
            hint="submit fewer jobs at once, or keep large inputs out of env and command",
        )
    return data


def decode_entry(payload: bytes) -> tuple[str, int, Command]:
    """The session, sequence number and command of a log entry; the command may still be anything that is a map.

    Raises BadRequest for bytes that are none, whatever they are: every voter has to say the same of them.
    """
    if len(payload) > READABLE_BYTES_MAX:
        raise refused("an entry is no command: it is too large", found=f"{len(payload)} bytes")
    try:
        parts = json.loads(payload)
    except (ValueError, RecursionError):
        # Not the parser's own words: those are another version's tomorrow, and refusals are part of the state.
        raise refused("an entry is no command: it is not JSON") from None
    if not isinstance(parts, list) or len(parts) != 3:
        raise refused("an entry is no command: it is not a session, a number and a command")
    session, seq, command = parts
    if not isinstance(session, str) or isinstance(seq, bool) or not isinstance(seq, int) or abs(seq) >= 2**63:
        raise refused("an entry is no command: its session is no text, or its number no whole one")
    if not isinstance(command, dict):
        raise refused("an entry is no command: what it holds is no map")
    if payload.count(b"[") + payload.count(b"{") > NESTING_MAX and _nested_deeper(parts, NESTING_MAX):
        raise refused("an entry is no command: its values are nested too deep")
    return session, seq, command


def _nested_deeper(value: Any, depth: int) -> bool:
    """Level by level, because a recursion would have the interpreter's limit in the place of ours."""
    level = [value]
    while level and depth:
        inner = [part for each in level for part in (each.values() if isinstance(each, dict) else each)]
        level = [part for part in inner if isinstance(part, (dict, list))]
        depth -= 1
    return bool(level)
